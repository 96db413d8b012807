"""What faults do to a run, and what it costs that they do nothing.

    python bench/reliability.py

Injects faults into runs on simulated and on real engines, takes each up until it is done, and compares it with a run that
nothing disturbed; puts batch sizes beside each other; and writes bench/reliability.md, with the figures that
`bench/memory.py` and `bench/durability.py` left in bench/results.
"""

import shlex
import shutil
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import psutil
import pyarrow.parquet as pq

from pipeline.analysis.quality.invariance import Invariance, invariance
from pipeline.engines.sim.text import sim_answer
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.trace.run_file import RunFile

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import drills  # noqa: E402

SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
ARITH = ROOT / "datasets/arith/test.parquet"
SPECCOT = ROOT / "graphs/speccot.yaml"
RESULTS = ROOT / "bench/results"


class Bench:
    """Runs in one folder; what they are compared with is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        problems = folder / "simulated.jsonl"
        texts = [f"Problem number {i}?" for i in range(500)]
        problems.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
        self.sim = ["--input", str(problems), "--engines", str(SIM)]
        self.torch = ["--input", str(ARITH), "--limit", "120"]
        self.whole_sim = self.solve("sim", RunOptions(graph=SPECCOT, engines=SIM, input=problems))
        self.whole_torch = self.solve("torch", RunOptions(graph=SPECCOT, input=ARITH, limit=120))

    def solve(self, name: str, options: RunOptions) -> Path:
        """A whole run in process."""
        click.echo(f"  {name}", err=True)
        result = run(msgspec.structs.replace(options, output=self.folder / name))
        if result.exit_code:
            raise click.ClickException(f"{name}: {result.error}")
        return result.folder

    def struck(self, fault: str, whole: Path, arguments: list[str], strikes: int, longest_s: float, number: int) -> drills.Toll:
        """Runs that are hit by a signal at random moments, and taken up each time."""
        click.echo(f"  {fault}", err=True)
        folder = self.folder / fault.replace(" ", "-").replace(",", "")
        folder.mkdir()
        return drills.campaign(
            fault, lambda out: ["run", str(SPECCOT), *arguments, "--output", str(out)], folder, whole, strikes, longest_s, number
        )

    def failing(self, fault: str, *settings: str) -> drills.Toll:
        """A run whose simulated draft fails as it is told."""
        name = fault.replace(" ", "-").replace(",", "")
        problems, given = Path(self.sim[1]), tuple(f"engines.draft.{setting}" for setting in settings)
        out = self.solve(name, RunOptions(graph=SPECCOT, engines=SIM, input=problems, settings=given))
        errors = pq.read_table(out / "calls", columns=["error_type"]).column(0)
        restarts = RunFile.read(out).engine_statistics["draft"].restarts
        return drills.toll(fault, restarts or len(errors) - errors.null_count, out, self.whole_sim)

    def killed_engines(self, kills: int) -> drills.Toll:
        """A run on real models whose engine processes are killed one after the other."""
        click.echo("  engine processes", err=True)
        out = self.folder / "torch-engines"
        limits = [argument for role in ("draft", "target") for argument in ("--set", f"engines.{role}.max_restarts={kills}")]
        command = drills.Command(["run", str(SPECCOT), *self.torch, *limits, "--output", str(out)], out.with_suffix(".log"))
        killed = sum(self._kill_one(command, out) for _ in range(kills))
        command.process.join()
        command.close()
        return drills.toll("SIGKILL of an engine process, torch", killed, out, self.whole_torch)

    @staticmethod
    def _kill_one(command: drills.Command, out: Path) -> bool:
        """Once more is written, one engine process goes; has one?"""
        size = _size(out)
        while not command.over and _size(out) < size + 20_000:
            command.process.join(0.01)
        engines = [child for child in command.children() if "torch_worker" in " ".join(child.cmdline())]
        for engine in engines[:1]:
            engine.kill()
        return bool(engines)


def _size(run: Path) -> int:
    return sum(path.stat().st_size for path in run.glob("calls/wal-*"))


def faults(bench: Bench) -> Iterator[drills.Toll]:
    """Every kind of fault."""
    yield bench.struck("SIGKILL, simulated engines", bench.whole_sim, bench.sim, 100, 0.8, signal.SIGKILL)
    yield bench.struck("SIGINT, simulated engines", bench.whole_sim, bench.sim, 20, 0.8, signal.SIGINT)
    yield bench.failing("engine dies, simulated", "faults.dies_after_calls=400", "max_restarts=1000")
    yield bench.failing("engine hangs, simulated", "faults.hangs_after_calls=600", "max_restarts=1000", "timeout_s=20")
    yield bench.failing("garbage, simulated", "faults.garbage_share=0.05", "max_retries=20")
    yield bench.struck("SIGKILL, torch", bench.whole_torch, bench.torch, 10, 6.0, signal.SIGKILL)
    yield bench.killed_engines(4)


def batches(bench: Bench, engines: Path | None) -> Invariance:
    """The same problems at batch size 1 and 32."""
    name = engines.stem if engines else "tiny"
    options = RunOptions(graph=SPECCOT, input=ARITH, limit=100, engines=engines)
    pair = [bench.solve(f"{name}-batch-{size}", msgspec.structs.replace(options, batch_size=size)) for size in (1, 32)]
    return invariance(*pair)


def faults_part(tolls: list[drills.Toll]) -> Iterator[str]:
    yield "## Faults"
    yield (
        "A struck run is taken up until it is done, then compared with one that nothing disturbed: a chain is changed when its answer's "
        "text or its end differs. Real models may round differently in other batches; on simulated engines nothing may differ. Resume: "
        "median seconds from the start of the process until chains could start, engines loaded."
    )
    head = "| fault | injected | chains | lost | doubled | changed | processes | resume s | rewritten KiB |"
    rows = [_fault_row(toll) for toll in tolls]
    yield "\n".join([head, "|---|---|---|---|---|---|---|---|---|", *rows])


def _fault_row(toll: drills.Toll) -> str:
    resume = f"{statistics.median(toll.resume_s):.2f}" if toll.resume_s else ""
    counts = f"{toll.faults} | {toll.chains} | {toll.lost} | {toll.doubled} | {toll.changed} | {toll.sessions}"
    return f"| {toll.fault} | {counts} | {resume} | {toll.rewritten_bytes / 1024:,.0f} |"


def batches_part(found: dict[str, Invariance]) -> Iterator[str]:
    yield "## Do answers depend on the batch?"
    yield "SpecCoT at temperature 0.6, batch size 1 against 32 (`pipeline compare --invariance`). Simulated: never, by a property test."
    head = "| engines | chains | equal to the last token | 95 % interval | same answer | accuracy | difference |"
    yield "\n".join([head, "|---|---|---|---|---|---|---|", *(_batches_row(name, each) for name, each in found.items())])


def _batches_row(name: str, found: Invariance) -> str:
    within, gain = found.equal_interval, found.accuracy_difference
    one, other = (f"{share:.1%}" if share is not None else "-" for share in found.accuracy)
    difference = f"{gain.value:+.1%} [{gain.low:+.1%}, {gain.high:+.1%}]" if gain.value is not None else "-"
    return (
        f"| {name} | {found.chains} | {found.equal} | {within.low:.1%} to {within.high:.1%} | {found.equal_answers} | "
        f"{one} and {other} | {difference} |"
    )


def memory_part(measured: dict[str, Any]) -> Iterator[str]:
    yield "## Memory against rows"
    yield "Peak resident memory of `pipeline run` on simulated engines that cost no time, trace and grading on (`python bench/memory.py`)."
    rows = [f"| {r['graph']} | {r['rows']:,} | {r['peak_mib']:,.0f} | {r['cpu_us_per_problem']:,.0f} |" for r in measured["results"]]
    yield "\n".join(["| graph | problems | peak MiB | CPU us a problem |", "|---|---|---|---|", *rows])


def durability_part(measured: dict[str, Any]) -> Iterator[str]:
    yield "## What durability costs"
    ratios = [each["ratio"] for each in measured["runs"]]
    yield (
        f"Problems per second of a torch run with the write-ahead file over one without, by round (`python bench/durability.py`): "
        f"{', '.join(f'{ratio:.3f}' for ratio in ratios)}; median **{statistics.median(ratios):.3f}** (aim 0.97)."
    )


def part(name: str, show: Callable[[dict[str, Any]], Iterator[str]]) -> list[str]:
    """A section over figures that another bench left, if it did."""
    path = RESULTS / f"{name}.json"
    return list(show(msgspec.json.decode(path.read_bytes()))) if path.exists() else [f"`bench/{name}.py` was not run."]


@click.command()
@click.option("--vllm/--no-vllm", default=True, show_default=True, help="With batch sizes on vLLM.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/reliability", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/reliability.md", show_default=True)
def main(vllm: bool, folder: Path, output: Path) -> None:
    """Inject the faults and write the page."""
    shutil.rmtree(folder, ignore_errors=True)
    bench = Bench(folder)
    tolls = list(faults(bench))
    found = {"torch": batches(bench, None)}
    if vllm:
        found["vllm"] = batches(bench, ROOT / "graphs/engines/tiny-vllm.yaml")
    card = RunFile.read(bench.whole_torch)
    about = f"{psutil.cpu_count()} cores of {card.host.processor}; " + ", ".join(f"{k} {v}" for k, v in card.versions.items())
    parts = [f"`{shlex.join(['python', 'bench/reliability.py', *sys.argv[1:]])}`", "# Faults, memory, and what does not change", about]
    parts += [*faults_part(tolls), *batches_part(found), *part("memory", memory_part), *part("durability", durability_part)]
    output.write_text("\n\n".join(parts) + "\n")
    click.echo(f"{output}: {sum(toll.faults for toll in tolls)} faults", err=True)


if __name__ == "__main__":
    main()
