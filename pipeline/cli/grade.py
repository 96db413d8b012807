"""`pipeline grade RUN`, `score RUN` and `calibrate RUN...`: answers graded again, steps scored by a reward model, a simulator fitted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from rich.markup import escape
from rich.progress import Progress

from pipeline.calibration.calibrate import calibrate as calibrated
from pipeline.calibration.calibrate import engines_file, fit_lines
from pipeline.cli.console import PlainConsole
from pipeline.cli.options import LocalPath, Located, RunFolder, json_option, one_run, option
from pipeline.cli.terminal import print_line, print_page
from pipeline.errors import UsageError, boundary
from pipeline.files import one_line, whole_file
from pipeline.rewards import OnProgress, ScoringResult, score_run
from pipeline.run.regrade import Regrade, regrade
from pipeline.store.query import Query

_MEANS = {
    "all": "drafted steps",
    "accepted": "of these, one selected",
    "fallback": "of these, none: fallback",
    "unverified": "of these, unverified",
    "written": "of these, flagged",
}
run_argument = click.argument("run", type=RunFolder(writes=True), metavar="RUN")


@click.command()
@run_argument
@option("--dry-run", is_flag=True, help="Report what would change; write nothing.")
@json_option
def grade(run: Located, dry_run: bool, as_json: bool) -> None:
    """Grade the answers in the run folder RUN again, and store the verdicts there.

    Changed verdicts are counted by the rule that decided them.
    """
    Query(one_run(run)).close()
    found = regrade(run.path, dry_run=dry_run)
    _print_result(found, _grade_lines(found), as_json)


def _print_result(result: msgspec.Struct, lines: list[str], as_json: bool) -> None:
    """Print what a command found, as JSON or as lines."""
    if as_json:
        print_page(msgspec.json.encode(result, order="sorted"))
    else:
        for line in lines:
            print_line(line)


def _grade_lines(found: Regrade) -> list[str]:
    lines = [f"{found.run}: {found.changes.total():,} verdicts {'would change' if found.dry_run else 'changed'}"]
    lines += [f"  {count:,} {change}" for change, count in found.changes.most_common()]
    lines += [f"not graded: {count:,}, {why}" for why, count in found.errors.items()]
    share = f" ({found.correct / found.graded:.1%})" if found.graded else ""
    return [*lines, f"{found.correct:,} of {found.graded:,} graded are right{share}, of {found.chains:,} chains"]


@click.command()
@run_argument
@option("--prm", required=True, type=click.Path(path_type=Path), metavar="NAME|FILE", help="Reward model; see `pipeline list rewards`.")
@option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set engines.reward.NAME. May be repeated.")
@json_option
def score(run: Located, prm: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Score every drafted and committed step of the run folder RUN with a process reward model.

    The rewards are stored in RUN, in the table rewards/*.parquet. If the command is interrupted, an earlier table is kept.
    """
    Query(one_run(run)).close()
    with watched(str(run)) as watch:
        scored = score_run(run.path, prm, settings=settings, watch=watch)
    _print_result(scored, reward_lines(scored, str(run)), as_json)


@contextmanager
def watched(run: str) -> Iterator[OnProgress]:
    """A progress bar on stderr, if that is a terminal; yields what updates it."""
    console = PlainConsole(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(escape(f"{one_line(run.rpartition('/')[2])}: steps"), total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def reward_lines(scored: ScoringResult, run: str) -> list[str]:
    """The lines to print: the mean rewards, and how many texts have none."""
    lines = [f"{scored.run}: {scored.steps:,} steps and {scored.candidates:,} candidates scored by {scored.model}"]
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


@click.command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Output engines file.  [default: RUN/calibration.yaml]")
def calibrate(runs: tuple[Located, ...], output: Path | None) -> None:
    """Fit simulated engines to the traces of RUN..., and report the fit error. A replay of RUN uses the fitted costs.

    Give runs at small and at large batch sizes: one batch size alone does not identify all rates. The file keeps the fit error, which is
    printed with every prediction made from it.
    """
    folders = list(map(one_run, runs))
    Query(*folders).close()
    found = calibrated(folders)
    for line in fit_lines(found):
        print_line(line)
    path = output or (Path() if runs[0].url else folders[0]) / "calibration.yaml"
    with boundary(UsageError, f"--output {path}: cannot be written", foreign=OSError), whole_file(path) as file:
        file.write(engines_file(found).encode())
    print_line(f"engines file: {path}")
