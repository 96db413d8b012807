"""`pipeline prepare`: a recipe and the data as published enter, one Parquet file of problems leaves.

All rows are read and checked before a byte is written: the file is whole and holds what the recipe says, or is not written.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.bundled import FOLDERS
from pipeline.data.formats import open_source
from pipeline.data.obtain import hub_data
from pipeline.data.recipe import CanonicalRow, Recipe, RowReader, canonical_digest
from pipeline.data.rows import DAMAGE, Flaw, Record, Source
from pipeline.errors import InputError, UsageError, reason
from pipeline.files import new_file
from pipeline.text import storable

HUB = "hub"
"""Given in place of a path, it means: download from the Hugging Face hub."""


class PreparedData(Struct, frozen=True, kw_only=True):
    """The outcome of preparing a data set: what was read, what was written, and how it compares with the recipe."""

    name: str
    output: str
    origin: str
    rows: int
    left_out: int
    """Rows that the recipe's `only` and `first` exclude."""
    digest: str
    mismatch: str | None
    """How rows or digest differ from the recipe, which is accepted only with `allow_mismatch`; None where they do not."""
    checked: bool
    """Whether the recipe has a digest to compare with."""
    written: bool
    """False where a file with the same content was there already."""


def prepare(recipe: Recipe, origin: str | None, output: Path, *, overwrite: bool = False, allow_mismatch: bool = False) -> PreparedData:
    """Write `recipe`'s problems from `origin` (a path, `hub`, or None for bundled data) to `output`; raises `UsageError`.

    `allow_mismatch` writes although rows or digest differ from the recipe's, `overwrite` over another file. A wrong row is always an error.
    """
    if output.suffix != ".parquet" or output.is_dir() or storable(str(output)) != str(output):
        raise UsageError(f"{output}: expected the name of a file that ends in .parquet")
    published = _open(recipe, origin)
    where = published.where
    rows, left_out = _read(recipe, published)
    digest = canonical_digest(rows)
    mismatch = _mismatch(recipe, len(rows), digest, from_hub=origin == HUB)
    if mismatch and not allow_mismatch:
        raise InputError(
            where, f"{mismatch}: it is not the file the recipe was made for (another version, or damaged); --allow-mismatch accepts it"
        )
    written = _write(_table(recipe, rows, digest), output, overwrite)
    return PreparedData(
        name=recipe.name,
        output=str(output),
        origin=where,
        rows=len(rows),
        left_out=left_out,
        digest=digest,
        mismatch=mismatch,
        checked=recipe.digest is not None and not (origin == HUB and recipe.hub is not None and recipe.hub.rows),
        written=written,
    )


class _Published(NamedTuple):
    """A data set as published: its rows, before the recipe is applied."""

    where: str
    """The name of the source in error messages."""
    names: Mapping[str, None]
    """All columns of the file, where `records` hold only those that the recipe reads; else empty."""
    records: Iterator[tuple[int, Record]]


def _open(recipe: Recipe, origin: str | None) -> _Published:
    if origin == HUB:
        if recipe.hub is None:
            raise UsageError(f"--from hub: {recipe.name} is not on the hub; give a file: --from PATH")
        hub = recipe.hub
        return _Published(f"hub: {hub.id}", {}, enumerate(hub_data(f"hub: {hub.id}", hub.id, hub.config, hub.split, hub.revision), 1))
    if origin is None and recipe.file is None:
        or_hub = f", or --from hub to download {recipe.hub.id}" if recipe.hub else ""
        raise UsageError(f"{recipe.name} is not bundled; give the published file: --from PATH{or_hub}")
    path = Path(origin) if origin is not None else FOLDERS["data set"] / str(recipe.file)
    source = open_source(path)
    return _Published(str(path), source.names, _records(source, path, recipe.columns()))


