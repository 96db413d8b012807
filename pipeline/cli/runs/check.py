"""`pipeline runs check RUN`: what is wrong in a run folder; other commands refuse to read one that is not whole."""

import sys

import click
import msgspec

from pipeline.cli.commands import command
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.options import json_option
from pipeline.cli.terminal import print_line, print_page
from pipeline.store.check import FolderExamination, examine


@command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@json_option
def check(run: Located, as_json: bool) -> None:
    """Check the run folder RUN: every file and every row is read, and each chain must have the calls and steps that it counts.

    What a killed process left is no flaw: `pipeline resume` continues from it. A folder with missing, foreign or damaged files is refused
    by every command; put its files back from a copy, or start a new run.
    """
    found = examine(run.path)
    if as_json:
        print_page(msgspec.json.encode(found, order="sorted"))
    else:
        for line in _lines(found, str(run)):
            print_line(line)
    sys.exit(0 if found.sound else 1)


def _lines(found: FolderExamination, folder: str) -> list[str]:
    sessions = f"{found.sessions} session{'' if found.sessions == 1 else 's'}"
    lines = [f"{folder}: {found.status}, {sessions}{', a process is at work in it' if found.held else ''}"]
    lines += ["{:<10}{:>8}{:>14}{:>14}{:>12}".format("table", "parts", "write-ahead", "rows", "MB")]
    for table in found.tables:
        size = f"{table.bytes / 1e6:,.2f}"
        lines.append(f"{table.table:<10}{table.parts:>8,}{table.write_ahead:>14,}{table.rows:>14,}{size:>12}")
    lines += [f"wrong: {flaw}" for flaw in found.flaws]
    if not found.sound:
        return [*lines, "unsound"]
    return [*lines, "sound" + (": its chains are checked once the process has ended" if found.held else "")]
