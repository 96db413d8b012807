"""`pipeline grade RUN`: new verdicts for the chains of a run folder."""

from pathlib import Path

import click
import msgspec

from pipeline.cli.main import show, tell
from pipeline.grade import Change, Regrade, regrade
from pipeline.grader import LIMIT_S

SHOWN = 10
_WORDS = {True: "right", False: "wrong", None: "no verdict"}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that compare.  [default: one a core, at most 8]")
@click.option("--limit-s", type=click.FloatRange(0.1, 600), default=LIMIT_S, show_default=True, help="Most seconds of computing for one.")
@click.option("--json", "as_json", is_flag=True, help="Print what changed as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def grade(run: Path, dry_run: bool, workers: int | None, limit_s: float, as_json: bool, debug: bool) -> None:
    """Grade the answers in the run folder RUN again, and write the verdicts there.

    Exit codes: 0 graded, whatever changed; 1 the folder cannot be written; 2 it is no run folder or cannot be read.
    """
    found = regrade(run, dry_run=dry_run, workers=workers, limit_s=limit_s)
    if as_json:
        show(msgspec.json.encode(found, order="sorted"))
        return
    for line in _lines(found):
        tell(line)


def _lines(found: Regrade) -> list[str]:
    changed = f"{found.changed:,} verdicts {'would change' if found.dry_run else 'changed'}"
    lines = [f"{found.run}: {changed}, {found.became_right:,} to right and {found.became_wrong:,} to wrong"]
    lines += [_line(change) for change in found.changes[:SHOWN]]
    lines += [f"  and {found.changed - SHOWN:,} more, all of them with --json"] if found.changed > SHOWN else []
    lines += [f"not compared to the end: {count:,}, {why}" for why, count in found.errors.items()]
    share = f" ({found.correct / found.graded:.1%})" if found.graded else ""
    return [*lines, f"{found.correct:,} of {found.graded:,} graded are right{share}, of {found.chains:,} chains"]


def _line(change: Change) -> str:
    answer, reference = (_short(text) for text in (change.answer or "no answer", change.reference_answer))
    return f"  {change.chain_id}: {_WORDS[change.before]} -> {_WORDS[change.after]}: {answer}  for  {reference}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
