"""How far are the simulated engines from what the papers measured, and the fitted ones from what was measured here?

    python -m bench.calibration

Published: the speeds of single models in SpecCoT's tables 1 and 4 give the two figures of the simulated A100s that are fitted,
here again, and everything else that the papers print of these machines is simulated and set next to it. So are printed speed-ups by
token-level speculation (bench/token_level.py), and how two processes shared a card (bench/sharing.py): `--sections` writes these two
alone. Measured here: with
--measured FOLDER, which `bench/scaling.py` leaves, simulated engines are fitted to two points of its sweep on the torch engine and
predict the others, once with the recorded text and once with text of their own. Writes bench/calibration.md and
bench/results/calibration.json.
"""

import json
import math
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from msgspec import Struct, structs
from scipy.optimize import least_squares

from bench import sharing, token_level
from bench.figures import KEPT, RESULTS, ROOT, Results, begin, origin, page_digest, results_of
from bench.runs import swept, whole, write_problems
from bench.scaling import TABLE_6, TABLE_6_PROBLEMS
from pipeline.analysis.curves import Measured, curves, ranged, read_points, spread
from pipeline.analysis.facts import sentence, stated
from pipeline.analysis.summary import summarize
from pipeline.analysis.tables import Table, markdown_table
from pipeline.calibration.calibrate import calibrate, engines_file, fit_lines
from pipeline.calibration.recorded import CORRELATION, accuracy_for
from pipeline.engines.sim.roofline import Roofline
from pipeline.engines.sim.spec import SimSpec
from pipeline.graph.files import setting
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.run.run import run
from pipeline.study.systems import Matrix

ENGINES = ROOT / "graphs/engines"
A100_BYTES_PER_S = 2.039e12
"""Of one A100-80GB SXM; NVIDIA's datasheet."""
STEP_TOKENS = 40
"""Of a step: the papers do not print it."""
SINGLE_PROBLEMS = 24
FITTED = ("speccot candidates=5", (1, 64))
"""The curve and the batch sizes that the fit sees."""
RECORDED_AT = 8
"""Batch size of the runs whose text is replayed."""
STATED = ("median_error", "own_text_error")
OWN = (token_level.HEADING, sharing.HEADING)
"""The sections that `--sections` writes."""
Key = tuple[str, int]


def table(results: Results) -> str:
    """The simulator's error, for other documents: that of these results, or the last one where they are without a measured sweep."""
    return sentence(*(results[name] for name in STATED)) if STATED[0] in results else stated(())


# What papers printed.


class Model(Struct, frozen=True):
    """A model's size: model cards and config.json of Qwen2.5, on which the R1 distillates are built."""

    parameters: float
    kv_bytes_per_token: float


MODELS = {
    "RQwen-1.5B": Model(1.78e9, 28_672),
    "RQwen-7B": Model(7.62e9, 57_344),
    "RQwen-14B": Model(14.77e9, 196_608),
    "RQwen-32B": Model(32.76e9, 262_144),
    "QwQ-32B": Model(32.76e9, 262_144),
}


class Speed(Struct, frozen=True):
    """Tokens per second of one model that a paper prints, and how many tokens a problem took."""

    source: str
    model: str
    cards: int
    tokens_per_s: float
    tokens: float


