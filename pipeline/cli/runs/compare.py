"""`pipeline compare RUN...`: accuracy and speed of runs in one table, or the tables that the papers print, from run folders alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from pipeline.analysis.compare import brief, read_runs, speeds
from pipeline.analysis.compare import compare as compared
from pipeline.analysis.papers import paper_table
from pipeline.analysis.tables import Table, as_csv, as_markdown, read_query
from pipeline.analysis.tables import as_json as as_json_of
from pipeline.cli.commands import command, json_option, option
from pipeline.cli.console import PlainConsole, print_parts
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.terminal import print_page
from pipeline.errors import UsageError, reason
from pipeline.files import new_file
from pipeline.store.folder import check_folder
from pipeline.text import sanitize

SUFFIXES = (".md", ".csv", ".json")


@command()
@click.argument("runs", type=RunFolder(), nargs=-1, metavar="RUN...")
@option(
    "--baseline",
    metavar="RUN|GRAPH",
    help="Baseline of speed-ups and gains.  [default: graph `target`, else the first run without drafts, else the first run]",
)
@option(
    "--table",
    metavar="NAME|FILE.sql",
    help="Print one table in the layout of a paper, such as speccot-2, or one of your own; see `pipeline list tables`.",
)
@option("--no-pool", is_flag=True, help="Do not pool runs that differ only in the seed.")
@json_option
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Also write to this file: .md, .csv or .json. May be repeated.",
)
def compare(
    runs: tuple[Located, ...],
    baseline: str | None,
    table: str | None,
    no_pool: bool,
    as_json: bool,
    output: tuple[Path, ...],
) -> None:
    """Compare the accuracy and speed of the run folders RUN..., each with the baseline over the same problems.

    The baseline is the target alone, if there is such a run. Prints one table and a verdict; --table prints the table of a paper.
    """
    folders = tuple(run.path for run in runs)
    _check(folders, baseline, table)
    for path in output:
        if path.suffix not in SUFFIXES:
            raise UsageError(f"--output {path}: its name must end in {', '.join(SUFFIXES)}")
    for folder in folders:
        check_folder(folder)
    read = read_runs(folders, pooled=not no_pool)
    if table:
        one = paper_table(table, read)
        shown: Sequence[str | Table] = [one]
        forms: dict[str, Callable[[], str]] = {".json": lambda: as_json_of(one)}
    else:
        found = compared(read, baseline)
        one, shown = speeds(found), brief(found)
        forms = {".json": lambda: as_json_of(found.as_dict())}
    forms |= {".md": lambda: as_markdown(shown), ".csv": lambda: as_csv(one.columns, one.rows)}
    for path in output:
        try:
            with new_file(path) as draft:
                draft.write_text(sanitize(forms[path.suffix]()), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {path}: cannot be written: {reason(error)}") from error
    if as_json:
        print_page(forms[".json"]())
    elif PlainConsole().is_terminal:
        print_parts(shown)
    else:
        print_page(forms[".md"]())


def _check(runs: tuple[Path, ...], baseline: str | None, table: str | None) -> None:
    """Raise `UsageError` for options that do not go together."""
    if not runs:
        raise UsageError("name one or more run folders to compare")
    if table is not None:
        read_query(table)
    if table is not None and baseline is not None:
        raise UsageError("--table and --baseline cannot be combined: paper tables always compare with the target alone")
