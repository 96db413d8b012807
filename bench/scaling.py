"""Where does speculation stop paying? Throughput by batch size: the target alone, SpecCoT, SpecReason; pipelined and in lockstep.

    python bench/scaling.py

Three sweeps: the bundled pair on the torch engine (measured; `--problems`, `--repeats`), two H100 and one H200 (simulated). Each goes to
build/scaling/NAME and goes on there when it is started again, so that points that are finished are not run twice. Writes
bench/scaling.md and its pictures (they need Chromium, which kaleido drives), and bench/results/scaling.json.
"""

from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
from calibration import TABLE_6
from kept_runs import whole
from msgspec import Struct, structs
from recording import Recording, go_on
from tables import origin

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.tables import markdown_table
from pipeline.analysis.points import Point, crossing, curves, read_points
from pipeline.analysis.sweep_tables import crossings, sweep_tables
from pipeline.engines.sim.text import sim_answer
from pipeline.report.figures.runs import over_target, throughput
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
    """One sweep."""

    name: str
    title: str
    about: str
    engines: Path | None = None
    settings: tuple[str, ...] = ()
    simulated: bool


SETUPS = (
    Setup(
        name="torch",
        title="Torch engine: measured",
        about="The bundled pair (0.12 and 1.6 million parameters) on this machine, a core each. The ranges tell how quiet the machine was.",
        settings=tuple(f"engines.{role}.{name}=128" for role in ("draft", "target") for name in WIDE),
        simulated=False,
    ),
    Setup(
        name="sim-2xh100",
        title="Two H100: simulated",
        about="QwQ-32B and R1-Distill-Qwen-1.5B, both over both cards (graphs/engines/sim-2xh100.yaml).",
        engines=ROOT / "graphs/engines/sim-2xh100.yaml",
        simulated=True,
    ),
    Setup(
        name="sim-1xh200",
        title="One H200: simulated",
        about="The same pair on one card (graphs/engines/sim-1xh200.yaml).",
        engines=ROOT / "graphs/engines/sim-1xh200.yaml",
        simulated=True,
    ),
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


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def pictures(setup: Setup, points: list[Point]) -> Iterator[str]:
    """Draw the two curves; the lines that show them."""
    found = curves(points)
    for name, figure in (("throughput", throughput(found)), ("over-target", over_target(found))):
        path = ROOT / f"bench/scaling/{setup.name}-{name}.png"
        path.parent.mkdir(exist_ok=True)
        figure.update_layout(legend={"font": {"size": 11}})
        figure.write_image(path, width=900, height=460, scale=1.5)
        yield f"![{setup.title}: {name.replace('-', ' ')}](scaling/{path.name})"


def section(setup: Setup, points: list[Point]) -> Iterator[str]:
    """One setup: what it is, where the curves cross, pictures, tables."""
    chains, repeats = points[0].chains, 1 + max(point.repeat for point in points)
    runs = "simulated, so one run a point" if setup.simulated else f"{repeats} interleaved runs a point, in opposite orders"
    yield f"## {setup.title}"
    yield f"{setup.about} {chains} problems, {runs}."
    yield "\n".join(f"- {sentence}" for sentence in crossings(points))
    yield "\n\n".join(pictures(setup, points))
    yield from map(markdown_table, sweep_tables(points))


def papers(sweeps: dict[str, list[Point]]) -> Table:
    """SpecCoT's own scaling beside ours."""
    ours = curves(sweeps["sim-2xh100"])["speccot candidates=5, pipelined"]
    alone = curves(sweeps["sim-2xh100"])["target"]
    where = crossing(ours, alone)
    first = ours[1][0].wall_s
    rows = tuple(
        (
            str(size),
            f"{TABLE_6[1][0] / wall:.2f}",
            f"{first / ours[size][0].wall_s:.2f}",
            "not printed",
            f"{where.ratios[size].median:.2f}" if where else "-",
        )
        for size, (wall, _) in TABLE_6.items()
    )
    columns = (
        "batch size",
        "SpecCoT's speed-up over batch size 1",
        "ours, simulated",
        "SpecCoT's over the target alone",
        "ours, simulated",
    )
    note = (
        "SpecCoT prints wall times of its own system on two H100 for these batch sizes (table 6) and none of the target alone at the same "
        "batch size; SpecReason and SCoT print latencies of one problem at a time. See calibration.md for how far the two are apart."
    )
    return Table("What the papers report", columns, rows, note)


def verdict(sweeps: dict[str, list[Point]]) -> Iterator[str]:
    """Where speculation stops paying, in one line a setup."""
    for setup in SETUPS:
        found = curves(sweeps[setup.name])
        name, *others = found
        best = {size: [] for size in BATCH_SIZES}  # type: dict[int, list[tuple[float, str]]]
        for other in others:
            where = crossing(found[other], found[name])
            for size, ratio in where.ratios.items() if where else ():
                best[size].append((ratio.median, other))
        parts = [f"{max(each)[0]:.2f} at {size} ({max(each)[1]})" for size, each in best.items() if each]
        yield f"- {setup.title}: the best system over the target alone is {', '.join(parts)}."


def write(sweeps: dict[str, list[Point]], recording: Recording) -> None:
    """bench/scaling.md and the points as JSON."""
    parts = [
        "# Where does speculation stop paying?",
        f"{origin(recording.measured)[:-1]}. Throughput is problems per second, the tail included; the opponent is the target alone at "
        "the same batch size, on the same engines and problems.",
        "\n".join(verdict(sweeps)),
        markdown_table(papers(sweeps)),
    ]
    for setup in SETUPS:
        parts += section(setup, sweeps[setup.name])
    points = {name: [structs.asdict(point) for point in found] for name, found in sweeps.items()}
    results = {"bench": "scaling", "verdict": list(verdict(sweeps)), "points": points}
    recording.write(ROOT / "bench/results/scaling.json", results, "\n\n".join(parts) + "\n")


@click.command()
@click.option("--problems", default=160, show_default=True, help="Of the measured sweep.")
@click.option("--repeats", default=2, show_default=True, help="Of the measured sweep.")
@click.option("--as-is", is_flag=True, help="Run nothing; write what is there.")
@click.option("--only", type=click.Choice([setup.name for setup in SETUPS]), help="Run this sweep and write nothing.")
def main(problems: int, repeats: int, as_is: bool, only: str | None) -> None:
    """Run what is missing, then write the page."""
    recording = go_on(__file__, BUILD)
    if as_is:
        write({setup.name: read_points(BUILD / setup.name / "points.parquet") for setup in SETUPS}, recording)
        return
    sweeps = {setup.name: run_sweep(setup, problems, repeats) for setup in SETUPS if only in (None, setup.name)}
    if only is None:
        write(sweeps, recording)


if __name__ == "__main__":
    main()