SPEEDS = (
    Speed("table 1, GSM8K", "RQwen-1.5B", 4, 256.38, 2736),
    Speed("table 1, GSM8K", "RQwen-7B", 4, 200.41, 974),
    Speed("table 1, GSM8K", "RQwen-14B", 4, 120.39, 759),
    Speed("table 1, GSM8K", "RQwen-32B", 4, 67.90, 634),
    Speed("table 4, GSM8K", "RQwen-1.5B", 2, 236.23, 12.51 * 236.23),
    Speed("table 4, GSM8K", "RQwen-32B", 2, 44.56, 14.71 * 44.56),
    Speed("table 4, GSM8K", "QwQ-32B", 2, 41.17, 51.86 * 41.17),
    Speed("table 4, GSM8K", "QwQ-32B", 4, 63.31, 33.57 * 63.31),
    Speed("table 4, MATH-500", "RQwen-1.5B", 2, 233.25, 34.28 * 233.25),
    Speed("table 4, MATH-500", "RQwen-1.5B", 4, 244.82, 33.13 * 244.82),
    Speed("table 4, MATH-500", "RQwen-32B", 2, 39.88, 69.20 * 39.88),
    Speed("table 4, MATH-500", "RQwen-32B", 4, 61.59, 43.96 * 61.59),
    Speed("table 4, MATH-500", "QwQ-32B", 2, 40.55, 81.54 * 40.55),
    Speed("table 4, MATH-500", "QwQ-32B", 4, 62.03, 53.96 * 62.03),
)
"""SpecCoT (Shi et al.). Table 4's RQwen rows on 4 cards and GSM8K are those of table 1."""


class System(Struct, frozen=True):
    """SpecCoT at batch size 1, as table 4 prints it; the fallback rate is table 3's."""

    data: str
    cards: int
    time_s: float
    tokens_per_s: float
    fallback: float


SYSTEMS = (
    System("GSM8K", 2, 12.49, 82.17, 0.065),
    System("GSM8K", 4, 10.08, 101.50, 0.065),
    System("MATH-500", 2, 20.55, 74.00, 0.145),
    System("MATH-500", 4, 16.17, 92.46, 0.145),
)
"""Table 3's headings are taken to be exchanged: its times and tokens under MATH-500 are those of table 2 under GSM8K."""


def a100(cards: int, reached: float, overhead_s: float, model: Model) -> SimSpec:
    """One model on `cards` A100s."""
    plan = load_plan(ROOT / "graphs/target.yaml", ENGINES / "sim-4xa100.yaml")
    spec: Any = plan.engines["target"]
    device = structs.replace(
        spec.device,
        flops_per_s=spec.device.flops_per_s * cards / 4,
        bytes_per_s=cards * A100_BYTES_PER_S * reached,
        overhead_s=overhead_s,
    )
    return structs.replace(spec, device=device, parameters=model.parameters, kv_bytes_per_token=model.kv_bytes_per_token)


def speed(spec: SimSpec, tokens: float) -> float:
    """Tokens per second of one sequence of `tokens` tokens, which the simulated scheduler would need: its own segment of iterations."""
    count = round(tokens)
    return count / Roofline(spec).rates.batch(1, 1, 0, 1, 1).duration(count)


def fitted() -> tuple[float, float, Any]:
    """Share of the bandwidth reached and seconds of overhead that fit `SPEEDS` best, and the residuals."""

    def residuals(point: Any) -> list[float]:
        reached, overhead_ms = point
        return [math.log(speed(a100(s.cards, reached, overhead_ms / 1e3, MODELS[s.model]), s.tokens) / s.tokens_per_s) for s in SPEEDS]

    found = least_squares(residuals, [0.7, 3.0], bounds=([0.1, 0.0], [1.0, 50.0]))
    return float(found.x[0]), float(found.x[1]) / 1e3, found.fun


def in_file() -> tuple[float, float]:
    """The same two figures as graphs/engines/sim-4xa100.yaml has them."""
    spec: Any = load_plan(ROOT / "graphs/target.yaml", ENGINES / "sim-4xa100.yaml").engines["target"]
    return spec.device.bytes_per_s / (4 * A100_BYTES_PER_S), spec.device.overhead_s


def error(ours: float, theirs: float) -> str:
    """The relative error of ours over theirs."""
    return f"{ours / theirs - 1:+.0%}"


