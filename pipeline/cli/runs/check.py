"""`pipeline runs check RUN`: what is wrong in a run folder; other commands print what they leave out."""

import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from pipeline.cli.commands import command, option
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.options import json_option
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.store.checking.fsck import Examination, examine
from pipeline.store.checking.fsck import repair as repaired
from pipeline.store.checking.inventory import flaws
from pipeline.store.folder import hold


def print_flaws(runs: Iterable[Path]) -> None:
    """Print a notice for every file of the run folders `runs` that is missing, left out, or changed since the run."""
    for run in runs:
        for sentence in flaws(run):
            print_notice(sentence)


@command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@option("--repair", is_flag=True, help="Repair what can be repaired; no file is deleted.")
@json_option
def check(run: Located, repair: bool, as_json: bool) -> None:
    """Check the run folder RUN for missing, duplicate, foreign or damaged files, and for chains whose rows are inconsistent.

    --repair turns write-ahead files into parts, drops inconsistent rows, and moves files that are not the run's own into the subfolder
    `aside`. `pipeline resume` then solves again what was lost.
    """
    if repair:
        examine(run.path)  # refuses what is no run folder, before a lock is made in it
        with hold(run.path):
            found = repaired(run.path)
    else:
        found = examine(run.path)
    if as_json:
        print_page(msgspec.json.encode(found, order="sorted"))
    else:
        for line in _lines(found, str(run), repair):
            print_line(line)
    sys.exit(0 if found.sound else 1)


def _lines(found: Examination, folder: str, repair: bool) -> list[str]:
    sessions = f"{found.sessions} session{'' if found.sessions == 1 else 's'}"
    manifest = "" if found.manifest else ", no manifest (of an earlier version, or lost): missing and foreign files cannot be detected"
    lines = [f"{folder}: {found.status}, {sessions}{', a process is at work in it' if found.held else ''}{manifest}"]
    lines += ["{:<10}{:>8}{:>14}{:>14}{:>12}".format("table", "parts", "write-ahead", "rows", "MB")]
    for table in found.tables:
        size = f"{table.bytes / 1e6:,.2f}"
        lines.append(f"{table.table:<10}{table.parts:>8,}{table.write_ahead:>14,}{table.rows:>14,}{size:>12}")
    lines += [f"repaired: {each}" for each in found.repaired]
    lines += [f"wrong: {flaw}" for flaw in found.flaws]
    if found.sound:
        return [*lines, "sound" + (": its chains are checked once the process has ended" if found.held else "")]
    remedy = "the rest cannot be repaired" if repair else f"to repair: pipeline runs check {folder} --repair"
    return [*lines, f"unsound: {remedy}"]
