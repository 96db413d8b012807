"""Measures on a machine with a GPU what the simulation assumes; started by bench/gpu_visit.sh, one part at a time.

    python bench/gpu_visit.py interference    iterations of two processes on one GPU, alone and together, in time slices
    python bench/gpu_visit.py mps             the same under a CUDA MPS daemon
    python bench/gpu_visit.py contract        the tests of the torch engine, on CUDA
    python bench/gpu_visit.py runs            whole runs of the bundled pair on CUDA, with their answers
    python bench/gpu_visit.py map             cells of bench/frontier.md with random weights of real shapes
    python bench/gpu_visit.py vllm            a run on vLLM's CUDA build, and what it says of itself
    python bench/gpu_visit.py vllm-contract   the tests of engine vllm, there

Each part writes bench/results/gpu-PART.json, which says on which device, with which driver and versions. Without a GPU every part
runs on the CPU with toy shapes (`--tiny`), which shows that it works and measures nothing.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

ROOT = Path(__file__).parent.parent
HOME, RESULTS = ROOT / "build/gpu_visit", ROOT / "bench/results"
COMMAND = (sys.executable, "-c", "from pipeline.cli.main import main; main()")
PIP = (sys.executable, "-m", "pip")
PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of Python that the machine may have."""
CARRIED = """
    msgspec duckdb numba llvmlite peft anyio click filelock httpx2 httpcore2 hypothesis latex2sympy2-extended math-verify
    antlr4-python3-runtime nvidia-ml-py psutil plotly narwhals rich markdown-it-py mdurl pygments pytest-timeout pytest-xdist execnet
    sortedcontainers accelerate
""".split()
"""Packages that the program or its tests need and that a machine with torch may lack."""
BROUGHT = re.compile(r"torch|triton|nvidia-|cuda-|transformers==|numpy==")
"""Packages that vLLM asks for and that a machine with torch has, or has no use for: its own build of torch stays."""
PART_BYTES = 60 << 20
"""Size of the pieces in which a wheel is carried that is larger than one transfer."""
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
SHAPES = {"target": (5120, 64, 40, 8, 27648), "draft": (1536, 28, 12, 2, 8960)}
"""`SIZES` of QwQ-32B and of R1-Distill-Qwen-1.5B, by their config.json."""
TINY = (64, 2, 4, 2, 128)
BATCHES, CONTEXT, ITERATIONS = (1, 16, 64), 1024, 40


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
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    about = {"bench": f"gpu-{part}", "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": git.stdout.strip() or None}
    whole = about | device() | results
    dry = whole["device"] == "cpu"
    path = (HOME if dry else RESULTS) / f"gpu-{part}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    click.echo(f"{path}\n{json.dumps(results)[:2000]}")


@main.command()
@click.option("--vllm", help="Version of vLLM to carry as well, in pieces.")
def prepare(vllm: str | None) -> None:
    """Fetch the wheels that the machine may lack, for every Python that it may have."""
    wheels = HOME / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for python in PYTHONS:
        _download(wheels, python, _pinned(CARRIED))
    if vllm:
        _download(HOME / "vllm", PYTHONS[-1], [each for each in _resolved(f"vllm=={vllm}", PYTHONS[-1]) if not BROUGHT.match(each)])
        for wheel in (HOME / "vllm").glob("vllm-*.whl"):
            _split(wheel)
    size = sum(path.stat().st_size for path in wheels.iterdir()) >> 20
    click.echo(f"{len(list(wheels.iterdir()))} wheels, {size} MiB in {wheels}")


def _pinned(names: Iterable[str]) -> list[str]:
    """The packages in the versions that are installed here; those that are not are left out."""
    found = []
    for name in names:
        try:
            found.append(f"{name}=={distribution(name).version}")
        except PackageNotFoundError:
            click.echo(f"{name} is not installed here and is left out", err=True)
    return found