def speeds_table() -> Table:
    reached, overhead_s = in_file()
    rows = []
    for s in SPEEDS:
        ours = speed(a100(s.cards, reached, overhead_s, MODELS[s.model]), s.tokens)
        rows.append((s.source, s.model, f"{s.cards}xA100", f"{s.tokens_per_s:.2f}", f"{ours:.2f}", error(ours, s.tokens_per_s)))
    return Table(
        "Speed of single models at batch size 1, tokens/s", ("SpecCoT's", "model", "on", "paper", "simulated", "error"), tuple(rows)
    )


def simulated(folder: Path, name: str, specs: dict[str, SimSpec], count: int, batch_size: int, schedule: Any = "pipelined") -> Any:
    """The summary of SpecCoT on these engines."""
    engines = folder / f"{name}.json"
    engines.write_bytes(msgspec.json.encode({role: {"backend": "sim", **msgspec.to_builtins(spec)} for role, spec in specs.items()}))
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        input=(str(write_problems(folder / f"problems-{count}.parquet", count)),),
        engines=engines,
        batch_size=batch_size,
        schedule=schedule,
        output=folder / name,
    )
    return summarize(whole(run(options), name).folder)


def pair(cards: float, file: str, tokens: float, fallback: float) -> dict[str, SimSpec]:
    """Draft and target of an engines file on `cards` fourths of its device, writing thoughts of `tokens` tokens."""
    plan = load_plan(ROOT / "graphs/speccot.yaml", ENGINES / f"{file}.yaml")
    accuracy = {"draft": accuracy_for(1 - fallback, 5, CORRELATION), "target": 1.0}
    specs = {}
    for role, spec in plan.engines.items():
        known: Any = spec
        device = structs.replace(known.device, flops_per_s=known.device.flops_per_s * cards, bytes_per_s=known.device.bytes_per_s * cards)
        text = structs.replace(
            known.text,
            steps_mean=tokens / STEP_TOKENS,
            steps_sigma=0.5,
            step_tokens_mean=float(STEP_TOKENS),
            step_accuracy=accuracy[role],
            step_correlation=CORRELATION,
            verifier_accuracy=1.0,
        )
        specs[role] = structs.replace(known, device=device, text=text)
    return specs


def systems_table(folder: Path) -> Table:
    rows = []
    for s in SYSTEMS:
        specs = pair(s.cards / 4, "sim-4xa100", s.time_s * s.tokens_per_s, s.fallback)
        found = simulated(folder, f"{s.data}-{s.cards}", specs, SINGLE_PROBLEMS, 1, "sequential")
        rate = found.thought_tokens / found.wall_time_s
        rates = f"{s.tokens_per_s:.1f}", f"{rate:.1f}", error(rate, s.tokens_per_s)
        rows.append((s.data, f"{s.cards}xA100", *rates, f"{s.fallback:.1%}", f"{1 - found.acceptance_rate:.1%}"))
    by = {(row[0], row[1]): (float(row[2]), float(row[3])) for row in rows}
    gains = [f"{data}: paper {_gain(by, data, 0)}, simulated {_gain(by, data, 1)}" for data in ("GSM8K", "MATH-500")]
    return Table(
        "SpecCoT at batch size 1 (table 4), kept tokens/s",
        ("data", "on", "paper", "simulated", "error", "fallback, paper", "fallback, simulated"),
        tuple(rows),
        f"From 2 to 4 cards: {'; '.join(gains)}. Steps of {STEP_TOKENS} tokens, which the paper does not print, assumed.",
    )


def _gain(by: dict[tuple[str, str], tuple[float, float]], data: str, whose: int) -> str:
    return f"{by[data, '4xA100'][whose] / by[data, '2xA100'][whose] - 1:+.1%}"


