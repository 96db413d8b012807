"""`pipeline runs list|rm|merge|check`: run folders as a table, deleted, merged, or checked for what is wrong in them."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from pipeline.analysis.compare.cells import Table, plain, plain_percent, size
from pipeline.analysis.run_list import RunState, run_folders, run_state, size_of
from pipeline.cli.commands import command, option
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.located import LocalPath, Located, RunFolder, written_run
from pipeline.cli.options import json_option
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.cluster.merge import merge as merged
from pipeline.errors import InputError, RunFolderError, UsageError, boundary
from pipeline.store.check import FolderExamination, examine
from pipeline.store.folder import is_held
from pipeline.store.run_file import FILE


@command()
@click.argument("folder", type=LocalPath(), default=Path("runs"), metavar="[DIR]")
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the runs in DIR (default: runs), latest first; with --json one object a line."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: {'not a directory' if folder.exists() else 'no such directory'}; name the one that contains your run folders"
        )
    found = list(_listed(folder))
    if as_json:
        for state in found:
            print_line(msgspec.json.encode(state).decode())
        return
    if not found:
        print_notice(f"{folder}: contains no runs")
        return
    columns = ("run", "graph", "models", "state", "chains", "accuracy", "chains/s", "size")
    print_table(Table("Runs", columns, tuple(tuple(_cells(state)) for state in found)), PlainConsole())


@command()
@click.argument("folders", nargs=-1, required=True, type=LocalPath(), metavar="RUN...")
@option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def rm(folders: tuple[Path, ...], yes: bool) -> None:
    """Delete run folders and everything in them. Asks for confirmation."""
    for folder in folders:
        if not (folder / FILE).is_file():
            raise UsageError(f"{folder}: not a run folder: it has no {FILE}")
        if is_held(folder):
            raise UsageError(f"{folder}: a process is at work in it; wait for its end")
    for folder in folders:
        all_of_it = size(size_of(folder))
        if yes or click.confirm(f"delete {folder}, {all_of_it}?"):
            with boundary(RunFolderError, f"{folder}: cannot be deleted", foreign=OSError):
                shutil.rmtree(folder)
            print_line(f"{folder}: deleted, {all_of_it}")


@command()
@click.argument("runs", nargs=-1, required=True, type=RunFolder(), metavar="RUN...")
@option("-o", "--output", type=click.Path(), required=True, metavar="DIR", help="Run folder to write, or its s3:// or gs:// URL.")
def merge(runs: tuple[Located, ...], output: str) -> None:
    """Merge the finished runs of all shards of an input (`pipeline run --shard`) into one run.

    The shards must be of the same graph, engines, input and options; their folders stay as they are.
    """
    run = merged([run.path for run in runs], written_run(output, new=True).path)
    print_line(f"{output}: {len(runs)} shards, {run.input.rows:,} problems, {run.totals.chains:,} chains")


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
        for line in _examined(found, str(run)):
            print_line(line)
    sys.exit(0 if found.sound else 1)


def _examined(found: FolderExamination, folder: str) -> list[str]:
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


def _listed(folder: Path) -> Iterator[RunState]:
    for run in run_folders(folder, depth=1):
        try:
            yield run_state(run, run.name)
        except InputError as error:
            print_notice(str(error))


def _cells(state: RunState) -> Iterator[str]:
    of = "" if state.of is None else f" of {state.of:,}"
    yield from (state.folder, state.graph, state.models, state.state, f"{state.chains:,}{of}")
    yield "-" if state.answers == "simulated" else plain_percent(state.accuracy)
    yield plain(state.problems_per_s)
    yield size(state.bytes)
