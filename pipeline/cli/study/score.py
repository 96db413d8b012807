"""`pipeline score RUN --prm FILE`: the steps of a run scored by a process reward model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.markup import escape
from rich.progress import Progress

from pipeline.cli.commands import command, option
from pipeline.cli.console import PlainConsole
from pipeline.cli.located import Located, ProblemFile, RunFolder
from pipeline.cli.options import json_option
from pipeline.cli.study.grade import print_result
from pipeline.rewards.score import OnProgress, ScoringResult, score_run
from pipeline.store.query import check_readable
from pipeline.text import one_line

_MEANS = {
    "all": "drafted steps",
    "accepted": "of these, one selected",
    "fallback": "of these, none: fallback",
    "unverified": "of these, unverified",
    "written": "of these, flagged",
}


@command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@option("--prm", required=True, type=click.Path(path_type=Path), metavar="NAME|FILE", help="Reward model; see `pipeline list rewards`.")
@option("-i", "--input", "input_", type=ProblemFile(), metavar="FILE", help="Where the problems are now, if they have moved.")
@option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set engines.reward.NAME. May be repeated.")
@json_option
def score(run: Located, prm: Path, input_: Path | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Score every drafted and committed step of the run folder RUN with a process reward model.

    The rewards are stored in RUN, in the table rewards/*.parquet. If the command is interrupted, an earlier table is kept.
    """
    check_readable(run.path)
    with watched(str(run)) as watch:
        scored = score_run(run.path, prm, input_file=input_, settings=settings, watch=watch)
    print_result(scored, reward_lines(scored, str(run)), as_json)


@contextmanager
def watched(run: str) -> Iterator[OnProgress]:
    """A progress bar on stderr, if that is a terminal; yields what updates it."""
    console = PlainConsole(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(escape(f"{one_line(run.rpartition('/')[2])}: steps"), total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def reward_lines(scored: ScoringResult, run: str) -> list[str]:
    """The lines to print: the mean rewards, and how many texts have none."""
    lines = [
        f"{scored.run}: {scored.steps:,} steps and {scored.candidates:,} candidates scored by {scored.model}",
        f"{scored.requests:,} requests in {scored.wall_s:,.1f} s",
    ]
    if scored.quality:
        lines.append(f"{'mean reward':<28}{'steps':>9}{'drafted':>10}{'committed':>11}")
    for decision, title in _MEANS.items():
        if (quality := scored.quality.get(decision)) is not None:
            means = ("-" if value is None else f"{value:.4f}" for value in (quality.drafted, quality.committed))
            lines.append("  {:<26}{:>9,}{:>10}{:>11}".format(title, quality.steps, *means))
    if not scored.quality:
        lines.append("no step of this run was drafted")
    if scored.errors:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in scored.errors.items())
        lines.append(f"texts without a reward: {kinds}; the first: {scored.first_error}")
    return [*lines, f"rewards: {run}/rewards/*.parquet"]