def table_6(folder: Path) -> tuple[Table, dict[str, dict[int, float]]]:
    tokens = float(np.mean([wall * rate for wall, rate in TABLE_6.values()])) / TABLE_6_PROBLEMS
    ours: dict[str, dict[int, float]] = {}
    for schedule in ("pipelined", "lockstep"):
        for size in TABLE_6:
            specs = pair(1, "sim-2xh100", tokens, 0.065)
            found = simulated(folder, f"h100-{schedule}-{size}", specs, TABLE_6_PROBLEMS, size, schedule)
            ours.setdefault(schedule, {})[size] = found.thought_tokens / found.wall_time_s
    rows = []
    for size, (wall, rate) in TABLE_6.items():
        first_wall = TABLE_6[1][0]
        cells = [str(size), f"{rate:.1f}", f"{first_wall / wall:.2f}"]
        for schedule in ours:
            found = ours[schedule][size]
            cells += [f"{found:.1f}", error(found, rate), f"{found / ours[schedule][1]:.2f}"]
        rows.append(tuple(cells))
    names = [f"{each}, {schedule}" for schedule in ours for each in ("simulated", "error", "speed-up")]
    title = f"SpecCoT on 2xH100 (table 6), kept tokens/s; {TABLE_6_PROBLEMS} problems of {tokens:.0f} tokens"
    return Table(title, ("batch size", "paper", "speed-up", *names), tuple(rows)), ours


# What was measured here, predicted.


def predicted(measured: Path) -> tuple[list[str], dict[str, float]]:
    """The section of the page, and the median errors that are stated next to simulated speeds."""
    points = read_points(measured)[""]
    if failed := sum(point.run.ends.failed for point in points):
        raise click.ClickException(f"{measured}: {failed} chains failed; nothing is fitted to such runs")
    found = curves(points)
    name, sizes = FITTED
    runs = [measured / "runs" / found[name][size][0].label.folder for size in sizes]
    calibration = calibrate(runs)
    with tempfile.TemporaryDirectory(prefix="predictions-") as folder:
        engines = Path(folder) / "calibration.yaml"
        engines.write_text(engines_file(calibration))
        replayed = dict(_replayed(found, engines, Path(folder)))
        own = dict(_own_text(found, engines, Path(folder)))
    shown, errors = _predictions(found, replayed, own)
    held = [key for key in errors if key not in {(name, size) for size in sizes}]
    medians = {which: float(np.median([abs(errors[key][place]) for key in held])) for place, which in enumerate(STATED)}
    fit = (
        f"`pipeline calibrate` on two runs of the torch sweep in scaling.md ({name}, batch sizes {' and '.join(map(str, sizes))}): "
        + "; ".join(fit_lines(calibration))
        + f". All other points are held out. {_sweep(measured)}"
    )
    return ["## What was measured here, predicted", fit, markdown_table(shown), _said(errors, len(held), medians)], medians


def _sweep(measured: Path) -> str:
    """The origin of the sweep, where that was kept."""
    kept = measured.parent / KEPT
    return f"The sweep: {origin(json.loads(kept.read_bytes()))[:-1]}.".replace("\n", " ") if kept.exists() else ""


def _said(errors: dict[Key, tuple[float, float]], held: int, medians: dict[str, float]) -> str:
    """The errors of held-out points, and why those that the fit has seen are not met exactly."""
    name, sizes = FITTED
    recorded, own = (", ".join(f"{errors[name, size][place]:+.0%}" for size in sizes) for place in range(len(STATED)))
    return (
        f"Median error of the {held} held-out points: {medians[STATED[0]]:.0%} with recorded text, {medians[STATED[1]]:.0%} with text of "
        "the fitted engines. What the orchestration costs on the same two cores is not simulated.\n\nThe points marked *(fitted)* "
        f"are those that the fit has seen. Their wall times are not met exactly either ({recorded} with recorded text, {own} with text of "
        "the fitted engines): the fit minimizes the error of single calls, knows nothing of the orchestration, and does not choose the "
        "text."
    )


