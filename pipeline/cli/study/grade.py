"""`pipeline grade RUN`: the answers of a run graded again."""

import click
import msgspec

from pipeline.cli.commands import command, option
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.options import json_option
from pipeline.cli.terminal import print_line, print_page
from pipeline.grading.grader import LIMIT_S
from pipeline.session.regrade import Change, Regrade, regrade
from pipeline.store.query import check_readable

SHOWN = 10
"""Changed verdicts that are printed without `--json`."""
_WORDS = {True: "right", False: "wrong", None: "no verdict"}


@command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@option("--dry-run", is_flag=True, help="Report what would change; write nothing.")
@option("--workers", type=click.IntRange(1, 256), metavar="N", help="Number of grading processes.  [default: one per core, maximum 8]")
@option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    metavar="SECONDS",
    default=LIMIT_S,
    show_default=True,
    help="Time limit of a comparison.",
)
@json_option
def grade(run: Located, dry_run: bool, workers: int | None, timeout: float, as_json: bool) -> None:
    """Grade the answers in the run folder RUN again, and store the verdicts there.

    Every changed verdict is printed with the rule that decided it.
    """
    check_readable(run.path)
    found = regrade(run.path, workers=workers, limit_s=timeout, dry_run=dry_run)
    print_result(found, _lines(found), as_json)


def print_result(result: msgspec.Struct, lines: list[str], as_json: bool) -> None:
    """Print what a command found, as JSON or as lines."""
    if as_json:
        print_page(msgspec.json.encode(result, order="sorted"))
    else:
        for line in lines:
            print_line(line)


def _lines(found: Regrade) -> list[str]:
    changed = f"{found.changed:,} verdicts {'would change' if found.dry_run else 'changed'}"
    lines = [f"{found.run}: {changed}, {found.became_right:,} to right and {found.became_wrong:,} to wrong"]
    lines += [_line(change) for change in found.changes[:SHOWN]]
    lines += [f"  and {found.changed - SHOWN:,} more, all of them with --json"] if found.changed > SHOWN else []
    lines += [f"not graded: {count:,}, {why}" for why, count in found.errors.items()]
    share = f" ({found.correct / found.graded:.1%})" if found.graded else ""
    return [*lines, f"{found.correct:,} of {found.graded:,} graded are right{share}, of {found.chains:,} chains"]


def _line(change: Change) -> str:
    answer, reference = (_short(text) for text in (change.answer or "no answer", change.reference_answer))
    rule = f"  ({change.rule})" if change.rule else ""
    return f"  {change.chain_id}: {_WORDS[change.before]} -> {_WORDS[change.after]}: {answer}  for  {reference}{rule}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
