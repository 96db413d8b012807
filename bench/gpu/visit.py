"""Measures on a machine with a GPU what the simulation assumes; started by bench/gpu_visit.sh, one part at a time.

    python -m bench.gpu.visit interference    iterations of two processes on one GPU, alone and together, in time slices
    python -m bench.gpu.visit mps             the same under a CUDA MPS daemon
    python -m bench.gpu.visit runs            whole runs of the bundled pair on CUDA, with their answers
    python -m bench.gpu.visit map             batch sizes on vLLM, or on the torch engine, with random weights of real shapes
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
from msgspec import Struct, structs

from bench.gpu.decoder import CONTEXT, SHAPES, TINY, config
from bench.gpu.packages import vllm_archive, wheels
from pipeline.analysis.curves import SWEEP, read_points
from pipeline.store.query import Query

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

THOUGHT_TOKENS = 40 if TINY else 400
"""Token budget of a thought of the map."""


class Calls(Struct, frozen=True):
    """The calls of one engine for one stage."""

    engine: str
    stage: str
    calls: int
    new_tokens: float
    """Mean number of tokens of a prompt that were not in the cache."""
    prefill_s: float
    """Median seconds from the start of the prefill to the first token, by the engine's clock."""
    token_s: float | None
    """Median seconds of each further token; None where there is none."""
    call_s: float
    """Median seconds from sending a request to its answer."""


CALLS = """
SELECT engine, stage, count(*) AS calls, avg(input_tokens - cached_input_tokens) AS new_tokens, median(prefill_time_s) AS prefill_s,
    median(time_per_output_token_s) AS token_s, median(e2e_latency_s) AS call_s
FROM calls GROUP BY engine, stage ORDER BY engine, stage
"""


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
    path = (HOME if dry else RESULTS) / f"gpu-{part}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    click.echo(f"{path}\n{json.dumps(results)[:2000]}")


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


def _engines(name: str, backend: str, seqs: int) -> Path:
    """An engines file of both shapes without weights, for that many sequences at once."""
    limits = f"load_format: dummy, max_num_seqs: {seqs}, max_model_len: 2048"
    own = "max_num_batched_tokens: 2048, dtype: bfloat16, gpu_memory_utilization"
    shares = {"target": f"args: {{{limits}, {own}: 0.7}}", "draft": f"args: {{{limits}, {own}: 0.15}}"}
    lines = [
        f"{role}: {{backend: {backend}, max_in_flight: {seqs}, {shares[role] if backend == 'vllm' else limits}, "
        f"model: {_shape_folder(role)}}}"
        for role in SHAPES
    ]
    path = HOME / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@main.command("map")
@click.option("--backend", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True)
@click.option("--sharing", type=click.Choice(["time_slices", "mps"]), default="time_slices", show_default=True)
@click.option("--batch-sizes", default="1,8,32,64", show_default=True)
def cells(backend: str, sharing: str, batch_sizes: str) -> None:
    """The target alone and SpecReason, with random weights of real shapes: throughput is real, text and answers are noise."""
    name = f"map-{backend}-{sharing}"
    seqs = max(map(int, batch_sizes.split(",")))
    engines, out = _engines(name, backend, seqs), HOME / name
    shutil.rmtree(out, ignore_errors=True)
    settings = (f"token_budget={THOUGHT_TOKENS}", "step_tokens=50", "answer_tokens=8", "threshold=4")
    command = ["sweep", "graphs/specreason.yaml", "--engines", str(engines), "--batch-size", batch_sizes, "--repeats", "1"]
    command += [word for each in settings for word in ("--set", each)]
    command += ["--input", "datasets/arith/test.parquet", "--limit", str(8 if TINY else 2 * seqs), "--output", str(out)]
    with _sharing(sharing) as environment:
        done = subprocess.run([*COMMAND, *command], cwd=ROOT, env=environment)
    write(name, {"backend": backend, "sharing": sharing, "tokens": THOUGHT_TOKENS, "exit_code": done.returncode, **_measured(out)})


def _measured(sweep: Path) -> dict[str, Any]:
    """The points of a sweep that were finished, and the times of the calls of each run, also of one that was not."""
    found = read_points(sweep)[""] if (sweep / SWEEP).exists() else []
    points = [{"system": each.label.system, "batch_size": each.label.batch_size, **each.run.decided()} for each in found]
    return {"points": points, "calls": {run.name: _calls(run) for run in sorted((sweep / "runs").iterdir())}}


def _calls(run: Path) -> list[dict[str, Any]]:
    """By engine and stage: number of calls, tokens of the prompt that were not in the cache, and medians of the engine's own times."""
    with Query(run) as query:
        return [structs.asdict(row) for row in query.rows(CALLS, Calls)]


def _shape_folder(role: str) -> Path:
    """A folder with the configuration of a role's shape and the bundled tokenizer; there are no weights."""
    folder = HOME / f"shape-{role}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / f"pipeline/models/tiny-{role}", folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    shape = config(role)
    shape.architectures, shape.dtype = ["Qwen2ForCausalLM"], "bfloat16"
    shape.save_pretrained(folder)
    return folder


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
