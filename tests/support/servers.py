"""A real vLLM server for the tests, in a process group of its own, on a port of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.patience import HANGS_S

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--dtype float32 --max-model-len 512 --enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens 8192 --block-size 32"
    " --max-num-seqs 64 --generation-config vllm --enable-prompt-tokens-details"
    " --disable-uvicorn-access-log --distributed-executor-backend uni"
)
"""Seeded requests need unsplit prefills on the CPU, and blocks there are multiples of 32. One process computes and schedules."""


class Running(NamedTuple):
    """A server that answers."""

    base_url: str
    process: subprocess.Popen[bytes]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def vllm_server(model_folder: Path, name: str, core: int = 0, *flags: str, port: int | None = None) -> Iterator[Running]:
    """Serve `model_folder` as `name` on CPU core `core` until the block is left; its output goes to this process's stderr."""
    port = port or free_port()
    base_url = f"http://127.0.0.1:{port}/v1"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model_folder), "--served-model-name", name, *FLAGS.split(), *flags]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # without this the CPU build takes two processes whatever the flag says
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(command, env=os.environ | settings, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(base_url, process)
        yield Running(base_url, process)
    finally:
        _end(process)


def _wait_until_it_answers(base_url: str, process: subprocess.Popen[bytes]) -> None:
    """Ask for the models until they come; the wait between two questions is one for the process to end."""
    deadline = time.monotonic() + HANGS_S
    while time.monotonic() < deadline:
        with suppress(URLError, ConnectionError, TimeoutError), urlopen(f"{base_url}/models", timeout=5):
            return
        with suppress(subprocess.TimeoutExpired):
            raise RuntimeError(f"the vLLM server ended with {process.wait(timeout=0.3)} before it answered")
    raise RuntimeError(f"the vLLM server has not answered for {HANGS_S:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group: the engine is a child of the server."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