def state(**errors: float) -> None:
    """Write errors into the package, which states them next to every simulated speed."""
    path = ROOT / "pipeline/analysis/facts.py"
    for name, value in errors.items():
        path.write_text(re.sub(rf"^{name.upper()}(.*) = .*$", rf"{name.upper()}\1 = {value:.2f}", path.read_text(), flags=re.MULTILINE))


def write_sections() -> None:
    """Write results and sections on token-level speculation and on two processes on one card again; the others stay."""
    page, found = ROOT / "bench/calibration.md", results_of("calibration") | token_level.results()
    kept = [part for part in page.read_text().rstrip("\n").split("\n\n## ") if not f"## {part}".startswith(OWN)]
    page.write_text("\n\n".join(["\n\n## ".join(kept), token_level.section(found), sharing.section()]) + "\n")
    found["measured"]["page"] = page_digest(page)
    (ROOT / RESULTS / "calibration.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    state(token_level_error=found["token_level_error"])


def _replayed(found: dict[str, dict[int, list[Measured]]], engines: Path, folder: Path) -> Iterator[tuple[Key, float]]:
    """Wall seconds of every point with the text that its system said at `RECORDED_AT`."""
    for name, curve in found.items():
        [recorded], card = curve[RECORDED_AT][0].run.folders, curve[RECORDED_AT][0].run.file
        for size in curve:
            settings = [setting(param, value) for param, value in card.plan.params.items()]
            settings += [setting(f"engines.{role}.replay", str(recorded)) for role in card.plan.engines]
            options = RunOptions(
                graph=card.options.graph,
                input=card.options.input,
                engines=engines,
                settings=tuple(settings),
                batch_size=size,
                schedule=card.options.schedule,
                limit=card.options.limit,
                output=folder / f"{recorded.name}-{size}",
            )
            yield (name, size), float(whole(run(options)).run.wall_time_s or 0)


def _own_text(found: dict[str, dict[int, list[Measured]]], engines: Path, folder: Path) -> Iterator[tuple[Key, float]]:
    """The same with the text of the fitted engines: the sweep of `bench/scaling.py` over as many simulated problems."""
    runs = [points[0].run for curve in found.values() for points in curve.values()]
    problems = write_problems(folder / "problems.parquet", max(each.problems for each in runs))
    graphs = tuple(ROOT / f"graphs/{graph}.yaml" for graph in ("speccot", "specreason"))
    matrix = Matrix(
        shared=RunOptions(graph=graphs[0], input=(str(problems),), engines=engines, output=folder / "sweep"),
        graphs=graphs,
        batch_sizes=tuple(sorted({each.file.options.batch_size for each in runs})),
        schedules=tuple(dict.fromkeys(each.file.options.schedule for each in runs)),
        vary={"candidates": ("1", "5")},
    )
    yield from (((point.label.curve, point.label.batch_size), point.run.wall_time_s or 0.0) for point in swept(matrix, "own text"))


def _predictions(
    found: dict[str, dict[int, list[Measured]]], replayed: dict[Key, float], own: dict[Key, float]
) -> tuple[Table, dict[Key, tuple[float, float]]]:
    rows, errors = [], {}
    for name, curve in found.items():
        for size, points in curve.items():
            wall = statistics.median(point.run.wall_time_s or 0.0 for point in points)
            both = (replayed[name, size], own[name, size])
            errors[name, size] = (both[0] / wall - 1, both[1] / wall - 1)
            seen = " (fitted)" if name == FITTED[0] and size in FITTED[1] else ""
            cells = [cell for value, error in zip(both, errors[name, size], strict=True) for cell in (f"{value:.3g}", f"{error:+.0%}")]
            rows.append((f"{name}{seen}", str(size), ranged(spread(point.run.wall_time_s for point in points)), *cells))
    columns = ("curve", "batch size", "measured s", "predicted s, recorded text", "error", "predicted s, own text", "error")
    return Table("Wall time of a measured sweep, and of the fitted engines on virtual time", columns, tuple(rows)), errors


# The page.


def page(parts: dict[str, Any]) -> Iterator[str]:
    reached, overhead_s, residuals = parts["fit"]
    rms, most = np.sqrt(np.mean(residuals**2)), np.abs(residuals).max()
    yield "# Calibration of the simulated engines"
    yield f"{origin({name: value for name, value in parts['measured'].items() if name != 'load'})[:-1]}."  # all on virtual time
    yield "Columns *paper* are printed in SpecCoT (Shi et al.), columns *simulated* come from engines `sim`." + parts["stated"]
    yield "## Published speeds: 2 and 4 A100"
    yield (
        f"Two figures are fitted to 14 printed speeds (least squares of logarithms): the share of the datasheet's bandwidth that is "
        f"reached, {reached:.3f}, and the overhead of an iteration, {overhead_s * 1e3:.2f} ms. The error is {rms:.1%} (root mean square), "
        f"at most {most:.1%}. sim-4xa100.yaml has them rounded. An overhead for each layer instead of one for each iteration would fit "
        "better (5 %), but only with all of the datasheet's bandwidth reached; it was left out."
    )
    yield markdown_table(parts["speeds"])
    yield "## SpecCoT itself"
    yield "Nothing is fitted to these: fallback rate and tokens a problem are the paper's, rates those of above."
    yield markdown_table(parts["systems"])
    yield markdown_table(parts["table_6"])
    yield parts["reading"]


def reading(ours: dict[str, dict[int, float]]) -> str:
    """An interpretation of the differences; the figures are those of this run."""
    last = max(TABLE_6)
    theirs = TABLE_6[1][0] / TABLE_6[last][0]
    pipelined, lockstep = (found[last] / found[1] for found in ours.values())
    return (
        f"One problem at a time the simulation is close. Many at once it is not: from batch size 1 to {last} the published time falls "
        f"by a factor of {theirs:.2f}, the simulated one by {pipelined:.1f} pipelined and {lockstep:.1f} in lockstep. The paper does "
        "not describe the loop around its engines nor their settings, the published times do not even fall steadily, and here calls "
        "are free and whatever is ready is sent at once. So simulated figures of large batches say what these engines could do, and "
        "not what the paper's program did. SpecReason prints latencies on two A6000 without the tokens that they were for; "
        "sim-2xa6000.yaml takes over the shares of the A100s."
    )


@click.command()
@click.option("--measured", type=click.Path(path_type=Path), help="A sweep on real engines, as bench/scaling.py leaves it.")
@click.option("--sections", is_flag=True, help="Write only the sections on token-level speculation and on two processes on one card.")
def main(measured: Path | None, sections: bool) -> None:
    """Write bench/calibration.md."""
    if sections:
        write_sections()
        return
    recording = begin(__file__)
    with tempfile.TemporaryDirectory(prefix="calibration-") as name:
        folder = Path(name)
        six, ours = table_6(folder)
        parts = {
            "measured": recording.measured,
            "fit": fitted(),
            "speeds": speeds_table(),
            "systems": systems_table(folder),
            "table_6": six,
            "reading": reading(ours),
        }
        predictions, errors = predicted(measured) if measured else ([], {})
        tokens = token_level.results()
        parts["stated"] = f" {sentence(**errors)}" if errors else ""
    result = {
        "bench": "calibration",
        "reached": parts["fit"][0],
        "overhead_s": parts["fit"][1],
        **errors,
        **tokens,
        "table_6_tokens_per_s": ours,
        "tables": [structs.asdict(parts[each]) for each in ("speeds", "systems", "table_6")],
    }
    recording.write(
        ROOT / RESULTS / "calibration.json",
        result,
        "\n\n".join([*page(parts), *predictions, token_level.section(tokens), sharing.section()]) + "\n",
    )
    state(**errors, token_level_error=tokens["token_level_error"])
    click.echo(f"{parts['fit'][0]:.3g} of the bandwidth, {parts['fit'][1] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