def _download(folder: Path, python: str, requirements: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [*PIP, "download", "-qq", "--no-deps", *_platform(python)]
    for requirement in requirements:
        done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True)
        if done.returncode:
            click.echo(f"Python {python}: {requirement}: {done.stderr.strip().splitlines()[-1:]}", err=True)


def _resolved(requirement: str, python: str) -> list[str]:
    """`requirement` and all that it needs, in the versions that pip would install for that Python; of them only metadata are fetched."""
    report = HOME / "resolved.json"
    command = [*PIP, "install", "-qq", "--dry-run", "--ignore-installed", "--report", str(report), *_platform(python)]
    subprocess.run([*command, "--target", str(HOME / "nowhere"), requirement], check=True)
    found = (each["metadata"] for each in json.loads(report.read_text())["install"])
    return [f"{each['name']}=={each['version']}" for each in found]


def _platform(python: str) -> list[str]:
    tags = (*(f"manylinux_2_{minor}" for minor in range(35, 4, -1)), "manylinux2014")
    words = [word for tag in tags for word in ("--platform", f"{tag}_x86_64")]
    return ["--only-binary=:all:", "--python-version", python, *words]


def _split(wheel: Path) -> None:
    """Cut `wheel` into pieces NAME.part00, NAME.part01, ..., and remove it."""
    with wheel.open("rb") as whole:
        for number, piece in enumerate(iter(lambda: whole.read(PART_BYTES), b"")):
            wheel.with_name(f"{wheel.name}.part{number:02}").write_bytes(piece)
    wheel.unlink()


@main.command()
def missing() -> None:
    """Print the carried packages that this interpreter lacks."""
    for name in filter(_lacks, CARRIED):
        normal = re.sub(r"[-_.]+", "_", name).lower()
        if any(path.name.lower().startswith(f"{normal}-") for path in (HOME / "wheels").glob("*.whl")):
            click.echo(name)


@main.command()
def contract() -> None:
    """The contract tests and those of the torch engine; its device is CUDA where there is one."""
    _test("contract", "torch", "tests/engines/test_contract.py", "tests/engines/test_torch.py", "tests/engines/test_torch_sampling.py")


def _test(part: str, marker: str, *files: str) -> None:
    """Run the tests of these files that are marked so, and write how many there were and which failed."""
    report = HOME / f"{part}.xml"
    HOME.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", marker, "-p", "no:cacheprovider", f"--junitxml={report}", *files]
    done = subprocess.run(command, cwd=ROOT)
    if not report.exists():
        raise click.ClickException(f"pytest ended with {done.returncode} and left no report")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = {f"{case.get('classname')}::{case.get('name')}": _first_line(case) for case in cases if _first_line(case)}
    write(part, {"tests": len(cases), "failed": failed})


def _first_line(case: ElementTree.Element) -> str:
    found = case.find("failure")
    found = case.find("error") if found is None else found
    return "" if found is None else (found.get("message") or "failed").splitlines()[0]


@main.command()
@click.option("--limit", default=100, show_default=True)
def runs(limit: int) -> None:
    """Whole runs of the bundled pair; their answers must be right as often as on a CPU."""
    folder = HOME / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    found = {}
    for graph in ("target", "speccot", "specreason"):
        out = folder / graph
        files = ["run", f"graphs/{graph}.yaml", "--input", "datasets/arith/test.parquet", "--limit", str(limit), "--output", str(out)]
        found[graph] = _pipeline(*files, "--json")
    keep = ("accuracy", "wall_time_s", "problems_per_s", "failed", "chains")
    write("runs", {"runs": {graph: {name: summary.get(name) for name in keep} for graph, summary in found.items()}})


def _pipeline(*arguments: str) -> dict[str, Any]:
    """The JSON that a command of the program printed."""
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise click.ClickException(f"pipeline {arguments[0]} ended with {done.returncode}")
    return dict(json.loads(done.stdout))


@main.command()
@click.option("--tiny", is_flag=True, help="Toy shapes.")
def interference(tiny: bool) -> None:
    """Seconds of an iteration of each model, alone and while the other one computes in another process."""
    _share("interference", "time_slices", tiny)


