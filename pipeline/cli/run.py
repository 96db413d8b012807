"""`pipeline run GRAPH --input FILE`: options in, a run folder, a live view and a summary out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from pipeline.analysis.resources import answers, engine_facts
from pipeline.analysis.summary import summarize
from pipeline.cli import live
from pipeline.cli.main import say, show
from pipeline.cli.signals import restored_handlers, stop_on_signal
from pipeline.cli.summary import print_summary
from pipeline.errors import reason
from pipeline.runtime.schedule import SCHEDULES
from pipeline.session.loop import rare_collection
from pipeline.session.options import RunOptions
from pipeline.session.replay import shortfall
from pipeline.session.resume import MAY_DRIFT
from pipeline.session.run import Observer
from pipeline.session.run import run as start


def _column(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    for ours, theirs in pairs.items():
        if [value.partition("=")[0] for value in values].count(ours) > 1:
            raise click.BadParameter(f"{ours} is mapped twice")
        if not ours or not theirs:
            raise click.BadParameter("expected OURS=THEIRS, for example problem=question")
    return pairs


column_option = click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_column,
    metavar="OURS=THEIRS",
    help="Column of problem, answer, problem_id, options or grader.",
)


@contextmanager
def _whoever_reads() -> Iterator[None]:
    """A reader that has gone (`| head`) does not change how the run ended. rich exits by itself when it meets that."""
    try:
        yield
        sys.stdout.flush()
    except (OSError, SystemExit) as error:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            say(f"the summary could not be printed: {reason(error)}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option(
    "--input", "input_", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Problems: Parquet, JSON lines or CSV."
)
@click.option("--engines", type=click.Path(path_type=Path), metavar="FILE", help="Engines file instead of the graph's own, or replay:RUN.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A param, or engines.ROLE.NAME=VALUE.")
@column_option
@click.option("--batch-size", type=click.IntRange(1, 1_000_000), default=64, show_default=True, help="Chains that live at once.")
@click.option("--schedule", type=click.Choice(list(SCHEDULES)), default="pipelined", show_default=True, help="Who waits for whom.")
@click.option("--samples", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Attempts at every problem.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N rows.")
@click.option("--seed", type=int, default=0, show_default=True, help="Every random number derives from it.")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Run folder.  [default: runs/GRAPH-TIME]")
@click.option("--resume", is_flag=True, help="Go on with the run in --output, if there is one.")
@click.option("--retry-failed", is_flag=True, help="On resume: failed chains too.")
@click.option("--allow-drift", multiple=True, metavar="NAME", help=f"On resume: what may be other than before: {', '.join(MAY_DRIFT)}.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def run(graph: Path, input_: Path, as_json: bool, debug: bool, **options: object) -> None:
    """Solve the problems of a file with GRAPH.

    Exit codes: 0 all chains finished, 1 the run could not go on, 2 graph, options or input are wrong and nothing was
    started, 3 some chains failed and are recorded as such, 130 interrupted. After 1 and 130 `pipeline resume` goes on.
    """
    carry_out(RunOptions(graph=graph, input=input_, **options), as_json)  # type: ignore[arg-type]


def carry_out(options: RunOptions, as_json: bool) -> NoReturn:
    """Run, show how it goes, print the summary, say what to do next, exit."""
    with restored_handlers(), rare_collection():
        result = start(options, Observer(watch=live.watch, tell=say), attend=stop_on_signal, command=sys.argv)
    assert result.folder is not None, "the run of a command has a folder"
    if result.nothing_to_do:
        say(f"{result.folder} is finished: there is nothing to resume")
    with _whoever_reads():
        summary = summarize(result.folder)
        if as_json:
            show(msgspec.json.encode(summary, order="sorted"))
        else:
            made = answers(engine_facts(result.run).values())
            print_summary(summary, result.folder, simulated=result.run.virtual_time, answers=made)
    if said := shortfall(result.run):
        say(said)
    if result.error is not None:
        if result.run.status == "failed":
            say(f"error: {result.error}")
        say(f"{result.run.status}; to go on: pipeline resume {result.folder}")
    sys.exit(result.exit_code)