def _records(source: Source, path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Record]]:
    row = 0
    try:
        for row, record in source.records(columns):
            yield row, record
    except DAMAGE as error:
        raise InputError(f"{path}, after row {row}", reason(error)) from error


def _read(recipe: Recipe, published: _Published) -> tuple[list[CanonicalRow], int]:
    """The rows made by the recipe, and how many others there are; raises `InputError` that names the wrong rows."""
    reader, left_out = RowReader(recipe, published.names), 0
    rows: dict[str, CanonicalRow] = {}
    numbers: dict[str, int] = {}
    flaws: dict[int, str] = {}
    for number, record in published.records:
        try:
            if isinstance(record, Flaw):
                raise record
            if not reader.wanted(record) or len(rows) == recipe.first:
                left_out += 1
                continue
            row = reader.read(number, record)
            if row.problem_id in rows:
                raise Flaw(f"`{recipe.problem_id}` is the id of row {numbers[row.problem_id]} too, {row.problem_id!r}; ids must be unique")
            rows[row.problem_id], numbers[row.problem_id] = row, number
        except Flaw as flaw:
            flaws[number] = str(flaw)
    if flaws:
        raise _wrong_rows(published.where, flaws)
    if not rows:
        raise InputError(published.where, f"holds no rows; the recipe's `only` skips {left_out}" if left_out else "holds no rows")
    return list(rows.values()), left_out


def _wrong_rows(where: str, flaws: dict[int, str]) -> InputError:
    first, *others = flaws
    more = f"; also wrong: {', '.join(map(str, islice(others, 10)))}{', ...' if len(others) > 10 else ''}" if others else ""
    return InputError(f"{where}, row {first}", f"{flaws[first]}{more}; nothing was written")


def _mismatch(recipe: Recipe, rows: int, digest: str, from_hub: bool) -> str | None:
    """How the data differ from what the recipe says, as a clause."""
    expected_rows, expected_digest = recipe.rows, recipe.digest
    if from_hub and recipe.hub is not None and recipe.hub.rows is not None:
        expected_rows, expected_digest = recipe.hub.rows, None
    if expected_rows not in (None, rows):
        return f"{rows:,} {'row' if rows == 1 else 'rows'}, expected {expected_rows:,}"
    if expected_digest not in (None, digest):
        return f"digest {digest}, expected {expected_digest}"
    return None


def _table(recipe: Recipe, rows: Sequence[CanonicalRow], digest: str) -> pa.Table:
    # Parquet calls what a list holds `element`: a table that is read again is then equal to this one.
    columns: dict[str, Any] = {
        "problem_id": pa.array([row.problem_id for row in rows], pa.string()),
        "problem": pa.array([row.problem for row in rows], pa.string()),
        "answer": pa.array([row.answer for row in rows], pa.string()),
        "options": pa.array([row.options for row in rows], pa.list_(pa.field("element", pa.string()))),
        "source": pa.array([row.source for row in rows], pa.string()),
        "grader": pa.array([row.grader for row in rows], pa.string()),
        **{ours: pa.array([row.kept[ours] for row in rows], pa.string()) for ours in recipe.keep},
    }
    about = {"recipe": recipe.name, "title": recipe.title, "license": recipe.license, "citation": recipe.citation, "digest": digest}
    return pa.table(columns).replace_schema_metadata(about)


def _write(table: pa.Table, output: Path, overwrite: bool) -> bool:
    """Write `table` to `output`, whole or not at all; False where a file with the same content was there already."""
    if output.exists():
        if _holds(output, table):
            return False
        if not overwrite:
            raise UsageError(f"{output}: exists with different content; choose another file with --output, or add --overwrite")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with new_file(output) as draft:
            pq.write_table(table, draft, compression="zstd")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {reason(error)}; choose another file with --output") from error
    return True


def _holds(path: Path, table: pa.Table) -> bool:
    if not path.is_file():
        return False
    try:
        there: pa.Table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        return False
    return bool(there.equals(table, check_metadata=True))