@main.command()
@click.option("--tiny", is_flag=True, help="Toy shapes.")
def mps(tiny: bool) -> None:
    """The same with a CUDA MPS daemon of this user's, started for this and ended afterwards."""
    _share("mps", "mps", tiny)


def _share(part: str, sharing: str, tiny: bool) -> None:
    environment = dict(os.environ)
    mps = sharing == "mps" and shutil.which("nvidia-cuda-mps-control") is not None
    if mps:
        environment |= dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), str(HOME / "mps"))
        (HOME / "mps").mkdir(parents=True, exist_ok=True)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
    try:
        rows = [_together(batch, tiny, environment) for batch in BATCHES]
    finally:
        if mps:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment)
    write(part, {"sharing": sharing if mps else "time_slices", "context": CONTEXT, "rows": rows})


def _together(batch: int, tiny: bool, environment: dict[str, str]) -> dict[str, Any]:
    """The median iteration of both roles: draft alone, target alone, both at once."""
    row: dict[str, Any] = {"batch": batch}
    children = {role: _Decoder(role, batch, tiny, environment) for role in SHAPES}
    try:
        for role, child in children.items():
            row[f"{role}_alone_s"] = child.iterate()
        for child in children.values():
            child.begin()
        row |= {f"{role}_together_s": child.end() for role, child in children.items()}
    finally:
        for child in children.values():
            child.close()
    return row


