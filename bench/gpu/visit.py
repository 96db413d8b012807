"""Measures on a machine with a GPU what the simulation assumes; started by bench/gpu_visit.sh, one part at a time.

    python -m bench.gpu.visit ratio           SpecReason over its target alone and n-gram speculation, in time slices
    python -m bench.gpu.visit ratio-mps       SpecReason under a CUDA MPS daemon
    python -m bench.gpu.visit interference    iterations of two processes on one GPU, alone and together, in time slices
    python -m bench.gpu.visit mps             the same under a CUDA MPS daemon
    python -m bench.gpu.visit runs            whole runs of the bundled pair on CUDA, with their answers
    python -m bench.gpu.visit vllm            a run on vLLM's CUDA build, and what it says of itself

Each part writes bench/results/gpu-PART.json, which says on which device, with which driver and versions. Without a GPU every part
runs on the CPU with toy shapes, which shows that it works, measures nothing and writes to build/gpu_visit.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import click

from bench.gpu.decoder import CONTEXT, SHAPES, TINY
from bench.gpu.packages import vllm_archive, wheels
from bench.gpu.ratio import measure, table

ROOT = Path(__file__).parent.parent.parent
HOME, RESULTS = ROOT / "build/gpu_visit", ROOT / "bench/results"
COMMAND = (sys.executable, "-c", "from pipeline.cli.main import main; main()")
Cell: TypeAlias = tuple[str, int, int]
"""The mode of an iteration, its sequences, and the tokens computed of each."""
SHARED: tuple[dict[str, Cell], ...] = (
    {"target": ("graph", 1, 1), "draft": ("graph", 1, 1)},
    {"target": ("graph", 16, 1), "draft": ("graph", 16, 1)},
    {"target": ("graph", 64, 1), "draft": ("graph", 64, 1)},
    {"target": ("graph", 16, 40), "draft": ("graph", 64, 1)},
    {"target": ("graph", 16, 1), "draft": ("eager", 16, 1)},
    {"target": ("eager", 16, 1), "draft": ("eager", 16, 1)},
)
"""What two processes on one GPU compute at the same time: decoding both, the target verifying steps of 40 tokens, and with kernels that
the host launches one by one."""
CURVES: tuple[Cell, ...] = (
    *(("graph", batch, tokens) for batch in (1, 8, 32, 64, 128) for tokens in (1, 2, 4, 8)),
    *(("graph", batch, tokens) for batch, tokens in ((1, 128), (1, 512), (4, 512))),
    *(("eager", batch, 1) for batch in (1, 64)),
)
"""What each computes alone, which shows the arithmetic of decoding, of verifying proposed tokens, and of prompts."""

backends = click.option("--backend", type=click.Choice(["torch", "vllm"]), help="vLLM where it is installed.")


@click.group()
def main() -> None:
    """One part of a visit."""


def device() -> dict[str, Any]:
    """The device and the versions that the figures were measured on."""
    import torch
    import transformers

    found: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    if not torch.cuda.is_available():
        return found | {"device": "cpu"}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return found | {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "driver": driver}


def write(part: str, results: dict[str, Any]) -> None:
    """Write the results of one part, with the device and the commit."""
    about = {"bench": f"gpu-{part}", "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": _commit()}
    whole = about | device() | results
    dry = whole["device"] == "cpu"
    path = _place(part, dry)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    click.echo(path)


def _place(part: str, dry: bool) -> Path:
    return (HOME if dry else RESULTS) / f"gpu-{part}.json"


def _commit() -> str | None:
    """The commit that is measured: that of this clone, or the one that `prepare` wrote down where only the files travel."""
    written = HOME / "wheels/commit"
    if shutil.which("git") and not subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip() or None
    return written.read_text() if written.exists() else None


@main.command()
@click.option("--vllm", is_flag=True, help="vLLM as well; making its archive takes a quarter of an hour.")
def prepare(vllm: bool) -> None:
    """Fetch what the machine lacks: build/gpu_visit/wheels, and build/gpu_visit/vllm, which is carried by itself."""
    for name in ("wheels", "vllm"):
        (HOME / name).mkdir(parents=True, exist_ok=True)
    (HOME / "wheels/commit").write_text(_commit() or "")
    wheels(HOME / "wheels")
    if vllm:
        vllm_archive(HOME / "vllm/site.tar.xz", HOME)


@main.command()
def runs() -> None:
    """Whole runs of the bundled pair; their answers must be right as often as on a CPU."""
    folder = HOME / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    found = {}
    for graph in ("target", "speccot", "specreason"):
        limit, out = "4" if TINY else "100", str(folder / graph)
        found[graph] = _pipeline("run", graph, "--input", "arith", "--limit", limit, "--output", out, "--json")
    keep = ("accuracy", "wall_time_s", "problems_per_s", "failed", "chains")
    write("runs", {"runs": {graph: {name: summary.get(name) for name in keep} for graph, summary in found.items()}})


def _pipeline(*arguments: str) -> dict[str, Any]:
    """The JSON that a command of the program printed."""
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise click.ClickException(f"pipeline {arguments[0]} ended with {done.returncode}")
    return dict(json.loads(done.stdout))


@main.command()
def interference() -> None:
    """Seconds of an iteration of each model, alone and while the other one computes in another process."""
    _share("interference", "time_slices")


@main.command()
def mps() -> None:
    """The same with a CUDA MPS daemon of this user's, started for this and ended afterwards."""
    _share("mps", "mps")


