"""What run folders hold, asked in SQL: folders enter, a view for each table leaves, over which DuckDB answers queries.

The views are `calls`, `steps`, `chains`, `problems` and `rewards`, with the columns of their rows in `store.rows`, the name of the run in
`run`, and in `chains` two more, `finished` and `counted`. A view has the rows of finished parts and those of write-ahead files that are no
part yet, so that a run in progress, or one that was killed, reads like one that has finished. It has them as they were when the query was
opened. A view is made when a query first names it; of its parts only the columns and row groups are read that a query needs. DuckDB
verifies no checksums, so those of a column are verified before the first query that reads it.

    with Query(Path("runs/first"), Path("runs/second")) as query:
        query.rows("SELECT run, avg(counted::INT) AS accuracy FROM chains GROUP BY run", Accuracy)
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.errors import InputError, OutOfMemory, UsageError
from pipeline.store.folder import check_run, folder_id
from pipeline.store.rows import ROWS, schema_of
from pipeline.store.store import REPLICA, check_parts, own_files, read_file, shards_of
from pipeline.system.machine import core_count, memory

if TYPE_CHECKING:
    import duckdb

Row = TypeVar("Row", bound=Struct)
Array = np.ndarray[Any, np.dtype[Any]]
TABLES = ("chains", "steps", "calls", "problems", "rewards")
"""The views in the order in which they are opened: a chain is written after its steps and calls, so of every chain that is seen all steps
and calls are."""
RUN = "run"
"""The column that a view has besides those of its rows: the name of the run folder."""
DERIVED = {
    "finished": (
        "BOOLEAN",
        "stop_reason NOT IN ('error', 'cancelled')",
        "True if the chain gave an answer: it neither failed nor was cancelled.",
    ),
    "counted": (
        "BOOLEAN",
        "CASE stop_reason WHEN 'error' THEN if(reference_answer IS NULL, NULL, false) WHEN 'cancelled' THEN NULL ELSE correct END",
        "True if it counts as right in every accuracy; null if it does not count. A failed chain with a reference answer counts as wrong.",
    ),
}
"""Further columns of the view `chains`: type, expression, meaning."""
STREAMED = 1_000
"""Rows that `stream` fetches at a time."""
_WHOLE = '"a whole row"'
"""A row in SQL: a name that no column has."""
_SETTINGS: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class Query:
    """Run folders open for queries; a context manager. For one thread at a time.

    Raises `UsageError` where a run is given twice, and `InputError` where one of the `folders` is none, is of another format, or lacks a
    file. The runs may continue meanwhile. SQL is that of DuckDB, with parameters `$name`.
    """

    def __init__(self, *folders: Path) -> None:
        import duckdb

        self.folders = folders
        self._connection = duckdb.connect(config=_SETTINGS | {"threads": core_count(), "memory_limit": f"{memory()[0] >> 21}MiB"})
        # Made where half of the memory is not enough, and gone when the connection is closed.
        temporary = _quoted(str(Path(gettempdir()) / f"pipeline-query-{uuid4().hex}"))
        self._connection.execute(
            f"SET temp_directory = {temporary}; SET python_enable_replacements = false; SET parquet_metadata_cache = true"
        )
        try:
            self.names = run_names(folders)
            """The names of the runs, as in the column `run`."""
            for folder in folders:
                check_run(folder)
                folder_id(folder)
            self._views = {table: self._view(table) for table in TABLES if folders}
            self._unverified: list[tuple[list[Path], set[str]]] = []
            """For each view that was made its parts, and those of their columns whose checksums were not verified."""
        except BaseException:
            self._connection.close()
            raise

    def rows(self, sql: str | Path, kind: type[Row], **params: Any) -> list[Row]:
        """The rows of a query as Structs of this `kind`, whose fields are the columns. A path is that of a file with the query."""
        with self._errors_of_files():
            found = self._execute(sql, params)
            names = [column[0] for column in found.description or ()]
            return msgspec.convert([dict(zip(names, row, strict=True)) for row in found.fetchall()], list[kind])  # type: ignore[valid-type]

    def scalar(self, sql: str | Path, **params: Any) -> Any:
        """The value of a query with one row and one column."""
        [(value,)] = self.stream(sql, **params)
        return value

    def columns(self, sql: str | Path, **params: Any) -> dict[str, Array]:
        """The columns of a query as arrays, those with nulls as masked ones."""
        with self._errors_of_files():
            return self._execute(sql, params).fetchnumpy()

    def arrow(self, sql: str | Path, **params: Any) -> pa.Table:
        """The result of a query as an Arrow table."""
        with self._errors_of_files():
            return self._connection.sql(self._named(sql, params), params=params).to_arrow_table()

    def stream(self, sql: str | Path, **params: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one after the other, for results that need not be in memory; no other query may be asked meanwhile."""
        with self._errors_of_files():
            found = self._execute(sql, params)
            while rows := found.fetchmany(STREAMED):
                yield from rows

    def execute(self, sql: str | Path, **params: Any) -> None:
        """Run a statement that has no result, such as one that makes a temporary table for the queries to come."""
        with self._errors_of_files():
            self._execute(sql, params)

    def register(self, table: str, **columns: Any) -> None:
        """Make a table of these columns, for the queries to come."""
        self._connection.register(table, pa.table(columns))

    def select(self, sql: str) -> "duckdb.DuckDBPyRelation":
        """The result of a user's query: `.df()` makes it a pandas DataFrame, `.pl()` one of Polars, `.arrow()` Arrow batches, and
        `.fetchall()` tuples.

        Raises `UsageError` for anything but one query, which reads and changes nothing, and for names that no view has.
        """
        import duckdb

        with self.errors_of_sql():
            kinds = [each.type for each in self._connection.extract_statements(sql)]
            if kinds not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.MULTI]):  # PIVOT is more than one
                raise UsageError("SQL: expected one query, which begins with SELECT, FROM, WITH or PIVOT")
            return self._connection.sql(self._named(sql, {}))

    def copy(self, sql: str, path: Path, options: str) -> int:
        """Write the result of a query into a file; the number of rows. `options` are those of DuckDB's COPY.

        One thread writes: several would hold in memory what is done before its turn. Raises `OSError`.
        """
        import duckdb

        self._connection.execute("SET threads = 1")
        try:
            [(rows,)] = self._execute(f"COPY {self._inner(sql)} TO {_quoted(str(path))} ({options})", {}).fetchall()
        except duckdb.IOException as error:
            raise OSError(_said(error)) from error
        return int(rows)

    def json_rows(self, sql: str) -> Iterator[list[str]]:
        """The rows of a query as JSON objects, some at a time; of equal names of columns the second and further ones have a number."""
        self._connection.execute("SET threads = 1")
        found = self._execute(f"SELECT to_json({_WHOLE}) FROM {self._inner(sql)} AS {_WHOLE}", {})
        while rows := [row for (row,) in found.fetchmany(STREAMED)]:
            # DuckDB writes these, and no JSON has them.
            yield [msgspec.json.encode(json.loads(row)).decode() if "NaN" in row or "Infinity" in row else row for row in rows]

    def whole(self, table: str) -> str:
        """A query for a table with the columns of its rows alone."""
        return f"SELECT {', '.join(schema_of(ROWS[table]).names)} FROM {table}"

    def _inner(self, sql: str) -> str:
        """A query as a part of another one."""
        [statement] = self._connection.extract_statements(sql)
        return f"({statement.query.strip().rstrip(';')}\n)"

    def close(self) -> None:
        """Close the files; results that were not fetched are lost."""
        self._connection.close()

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _execute(self, sql: str | Path, params: Mapping[str, Any]) -> "duckdb.DuckDBPyConnection":
        return self._connection.execute(self._named(sql, params), params)

    def _named(self, sql: str | Path, params: Mapping[str, Any]) -> str:
        """The text of a query, after making the tables that it names and verifying the columns that it reads."""
        text = sql.read_text() if isinstance(sql, Path) else sql
        for table in sorted(words_of(text) & self._views.keys()):
            parts, statement = self._views.pop(table)
            check_parts(parts)
            self._connection.execute(statement)
            self._unverified.append((parts, {*schema_of(ROWS[table]).names}))
        plan = words_of(str(self._connection.execute(f"EXPLAIN (FORMAT json) {text}", params).fetchall()))
        for parts, columns in self._unverified:
            check_parts(parts, sorted(columns & plan))
            columns -= plan
        return text

    def _view(self, table: str) -> tuple[list[Path], str]:
        """The parts of a table, and the statement that makes its view of them and of the rows that are in no part yet."""
        schema, parts, pieces = schema_of(ROWS[table]), list[Path](), list[str]()
        further = "".join(f", {sql} AS {name}" for name, (_, sql, _) in DERIVED.items()) if table == "chains" else ""
        for run, folder in zip(self.names, self.folders, strict=True):
            shards = shards_of(folder, table)
            for replica, place in enumerate(shards) if shards else [(None, folder)]:
                own = {REPLICA: f"{replica}::INTEGER AS {REPLICA}"} if replica is not None else {}
                select = f"SELECT {_quoted(run)} AS {RUN}, {', '.join(own.get(name, name) for name in schema.names)}{further} FROM"
                files = own_files(place, table)
                full = [file for file in files if file.suffix == ".parquet"]
                rest = (batch for file in files if file not in full for batch in read_file(file, schema.names))
                waiting = f"waiting_{table}_{len(pieces)}"
                self._connection.register(waiting, pa.Table.from_batches((each.replace_schema_metadata() for each in rest), schema))
                pieces.append(f"{select} {waiting}")
                if full:  # a folder named NAME=VALUE is no column
                    pieces.append(f"{select} read_parquet([{', '.join(map(_path, full))}], hive_partitioning = false)")
                parts += full
        return parts, f"CREATE VIEW {table} AS {' UNION ALL '.join(pieces)}"

    @contextmanager
    def _errors_of_files(self) -> Iterator[None]:
        """Errors of queries of this package, which are those of the files."""
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise OutOfMemory from error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise InputError(", ".join(map(str, self.folders)), f"cannot be read: {_said(error)}") from error

    @contextmanager
    def errors_of_sql(self) -> Iterator[None]:
        """Errors of queries of users, in DuckDB's words."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            tables = f"; the tables are {', '.join(TABLES)}" if isinstance(error, duckdb.CatalogException) else ""
            raise UsageError(f"SQL: {_said(error)}{tables}") from error


def words_of(sql: str) -> set[str]:
    """The words of a query in lower case, the names of its tables among them."""
    return set(re.findall(r"\w+", sql.lower()))


def query(*runs: str | Path) -> Query:
    """Open run folders for queries: `pipeline.query("runs/first").select("SELECT stage, count(*) FROM calls GROUP BY stage").df()`.

    The views are `calls`, `steps`, `chains`, `problems` and `rewards`. Raises `InputError` where a folder is no run folder.
    """
    return Query(*map(Path, runs))


def run_names(folders: Sequence[Path]) -> list[str]:
    """The name of each run: that of its folder, with its parent where two have the same name, or else its path.

    Raises `UsageError` where a folder is given twice.
    """
    places = [folder.resolve() for folder in folders]
    if repeated := [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise UsageError(f"{repeated[0]} is given twice; name each run once")
    names = [place.name for place in places]
    full = [name if names.count(name) == 1 else str(Path(*place.parts[-2:])) for name, place in zip(names, places, strict=True)]
    return full if len(set(full)) == len(full) else [str(place) for place in places]


def _path(file: Path) -> str:
    """A file in SQL that names it alone, whatever characters of patterns are in its path."""
    return _quoted(re.sub(r"[*?\[]", r"[\g<0>]", str(file)))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _said(error: BaseException) -> str:
    """An error of DuckDB in one line, without its kind and without the query."""
    return " ".join(re.sub(r"^[A-Z][\w ]* Error: ", "", str(error)).split("\nLINE ")[0].split())
