"""`pipeline tune GRAPH --input VALIDATION --max-loss 1%`: options enter; a preset, a curve of accuracy against speed, runs leave."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from pipeline.analysis.compare.brief import SIMULATED
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.written import as_markdown
from pipeline.analysis.points import Point
from pipeline.analysis.tuned import Tuned
from pipeline.analysis.tuned_tables import KNOWN, choice_of, table_of
from pipeline.cli import live
from pipeline.cli.commands import Opened, command, headed, option
from pipeline.cli.console import PlainConsole, print_parts
from pipeline.cli.located import LocalPath, ProblemFile
from pipeline.cli.options import (
    engines_option,
    model_option,
    notice_options,
    preset_option,
    run_options,
    settings_option,
    with_models,
    with_preset,
)
from pipeline.cli.signals import restored_handlers, stop_at_first_signal
from pipeline.cli.terminal import print_error, print_notice, print_page, printed
from pipeline.errors import MissingExtra
from pipeline.graph.yaml_file import shown
from pipeline.report.extra import load
from pipeline.session.loop import rare_collection
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.tune import TuneOptions
from pipeline.sweep.tune import tune as start


class LossShare(click.ParamType[float]):
    """A share above 0 and below 1: 0.01, or 1%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{text!r}: expected a share, such as 0.01 or 1%", param, ctx)
        if not 0 < found < 1:
            self.fail(f"{text}: expected a share above 0 and below 1, such as 0.01 or 1%", param, ctx)
        return found


tuning_option = headed("Tuning")


@command(headed=True)
@click.argument("graph", type=click.Path(path_type=Path), metavar="GRAPH")
@option(
    "-i", "--input", "input_", required=True, type=ProblemFile(), metavar="FILE", help="Validation problems, as for `run`.", heading="Input"
)
@run_options("columns", "limit", "random")
@option("--no-test-set", is_flag=True, help="The input is no test set, whatever its name says.", heading="Input")
@tuning_option(
    "--max-loss", required=True, type=LossShare(), metavar="SHARE", help="Upper end of the interval of the loss of accuracy: 0.01 or 1%."
)
@tuning_option(
    "--tune",
    multiple=True,
    metavar="NAME[=VALUE,...]",
    help="A param to tune, and values to try: threshold=5,7,9. May be repeated.  [default: all that can be tuned]",
)
@tuning_option(
    "--confirm",
    type=click.IntRange(1, 10),
    default=3,
    show_default=True,
    metavar="N",
    help="Maximum number of confirming runs, with those that a resumed folder has.",
)
@engines_option
@model_option
@settings_option
@preset_option
@run_options("samples", "seed", "batch_size", "admission", "order")
@option("-o", "--output", type=LocalPath(), metavar="DIR", help="Folder.  [default: sweeps/GRAPH-TIME]", heading="Output")
@run_options("fail_on_error")
@option("--resume", is_flag=True, help="Resume in --output; finished runs are kept.", heading="Resume")
@notice_options
def tune(graph: Path, input_: Path, **options: Any) -> None:
    """Choose thresholds, candidates and the early end of GRAPH on a validation set, for a wanted loss of accuracy.

    The target alone and the most careful setting are run. What other settings would do is predicted from that run, and the fastest that
    loses little enough is sought with a few confirming runs. DIR gets preset.yaml, tune.json, a curve (tune.html) and every run.
    """
    own = {name: options.pop(name) for name in ("max_loss", "tune", "confirm", "no_test_set")}
    bound = with_models((graph,), with_preset((graph,), options), options["batch_size"])
    engines, batch_size = bound.pop("engines"), bound.pop("batch_size")
    runs = SweepOptions(
        graphs=(graph,),
        input=input_,
        engines=() if engines is None else (engines,),
        batch_sizes=(batch_size,),
        repeats=1,
        variants=(),
        **bound,
    )
    observer = Observer(starting=live.show_starts, tell=print_notice)
    if live.has_panel():
        observer = structs.replace(observer, watch=live.watch)
    opened = click.get_current_context().obj
    name = opened.urls.get(str(input_), "") if isinstance(opened, Opened) else ""
    with restored_handlers(), rare_collection():
        result = start(TuneOptions(sweep=runs, name=name, **own), observer, _print_point, attend=stop_at_first_signal)
    code = result.exit_code
    if result.tuned is not None:
        _write_page(result.folder, result.tuned)
        if not printed("the table", partial(_print_outcome, result.tuned)):
            code = code or 1
    if result.preset is not None:
        print_notice(f"preset: pipeline run {graph} --preset {result.preset}")
    if result.runs.error is not None:
        print_error(str(result.runs.error))
        print_notice(f"to resume: the same command with --output {result.folder} --resume")
    sys.exit(code)


def _print_outcome(found: Tuned) -> None:
    parts: list[str | Table] = [table_of(found), KNOWN, *([SIMULATED] if found.simulated else []), *choice_of(found)]
    if PlainConsole().is_terminal:
        print_parts(parts)
    else:
        print_page(as_markdown(parts))


def _write_page(folder: Path, found: Tuned) -> None:
    """Write the curve; without the extra that draws it, print how to get it."""
    try:
        page = load("tuned")
        path = folder / page.NAME
        load("report").write(path, page.tuned_page(found))
    except MissingExtra as error:
        print_notice(f"no curve: {error}; the numbers are in {folder}")
        return
    print_notice(f"curve: {path}")


def _print_point(number: int, planned: int, point: Point) -> None:
    speed = "no speed" if point.problems_per_s is None else f"{point.problems_per_s:.3g} problems/s"
    right = "" if point.accuracy is None else f", {point.accuracy:.1%} right"
    print_notice(f"{point.graph} {shown(point.params)}".strip() + f": {speed}{right}")
