"""Where does speculation stop paying? Throughput by batch size: the target alone, SpecCoT, SpecReason; pipelined and in lockstep.

    python bench/scaling.py

Three sweeps: the bundled pair on the torch engine (measured; `--problems`, `--repeats`), two H100 and one H200 (simulated). Each is kept in
build/scaling/NAME and continued when it is started again, so that finished points are not run twice. Writes bench/results/scaling.json,
and from that bench/scaling.md and its charts (they need Chromium, which kaleido drives).
"""

from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import scaling_page
from kept_runs import whole
from msgspec import Struct, structs
from recording import go_on, results_of

from pipeline.analysis.points import Point
from pipeline.engines.sim.text import sim_answer
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build/scaling"
BATCH_SIZES = (1, 8, 32, 64, 128)
SIMULATED_PROBLEMS = 384
WIDE = ("max_in_flight", "max_num_seqs")
"""Of the torch engines: as many as chains may live at once, so that the batch size is what is varied."""


class Setup(Struct, frozen=True, kw_only=True):
    """One sweep; scaling_page.py describes it."""

    name: str
    engines: Path | None = None
    settings: tuple[str, ...] = ()
    simulated: bool


SETUPS = (
    Setup(name="torch", settings=tuple(f"engines.{role}.{name}=128" for role in ("draft", "target") for name in WIDE), simulated=False),
    Setup(name="sim-2xh100", engines=ROOT / "graphs/engines/sim-2xh100.yaml", simulated=True),
    Setup(name="sim-1xh200", engines=ROOT / "graphs/engines/sim-1xh200.yaml", simulated=True),
)


def simulated_problems() -> Path:
    """Problems of which simulated models know the answers."""
    texts = [f"Simulated problem {i}." for i in range(SIMULATED_PROBLEMS)]
    path = BUILD / "problems.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"problem": texts, "answer": [sim_answer(text) for text in texts]}), path)
    return path


def run_sweep(setup: Setup, problems: int, repeats: int) -> list[Point]:
    """All points of one setup, those of earlier starts included."""
    options = SweepOptions(
        graphs=(ROOT / "graphs/speccot.yaml", ROOT / "graphs/specreason.yaml"),
        input=simulated_problems() if setup.simulated else ROOT / "datasets/arith/test.parquet",
        batch_sizes=BATCH_SIZES,
        schedules=("pipelined", "lockstep"),
        vary={"candidates": ("1", "5")},
        repeats=repeats,
        engines=() if setup.engines is None else (setup.engines,),
        settings=setup.settings,
        limit=None if setup.simulated else problems,
        output=BUILD / setup.name,
        resume=True,
    )
    return whole(sweep(options, Observer(tell=_say), _done), setup.name).points


def _done(number: int, planned: int, point: Point) -> None:
    _say(f"{number}/{planned}: {point.curve}, batch size {point.batch_size}, {point.wall_s:.1f} s")


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command()
@click.option("--problems", default=160, show_default=True, help="Of the measured sweep.")
@click.option("--repeats", default=2, show_default=True, help="Of the measured sweep.")
@click.option("--as-is", is_flag=True, help="Run nothing; write page and charts from bench/results/scaling.json.")
@click.option("--only", type=click.Choice([setup.name for setup in SETUPS]), help="Run this sweep and write nothing.")
def main(problems: int, repeats: int, as_is: bool, only: str | None) -> None:
    """Run what is missing, then write results, page and charts."""
    if as_is:
        results = results_of("scaling")
    else:
        recording = go_on(__file__, BUILD)
        sweeps = {setup.name: run_sweep(setup, problems, repeats) for setup in SETUPS if only in (None, setup.name)}
        if only is not None:
            return
        points = {name: [structs.asdict(point) for point in found] for name, found in sweeps.items()}
        results = recording.write(ROOT / "bench/results/scaling.json", {"bench": "scaling", "points": points})
    (ROOT / "bench/scaling.md").write_text(scaling_page.page(results))
    scaling_page.draw(results)


if __name__ == "__main__":
    main()
