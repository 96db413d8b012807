"""Checking a run folder: are its files those of the run, and does each chain have the calls and steps that it rests on?

Nothing is written. A folder that is not whole is refused in one sentence; what a kill leaves is no flaw.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from pipeline.errors import InputError
from pipeline.store.events import ROWS, TABLES
from pipeline.store.folder import is_held
from pipeline.store.parts import REMEDY, check_parts, table_files
from pipeline.store.query import Query
from pipeline.store.read import check_folder, count_rows, has_table
from pipeline.store.run_file import FILE, RunFile

SHOWN = 5
"""Chains that are named in a sentence."""
TORN = """
    WITH c AS (SELECT chain_id, count(*) AS n, max(call_index) + 1 AS top FROM calls GROUP BY chain_id),
    s AS (
        SELECT chain_id, count(*) FILTER (step_index > 0) AS n, max(step_index) AS top, max(calls) AS needed FROM steps GROUP BY chain_id
    ),
    e AS (
        SELECT chain_id, count(*) AS n, max(calls) FILTER (stop_reason <> 'cancelled') AS calls,
            max(steps) FILTER (stop_reason <> 'cancelled') AS steps, bool_or(error_type = 'ResumeMismatch') AS mismatched
        FROM chains GROUP BY chain_id
    )
    SELECT chain_id FROM e FULL JOIN c USING (chain_id) FULL JOIN s USING (chain_id)
    WHERE NOT coalesce(e.mismatched, false) AND (
        e.n > 1 OR c.n <> c.top OR s.n <> s.top OR s.needed > coalesce(c.n, 0) OR coalesce(c.n, 0) <> e.calls OR coalesce(s.n, 0) <> e.steps
    )
    ORDER BY chain_id
"""
"""Chains whose calls or steps have a gap, whose steps rest on calls that are not there, or whose row in `chains` counts others.

Guidance, step 0, is not counted. A chain that failed of a resumed step that came out differently has steps of both.
"""


class TableContent(Struct, frozen=True):
    """What a run folder has of one table."""

    table: str
    parts: int
    write_ahead: int
    """Write-ahead files."""
    rows: int
    bytes: int


class FolderExamination(Struct, frozen=True):
    """What a run folder has, and what is wrong with it."""

    folder: str
    status: str
    """As `run.json` says; `unknown` without one."""
    held: bool
    """True while a process is at work in the folder; then its chains are not checked."""
    sessions: int
    tables: list[TableContent]
    flaws: list[str]
    """A sentence for each table that is not whole."""

    @property
    def sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.flaws


def check_chains(folder: Path) -> None:
    """Raise `InputError` where files of a run folder are none of the run's, or rows are missing or there twice."""
    if torn := torn_chains(folder):
        named = ", ".join(torn[:SHOWN]) + (", ..." if len(torn) > SHOWN else "")
        what = f"calls or steps of {len(torn):,} chains are missing or are there twice ({named})"
        raise InputError(str(folder), f"{what}; a file of the run is damaged or was removed: {REMEDY}")


def torn_chains(folder: Path) -> list[str]:
    """The ids of chains whose rows in the three tables do not fit together. Raises `InputError` where a table cannot be read."""
    with Query(folder) as query:
        return [str(chain) for chain in query.columns(TORN)["chain_id"]]


def examine(folder: Path) -> FolderExamination:
    """Examine a run folder, reading every file whole. Raises `InputError` if `folder` is not a run folder of this format."""
    check_folder(folder)
    held = is_held(folder)
    if not (folder / FILE).exists() and not any((folder / table).is_dir() for table in TABLES):
        raise InputError(str(folder), f"not a run folder: it has neither {FILE} nor tables")
    run = RunFile.read_known(folder)
    flaws, tables = list(_run_flaws(folder)), []
    for table in ROWS:
        try:
            if has_table(folder, table):
                tables.append(_content(folder, table))
        except InputError as error:
            flaws.append(str(error))
    if not flaws and not held:
        try:
            check_chains(folder)
        except InputError as error:
            flaws.append(str(error))
    return FolderExamination(str(folder), run.status, held, len(run.sessions), tables, flaws)


def _run_flaws(folder: Path) -> Iterator[str]:
    try:
        RunFile.read(folder)
    except InputError as error:
        yield str(error)


def _content(folder: Path, table: str) -> TableContent:
    files, rows = table_files(folder, table), count_rows(folder, table)
    parts = [file for file in files if file.suffix == ".parquet"]
    check_parts(parts)
    size = sum(file.stat().st_size for file in files if file.exists())
    return TableContent(table, len(parts), len(files) - len(parts), rows, size)