def _share(part: str, sharing: str) -> None:
    batch = max(cell[1] for cell in (*CURVES, *(cell for both in SHARED for cell in both.values())))
    results: dict[str, Any] = {"sharing": sharing, "context": CONTEXT}
    with _sharing(sharing) as environment:
        children = {role: _Decoder(role, batch, environment) for role in SHAPES}
        try:
            results["together"] = [_together(children, cell) for cell in SHARED]
            if sharing == "time_slices":
                results["alone"] = {role: [_alone(child, cell) for cell in CURVES] for role, child in children.items()}
        finally:
            for child in children.values():
                child.close()
            write(part, results)


@contextmanager
def _sharing(mode: str) -> Iterator[dict[str, str]]:
    """The environment of processes that share the GPU so; with `mps` under a CUDA MPS daemon of this user's, which ends afterwards."""
    if mode == "time_slices":
        yield dict(os.environ)
        return
    if shutil.which("nvidia-cuda-mps-control") is None:
        raise click.ClickException("nvidia-cuda-mps-control is not on this machine")
    pipes = tempfile.mkdtemp(prefix="mps-")
    environment = os.environ | dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), pipes)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
    try:
        yield environment
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment)
        for log in Path(pipes).glob("*.log"):
            click.echo(f"{log.name}: {log.read_text()[-1500:]}")


def _together(children: dict[str, "_Decoder"], cell: dict[str, Cell]) -> dict[str, Any]:
    """Seconds of an iteration of both roles, each alone and both at once."""
    row: dict[str, Any] = {role: _named(cell[role]) for role in children}
    for role, child in children.items():
        row[role] |= {"alone": _alone(child, cell[role])["seconds"]}
    for child in children.values():
        child.begin(0.2 if TINY else 3.0)
    for role, child in children.items():
        row[role]["together"] = child.end()
    print(json.dumps(row), flush=True)
    return row


def _alone(child: "_Decoder", cell: Cell) -> dict[str, Any]:
    child.prepare(cell)
    child.begin(0.1 if TINY else 1.0)
    return _named(cell) | {"seconds": child.end()}


def _named(cell: Cell) -> dict[str, Any]:
    return dict(zip(("mode", "batch", "tokens"), cell, strict=True))


class _Decoder:
    """A process of bench/gpu/decoder.py."""

    def __init__(self, role: str, batch: int, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "bench.gpu.decoder", role, str(batch)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        self._read()

    def prepare(self, cell: Cell) -> None:
        self._ask(_named(cell))
        self._read()

    def begin(self, seconds: float) -> None:
        self._ask({"seconds": seconds})

    def end(self) -> dict[str, float]:
        return dict(json.loads(self._read()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise click.ClickException(f"a decoding process ended with {self._process.wait()}")
        return line.strip()


@main.command()
@backends
def ratio(backend: str) -> None:
    """SpecReason over its target alone, in time slices."""
    _ratio("time_slices", backend)


@main.command("ratio-mps")
@backends
def ratio_mps(backend: str) -> None:
    """The same under a CUDA MPS daemon."""
    _ratio("mps", backend)


def _ratio(sharing: str, backend: str | None) -> None:
    name = f"ratio-{sharing}"
    shutil.rmtree(HOME / name, ignore_errors=True)
    used = backend or ("torch" if find_spec("vllm") is None or TINY else "vllm")

    def written(rows: Sequence[Mapping[str, Any]]) -> None:
        write(name, {"backend": used, "sharing": sharing, "rows": rows})

    with _sharing(sharing) as environment, patch.dict(os.environ, environment):
        measure(HOME, name, used, sharing == "time_slices", written)
    there = {each: path for each in ("time_slices", "mps") if (path := _place(f"ratio-{each}", TINY)).exists()}
    click.echo(table({each: json.loads(path.read_bytes())["rows"] for each, path in there.items()}))


@main.command()
def vllm() -> None:
    """Solve problems with vLLM."""
    out = HOME / "vllm-run"
    shutil.rmtree(out, ignore_errors=True)
    # A share for each of the two engines on the card; without one it is said to have no effect.
    files = ["run", "graphs/speccot.yaml", "--engines", "graphs/engines/tiny-vllm.yaml", "--input", "datasets/arith/test.parquet"]
    for term in ("gpu_memory_utilization=0.2", "dtype=bfloat16", "enforce_eager=true"):
        files += ["--set", f"engines.*.args.{term}"]
    found = _pipeline(*files, "--limit", "64", "--output", str(out), "--json")
    facts = json.loads((out / "run.json").read_text())["engine_facts"]
    write("vllm", {name: found.get(name) for name in ("accuracy", "wall_time_s", "problems_per_s", "failed")} | {"facts": facts})


if __name__ == "__main__":
    main()
