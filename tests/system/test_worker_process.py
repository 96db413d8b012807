"""A worker process: what it is started with, how it ends together with what it started, and why it is gone."""

import os
from pathlib import Path

import psutil
import pytest

from pipeline.system.worker_process import Program, WorkerProcess

BEGIN = "import os, socket, subprocess, sys, time\nchannel = socket.socket(fileno=int(sys.argv[1]))\n"


def started(folder: Path, code: str, **options: object) -> WorkerProcess:
    """A worker that runs `code`, in which `channel` is its end of the socket."""
    (folder / "program.py").write_text(BEGIN + code)
    return WorkerProcess(Program(module="program", environment={"PYTHONPATH": str(folder)}, **options))  # type: ignore[arg-type]


def received(worker: WorkerProcess) -> str:
    """All that it says until it closes its end."""
    worker.socket.settimeout(60)
    return worker.socket.makefile("r").read()


def test_it_has_its_arguments_and_variables_and_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_LEVEL", "mine")
    worker = started(tmp_path, "channel.sendall(f'{sys.argv[2]} {os.environ[\"MY_LEVEL\"]}'.encode())\n", arguments=("first",))
    assert received(worker) == "first mine"
    worker.wait(60)
    assert worker.exit_reason() == "exit status 0"
    worker.close_files()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("warming up\nno room left\n", "no room left"),
        ("ValueError: first\nRuntimeError: Engine core initialization failed. See root cause above.\n", "ValueError: first"),
        ("[worker 3] torch.OutOfMemoryError: no memory\nbye\n", "torch.OutOfMemoryError: no memory"),
        ("x" * 100_000, "x" * 300),
    ],
    ids=range(4),
)
def test_why_it_is_gone_is_the_cause_and_its_exit_status(tmp_path: Path, said: str, error: str) -> None:
    lines: list[str] = []
    worker = started(tmp_path, f"print('hello', flush=True)\nprint({said!r}, end='', file=sys.stderr, flush=True)\nos._exit(3)\n")
    os.set_blocking(worker.stderr.fileno(), True)
    while worker.read_stderr(lines.append):
        pass
    assert lines[0] == "hello"
    worker.wait(60)
    assert worker.exit_reason() == f"{error} (exit status 3)"
    worker.close_files()


def test_what_it_started_dies_with_it(tmp_path: Path) -> None:
    code = "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], pass_fds=[])\n"
    code += "channel.sendall(f'{child.pid}\\n'.encode())\nchild.wait()\n"
    worker = started(tmp_path, code)
    child = psutil.Process(int(worker.socket.recv(20)))
    worker.kill()
    assert worker.exit_reason() == "killed by SIGKILL"
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    worker.close_files()


@pytest.mark.parametrize(("shutdown_s", "said"), [(60.0, "saved"), (0.0, "")])
def test_it_has_the_time_to_shut_down_that_its_program_takes(tmp_path: Path, shutdown_s: float, said: str) -> None:
    code = "channel.sendall(b'ready')\nchannel.recv(1)\nchannel.sendall(b'saved')\nos._exit(0)\n"
    if not shutdown_s:
        code = code.replace("channel.recv(1)\n", "time.sleep(600)\n")
    worker = started(tmp_path, code, shutdown_s=shutdown_s)
    assert worker.socket.recv(5) == b"ready"
    worker.end()
    worker.end()
    assert worker.exit_status == (0 if shutdown_s else -9)
    assert received(worker) == said
    worker.close_files()


PROGRAM = """
import importlib.util, multiprocessing, os, subprocess, sys


def looked():
    return b"found " if importlib.util.find_spec("trap") else b"none "


def send(pipe):
    pipe.send_bytes(looked())


if __name__ == "__main__":
    say = int(sys.argv[1])
    os.write(say, looked())
    subprocess.run([sys.executable, "-c", f"import os, program; os.write({say}, program.looked())"], pass_fds=[say])
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    spawning.Process(target=send, args=(theirs,)).start()
    os.write(say, ours.recv_bytes())
"""


def test_neither_it_nor_what_it_starts_imports_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python programs, and processes of `multiprocessing`, which is how vLLM starts its own."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/trap.py").touch()
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path / "work")
    worker = WorkerProcess(Program(module="program", environment={"PYTHONPATH": str(tmp_path)}))
    assert received(worker) == "none none none "
    worker.wait(60)
    worker.close_files()