class _Decoder:
    """A process that decodes with one model and says how long its iterations take."""

    def __init__(self, role: str, batch: int, tiny: bool, environment: dict[str, str]) -> None:
        command = [sys.executable, __file__, "decode", role, "--batch", str(batch), *(["--tiny"] if tiny else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        self._read()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> float:
        return float(self._read())

    def iterate(self) -> float:
        self.begin()
        return self.end()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise click.ClickException(f"a decoding process ended with {self._process.wait()}")
        return line.strip()


@main.command(hidden=True)
@click.argument("role")
@click.option("--batch", type=int, required=True)
@click.option("--tiny", is_flag=True)
def decode(role: str, batch: int, tiny: bool) -> None:
    """Decode whenever a line comes; print the median seconds of an iteration."""
    import torch
    from transformers import AutoModelForCausalLM

    where = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if where == "cuda" else torch.float32
    with torch.device(where), torch.no_grad():
        model = AutoModelForCausalLM.from_config(_config(role, tiny), dtype=dtype).eval()
        context = 64 if tiny else CONTEXT
        cache = model(input_ids=torch.full((batch, context), 65), use_cache=True).past_key_values
        ids = torch.full((batch, 1), 66)

        def iteration() -> float:
            started = time.perf_counter()
            model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache.crop(-1)
            if where == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - started

        for _ in range(5):
            iteration()
        print("ready", flush=True)
        for _ in sys.stdin:
            # The slower model decides how long both compute: the faster one continues for as many seconds at most.
            seconds, until = [iteration() for _ in range(ITERATIONS // 4)], time.monotonic() + (0.2 if tiny else 4.0)
            while time.monotonic() < until:
                seconds.append(iteration())
            print(statistics.median(seconds), flush=True)


def _config(role: str, tiny: bool) -> Any:
    from transformers import Qwen2Config

    sizes = dict(zip(SIZES, TINY if tiny else SHAPES[role], strict=True))
    return Qwen2Config(**sizes, vocab_size=1024 if tiny else 152064, max_position_embeddings=32768, tie_word_embeddings=False)


@main.command("map")
@click.option("--tiny", is_flag=True, help="Toy shapes.")
@click.option("--batch-sizes", default="1,8,32,64", show_default=True)
@click.option("--tokens", default=400, show_default=True, help="Token budget of a thought.")
def cells(tiny: bool, batch_sizes: str, tokens: int) -> None:
    """The target alone, SpecReason and `auto` on the torch engine, random weights: throughput is real, text and answers are noise."""
    engines = HOME / f"map{'-tiny' if tiny else ''}.yaml"
    seqs = max(map(int, batch_sizes.split(",")))
    same = f"backend: torch, load_format: dummy, max_num_seqs: {seqs}, max_in_flight: {seqs}, max_model_len: 2048"
    lines = [f"{role}: {{{same}, model: {_shape_folder(role, tiny)}}}" for role in SHAPES]
    engines.write_text("\n".join(lines) + "\n")
    out = HOME / f"map{'-tiny' if tiny else ''}"
    shutil.rmtree(out, ignore_errors=True)
    settings = [word for each in (f"token_budget={tokens}", "step_tokens=50", "answer_tokens=8", "threshold=4") for word in ("--set", each)]
    command = ["sweep", "graphs/specreason.yaml", "--engines", str(engines), "--batch-size", batch_sizes, "--repeats", "1", *settings]
    command += ["--vary", "speculate=always,auto", "--input", "datasets/arith/test.parquet", "--limit", str(2 * seqs), "--output", str(out)]
    done = subprocess.run([*COMMAND, *command], cwd=ROOT)
    points = _points(out / "points.parquet")
    write("map", {"tokens": tokens, "exit_code": done.returncode, "points": points})


def _points(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    keep = ("system", "batch_size", "chains", "failed", "wall_s", "problems_per_s", "kept_tokens_per_s", "acceptance_rate")
    return [{name: row[name] for name in keep} for row in pq.read_table(path).to_pylist()] if path.exists() else []


def _shape_folder(role: str, tiny: bool) -> Path:
    """A folder with the configuration of a role's shape and the bundled tokenizer; there are no weights."""
    folder = HOME / f"shape-{role}{'-tiny' if tiny else ''}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / f"pipeline/models/tiny-{role}", folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = _config(role, tiny)
    config.architectures, config.dtype = ["Qwen2ForCausalLM"], "bfloat16"
    config.save_pretrained(folder)
    return folder


@main.command()
def vllm() -> None:
    """Join and install the carried wheels of vLLM and of what it needs, then solve problems with it."""
    _install_vllm()
    out = HOME / "vllm-run"
    shutil.rmtree(out, ignore_errors=True)
    # A share for each of the two engines on the card; without one it is said to have no effect.
    files = ["run", "graphs/speccot.yaml", "--engines", "graphs/engines/tiny-vllm.yaml", "--input", "datasets/arith/test.parquet"]
    files += ["--set", "engines.*.gpu_memory_utilization=0.2"]
    found = _pipeline(*files, "--limit", "64", "--output", str(out), "--json")
    facts = json.loads((out / "run.json").read_text())["engine_facts"]
    write("vllm", {name: found.get(name) for name in ("accuracy", "wall_time_s", "problems_per_s", "failed")} | {"facts": facts})


@main.command("vllm-contract")
def vllm_contract() -> None:
    """The tests of engine vllm, which start engines on the GPU where there is one."""
    _install_vllm()
    files = ("tests/engines/test_contract.py", "tests/engines/test_vllm.py", "tests/engines/test_vllm_terms.py")
    _test("vllm-contract", "vllm", *files, "tests/engines/test_vllm_worker.py")


def _install_vllm() -> None:
    """Join the pieces of vLLM's wheel and install those of the carried wheels whose packages this interpreter lacks."""
    for first in (HOME / "vllm").glob("*.part00"):
        pieces = sorted(first.parent.glob(f"{first.name.removesuffix('00')}*"))
        with first.with_suffix("").open("wb") as whole:
            for piece in pieces:
                whole.write(piece.read_bytes())
    wheels = [wheel for wheel in (HOME / "vllm").glob("*.whl") if _lacks(wheel.name.partition("-")[0])]
    if wheels:
        subprocess.run([*PIP, "install", "-q", "--no-index", "--no-deps", *map(str, wheels)], check=True)


def _lacks(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return True
    return False


if __name__ == "__main__":
    main()
