"""A small run folder, the changes that another program or a person may make to it, and the commands that read it."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cli.main import run_command
from tests.support.paths import ROOT
from tests.support.runs import solve, write_problems

TABLES = ("calls", "steps", "chains")
ENGINES = ROOT / "graphs/engines/sim-2xh100.yaml"
HUGE = 2**62


def make_run(folder: Path) -> Path:
    """A run of four problems, two samples each, that was interrupted: two of its chains have calls and steps and no row."""
    result = solve(folder, "run", samples=2, input=write_problems(folder, 4))
    assert result.folder is not None
    part = result.folder / "chains/part-00000.parquet"
    pq.write_table(pq.read_table(part).slice(2), part)
    card = json.loads((result.folder / "run.json").read_text())
    (result.folder / "run.json").write_text(json.dumps(card | {"status": "interrupted"}))
    return result.folder


def changed_column(run: Path, table: str, column: str, change: Callable[[pa.ChunkedArray], pa.Array | None]) -> bool:
    """Change a column of a table's only part, or drop it where `change` gives None; False where that leaves it as it was."""
    part = run / table / "part-00000.parquet"
    content = pq.read_table(part)
    place = content.column_names.index(column)
    new = change(content.column(place))
    if new is not None and new.type == content.column(place).type and pa.chunked_array([new]).equals(content.column(place)):
        return False
    pq.write_table(content.remove_column(place) if new is None else content.set_column(place, column, new), part)
    return True


def one_null(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([None, *column.to_pylist()[1:]], column.type)


def all_null(column: pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(column))


def other_type(column: pa.ChunkedArray) -> pa.Array:
    """Numbers in place of text, and text in place of all else."""
    return pa.array([7] * len(column)) if pa.types.is_string(column.type) else pa.array(["odd"] * len(column))


def filled(number: int, text: str) -> Callable[[pa.ChunkedArray], pa.Array]:
    """Every number and every text replaced, those in lists too."""

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(each) for each in value]
        if isinstance(value, bool) or value is None:
            return value
        return text if isinstance(value, str) else float(number) if isinstance(value, float) else number

    return lambda column: pa.array(put(column.to_pylist()), column.type)


def nulls_in_lists(column: pa.ChunkedArray) -> pa.Array:
    values = column.to_pylist()
    return pa.array([[None] * len(value) if isinstance(value, list) else value for value in values], _nullable(column.type))


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type, with nulls allowed in its lists."""
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def longer_lists(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([value * 2 if isinstance(value, list) else value for value in column.to_pylist()], column.type)


def empty_lists(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([[] if isinstance(value, list) else value for value in column.to_pylist()], column.type)


def as_dictionary(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.dictionary_encode() if pa.types.is_string(column.type) else whole


def as_large(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if pa.types.is_list(column.type):
        return whole.cast(pa.large_list(column.type.value_type))
    return whole.cast(pa.large_string()) if pa.types.is_string(column.type) else whole


def not_finite(column: pa.ChunkedArray) -> pa.Array:
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        return pa.array([float("nan"), float("inf"), *values[2:]], column.type)
    if pa.types.is_list(column.type) and pa.types.is_floating(column.type.value_type):
        return pa.array([[float("nan")] * len(value) for value in values], column.type)
    return column.combine_chunks()


CHANGES: dict[str, Callable[[pa.ChunkedArray], pa.Array | None]] = {
    "missing": lambda column: None,
    "one null": one_null,
    "all null": all_null,
    "other type": other_type,
    "negative": filled(-7, ""),
    "zero": filled(0, "same"),
    "huge": filled(HUGE, "x" * 3000),
    "large": filled(10**9, "\x1b[31m<b>"),
    "nulls in lists": nulls_in_lists,
    "longer lists": longer_lists,
    "empty lists": empty_lists,
    "not finite": not_finite,
    "dictionary": as_dictionary,
    "large types": as_large,
}


def commands(run: Path, other: Path, folder: Path) -> dict[str, tuple[str | Path, ...]]:
    """The commands that read a run folder; `other` is an unchanged one of the same run. `resume` and `grade` write, so they come last."""
    return {
        "compare": ("compare", run, other),
        "identical": ("compare", "--identical", run, other),
        "failed": ("show", run, "--failed"),
        "perfetto": ("export", run, "--as", "perfetto", "--output", folder / "perfetto.pftrace", "--overwrite"),
        "otlp": ("export", run, "--as", "otlp", "--texts", "--output", folder / "otlp.json", "--overwrite"),
        "graph": ("graph", "show", ROOT / "graphs/speccot.yaml", "--engines", ENGINES, "--run", run),
        "calibrate": ("calibrate", run, "--output", folder / "calibration.yaml"),
        "replay": ("run", ROOT / "graphs/speccot.yaml", "--engines", f"replay:{run}", "--input", other.parent / "problems.jsonl",
                   "--samples", "2", "--output", folder / "replayed"),
        "report": ("report", run, "--output", folder / "report.html", "--chains", "30", "--bins", "10"),
        "grade": ("grade", run),
        "resume": ("resume", run),
    }  # fmt: skip


def run_replayed(run: Path, other: Path, folder: Path) -> None:
    """Replay `run`: what is wrong with its calls is met while its engines open, which is exit code 1."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = run_command([str(argument) for argument in commands(run, other, folder)["replay"]])
    assert code in (0, 1, 3), said.getvalue()
    assert "Traceback" not in said.getvalue()


def copy_of(run: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(run, target))


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in decoded JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*path, key)
        yield from places(each, (*path, key))
