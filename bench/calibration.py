"""How far are the simulated engines from what the papers print, and the fitted ones from what was measured here?

    python -m bench.calibration

Published: the speeds of single models in SpecCoT's tables 1 and 4 give the two figures of the simulated A100s that are fitted here again.
Printed speed-ups by token-level speculation (bench/token_level.py) and two processes that shared a card (bench/sharing.py) are set next to
what is simulated. Measured here: simulated engines are fitted to two points of the sweep on the torch engine that bench/scaling.py
left in build/scaling, and predict the others, once with the recorded text and once with text of their own. Writes
bench/calibration.md and bench/results/calibration.json.
"""

import json
import math
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from msgspec import Struct, structs
from scipy.optimize import least_squares

from bench import sharing, token_level
from bench.figures import KEPT, ROOT, TRIAL, Results, begin, origin
from bench.runs import whole
from bench.scaling import BUILD, PROBLEMS, Setup, run_sweep
from pipeline.analysis.curves import Measured, curves, ranged, read_points, spread
from pipeline.analysis.facts import sentence
from pipeline.analysis.tables import Table, markdown_table
from pipeline.calibration.calibrate import calibrate, engines_file, fit_lines
from pipeline.engines.sim.roofline import Roofline
from pipeline.graph.files import setting
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.run.run import run

A100_BYTES_PER_S = 2.039e12
"""Of one A100-80GB SXM; NVIDIA's datasheet."""
FITTED = ("speccot candidates=5", (1, 64))
"""The curve and the batch sizes that the fit sees."""
RECORDED_AT = 8
"""Batch size of the runs whose text is replayed."""
STATED = ("median_error", "own_text_error")
EARLIER = """\
**Since these runs the simulator's text was mended (a step's candidates have lengths in common, short steps and answers are as short as
stated, a token is about a word) and the fit has two rates of arithmetic and a cost for each sequence.** The columns *own text* are of the
earlier text, whose simulated steps said which they are and so were longer than most steps of the bundled models; the columns *recorded
text* are of the earlier fit."""
"""Goes with the next measurement."""
Curves = Mapping[str, Mapping[int, list[Measured]]]
Key = tuple[str, int]


def table(results: Results) -> str:
    """The simulator's error, for other documents."""
    return sentence(*(results[name] for name in STATED))


# What papers printed.


class Speed(Struct, frozen=True):
    """Tokens per second of one model that SpecCoT prints, and how many tokens a problem took, or how many seconds."""

    source: str
    model: str
    cards: int
    tokens_per_s: float
    tokens: float = 0.0
    seconds: float = 0.0


SPEEDS = msgspec.convert(token_level.PRINTED["speeds"], tuple[Speed, ...])


@cache
def four_a100() -> Any:
    """The target of sim-4xa100.yaml."""
    return load_plan(ROOT / "graphs/target.yaml", ROOT / "graphs/engines/sim-4xa100.yaml").engines["target"]


def simulated(printed: Speed, reached: float, overhead_s: float) -> float:
    """The tokens per second of this one sequence on A100s."""
    spec, model, count = four_a100(), token_level.MODELS[printed.model], round(printed.tokens or printed.seconds * printed.tokens_per_s)
    device = structs.replace(
        spec.device,
        flops_per_s=spec.device.flops_per_s * printed.cards / 4,
        bytes_per_s=printed.cards * A100_BYTES_PER_S * reached,
        overhead_s=overhead_s,
    )
    spec = structs.replace(spec, device=device, parameters=model.parameters, kv_bytes_per_token=model.kv_bytes_per_token)
    return count / float(Roofline(spec).rates.batch(1, 1, 0, 1, 1).duration(count))


def fitted() -> tuple[float, float, Any]:
    """Share of the bandwidth reached and seconds of overhead that fit `SPEEDS` best, and the residuals."""

    def residuals(point: Any) -> list[float]:
        return [math.log(simulated(each, point[0], point[1] / 1e3) / each.tokens_per_s) for each in SPEEDS]

    found = least_squares(residuals, [0.7, 3.0], bounds=([0.1, 0.0], [1.0, 50.0]))
    return float(found.x[0]), float(found.x[1]) / 1e3, found.fun


def speeds_table() -> Table:
    """The printed speeds, and those of sim-4xa100.yaml, which has the fit rounded."""
    device, rows = four_a100().device, []
    reached, overhead_s = device.bytes_per_s / (4 * A100_BYTES_PER_S), device.overhead_s
    for s in SPEEDS:
        ours = simulated(s, reached, overhead_s)
        error = f"{ours / s.tokens_per_s - 1:+.0%}"
        rows.append((s.source, s.model, f"{s.cards}xA100", f"{s.tokens_per_s:.2f}", f"{ours:.2f}", error))
    columns = ("SpecCoT's", "model", "on", "paper", "simulated", "error")
    return Table("Speed of single models at batch size 1, tokens/s", columns, tuple(rows))


# What was measured here, predicted.


def predicted(measured: Path) -> dict[str, Any]:
    """What fitted engines predict of the sweep `measured`, as the results file has it."""
    points = read_points(measured)[""]
    if failed := sum(point.run.ends.failed for point in points):
        raise click.ClickException(f"{measured}: {failed} chains failed; nothing is fitted to such runs")
    found = curves(points)
    name, sizes = FITTED
    calibration = calibrate([measured / "runs" / found[name][size][0].label.folder for size in sizes])
    with tempfile.TemporaryDirectory(prefix="predictions-") as folder:
        engines = Path(folder) / "calibration.yaml"
        engines.write_text(engines_file(calibration))
        replayed = dict(_replayed(found, engines, Path(folder)))
        own = dict(_own_text(engines, Path(folder)))
    sweep = origin(json.loads((measured.parent / KEPT).read_bytes()))[:-1].replace("\n", " ")
    return {"fit": list(fit_lines(calibration)), "sweep": sweep, "rows": list(_predictions(found, replayed, own))}


