"""`pipeline query RUN... SQL`: what run folders hold, asked in SQL."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pipeline.analysis.tables import Table
from pipeline.cli.commands import check_output, command, json_option, option, overwrite_option
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.located import LocalPath, Located, RunFolder
from pipeline.cli.terminal import print_json, print_line
from pipeline.errors import RunFolderError, UsageError, boundary, reason
from pipeline.export.answers_file import write_query
from pipeline.files import whole_file
from pipeline.store.folder import FILE, check_run
from pipeline.store.query import Query, words_of

FORMATS = (".parquet", ".csv", ".json", ".jsonl")
MAX_ROWS = 100
"""Rows that are printed."""


@command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@click.argument("sql", metavar="SQL|FILE.sql")
@option(
    "-o",
    "--output",
    type=LocalPath(),
    metavar="FILE",
    help="Write all rows to this file: .parquet, .csv, .json or .jsonl.",
    heading="Output",
)
@overwrite_option
@json_option
def query(runs: tuple[Located, ...], sql: str, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Print the result of an SQL query over the run folders RUN..., or those of a sweep, also while they are running.

    The tables are calls, steps, chains, problems and rewards, with the columns in docs/pages/reference/run-folder.md and `run`, the name of
    the folder. chains also has finished (the chain gave an answer) and counted (whether it counts as right). A table runs has a row for
    each run, with its settings and figures, as `compare --json` names them. The dialect is DuckDB's.
    """
    text = _text(sql)
    if output is not None and output.suffix not in FORMATS:
        raise UsageError(f"--output {output}: its name must end in {', '.join(FORMATS)}")
    if output is not None:
        check_output(output, overwrite)
    folders = [folder for run in runs for folder in _run_folders(run.path)]
    with Query(*folders) as asked, asked.errors_of_sql():
        if "runs" in words_of(text):
            _make_runs(asked)
        found = asked.select(text)
        if output is not None:
            with boundary(RunFolderError, str(output), foreign=OSError):
                if output.suffix != ".json":
                    write_query(output, asked, text)
                else:
                    with whole_file(output) as file:
                        file.writelines(map(str.encode, _array(asked.json_rows(text))))
            print_line(f"{output}: written")
            return
        if as_json:
            print_json(_array(asked.json_rows(text)))
            return
        rows = found.limit(MAX_ROWS + 1).fetchall()
        shown = tuple(tuple(map(_printed, row)) for row in rows[:MAX_ROWS])
        print_table(Table("", tuple(found.columns), shown), PlainConsole())
    if len(rows) > MAX_ROWS:
        print_line(f"only the first {MAX_ROWS:,} rows; -o FILE writes all of them")


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself, or the runs in a sweep's folder."""
    found = [] if (folder / FILE).exists() else import_module("pipeline.analysis.progress").run_folders(folder, depth=2)
    if not found:
        check_run(folder)
    return found or [folder]


def _make_runs(asked: Query) -> None:
    read_runs = import_module("pipeline.analysis.compare").read_runs
    import_module("pipeline.analysis.papers").make_runs(asked, read_runs(asked.folders), "")


def _printed(value: Any) -> str:
    if isinstance(value, Mapping):  # it may be a figure with its interval
        return str(import_module("pipeline.analysis.tables").printed(value))
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _array(rows: Iterable[list[str]]) -> Iterator[str]:
    """The pieces of a JSON array of these rows."""
    before = "[\n"
    for some in rows:
        yield before + ",\n".join(some)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _text(sql: str) -> str:
    """The query itself, or the one in a file."""
    if not sql.endswith(".sql"):
        return sql
    try:
        return Path(sql).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{sql}: cannot be read: {reason(error)}; expected a file with a query") from error