def median_errors(rows: list[list[Any]]) -> dict[str, float]:
    """The median errors of what the fit has not seen, by the names of `STATED`."""
    held = [row for row in rows if (row[0], row[1]) not in {(FITTED[0], size) for size in FITTED[1]}]
    return {which: float(np.median([abs(row[place]) for row in held])) for which, place in zip(STATED, (4, 6), strict=True)}


def state(errors: Mapping[str, float]) -> None:
    """Write errors into the package, which states them next to every simulated speed."""
    path = ROOT / "pipeline/analysis/facts.py"
    for name, value in errors.items():
        path.write_text(re.sub(rf"^{name.upper()}(.*) = .*$", rf"{name.upper()}\1 = {value:.2f}", path.read_text(), flags=re.MULTILINE))


def _replayed(found: Curves, engines: Path, folder: Path) -> Iterator[tuple[Key, float]]:
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


def _own_text(engines: Path, folder: Path) -> Iterator[tuple[Key, float]]:
    """The same with the text of the fitted engines, over as many simulated problems."""
    setup = Setup(title="own text", about="", engines=engines, problems=PROBLEMS)
    for point in run_sweep("sweep", setup, folder):
        yield (point.label.curve, point.label.batch_size), point.run.wall_time_s or 0.0


def _predictions(found: Curves, replayed: Mapping[Key, float], own: Mapping[Key, float]) -> Iterator[list[Any]]:
    """By curve and batch size: the seconds measured, and those predicted with both texts, each with its error."""
    for name, curve in found.items():
        for size, points in curve.items():
            wall = statistics.median(point.run.wall_time_s or 0.0 for point in points)
            cells = [cell for each in (replayed, own) for cell in (f"{each[name, size]:.3g}", each[name, size] / wall - 1)]
            yield [name, size, ranged(spread(point.run.wall_time_s for point in points)), *cells]


# The page.


def page_of(results: Results) -> str:
    """The page, from the results."""
    return "\n\n".join([*_published(results), *_predicted(results["predicted"]), token_level.section(results), sharing.section()]) + "\n"


def _published(results: Results) -> Iterator[str]:
    rms, most = results["fit_errors"]
    yield "# Calibration of the simulated engines"
    yield f"{origin({name: value for name, value in results['measured'].items() if name != 'load'})[:-1]}."  # all on virtual time
    yield table(results)
    yield "## Published speeds: 2 and 4 A100"
    yield (
        f"Two figures are fitted to {len(SPEEDS)} speeds that SpecCoT (Shi et al.) prints (least squares of logarithms): the share of the "
        f"datasheet's bandwidth that is reached, {results['reached']:.3f}, and the overhead of an iteration, "
        f"{results['overhead_s'] * 1e3:.2f} ms. The error is {rms:.1%} (root mean square), at most {most:.1%}. sim-4xa100.yaml has them "
        "rounded. An overhead for each layer instead of one for each iteration would fit better (5 %), but only with all of the "
        "datasheet's bandwidth reached; it was left out. What the papers print of whole systems is set next to simulations in "
        "[papers.md](papers.md)."
    )
    yield markdown_table(speeds_table())


def _predicted(found: Results) -> Iterator[str]:
    name, sizes = FITTED
    yield "## What was measured here, predicted"
    yield EARLIER
    yield (
        f"`pipeline calibrate` on two runs of the torch sweep in scaling.md ({name}, batch sizes {' and '.join(map(str, sizes))}): "
        f"{'; '.join(found['fit'])}. All other points are held out. The sweep: {found['sweep']}."
    )
    lines = []
    for curve, size, wall, recorded_s, recorded, own_s, own in found["rows"]:
        seen = " (fitted)" if curve == name and size in sizes else ""
        lines.append((f"{curve}{seen}", str(size), wall, recorded_s, f"{recorded:+.0%}", own_s, f"{own:+.0%}"))
    columns = ("curve", "batch size", "measured s", "predicted s, recorded text", "error", "predicted s, own text", "error")
    yield markdown_table(Table("Wall time of a measured sweep, and of the fitted engines on virtual time", columns, tuple(lines)))
    recorded, own = median_errors(found["rows"]).values()
    yield (
        f"Median error of the {len(lines) - len(sizes)} held-out points: {recorded:.0%} with recorded text, {own:.0%} with text of the "
        "fitted engines. What the orchestration costs on the same two cores is not simulated. The points marked *(fitted)* are "
        "those that the fit has seen. Their wall times are not met exactly either: the fit minimizes the error of single "
        "calls, knows nothing of the orchestration, and does not choose the text."
    )


def main() -> None:
    """Write bench/calibration.md."""
    recording = begin(__file__)
    reached, overhead_s, residuals = fitted()
    worst = [float(np.sqrt(np.mean(residuals**2))), float(np.abs(residuals).max())]
    fit = {"reached": reached, "overhead_s": overhead_s, "fit_errors": worst}
    found, tokens = predicted(BUILD / "torch"), token_level.results()
    errors = median_errors(found["rows"])
    recording.write("calibration", {"bench": "calibration", **fit, **errors, **tokens, "predicted": found})
    if not TRIAL:
        state(errors | {"token_level_error": tokens["token_level_error"]})


if __name__ == "__main__":
    main()
