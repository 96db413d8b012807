"""Run folders that another program or a person has changed: every command that reads one works or says in one sentence what is wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.store.read import read_batches
from tests.support import odd_runs
from tests.support.fuzzing import command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_runs.make_run(tmp_path_factory.mktemp("odd"))


def carried_out(run: Path, folder: Path, *names: str) -> None:
    """Each of the commands on a copy of `run`: exit code 0, 2 or 3 with a sentence, never another exception."""
    for name in names:
        copy = odd_runs.copy_of(run, folder / "copy")
        command(*odd_runs.commands(copy, run, folder)[name])


READ_BY = {
    "calls": ("perfetto", "compare", "graph"),
    "steps": ("compare", "graph", "resume"),
    "chains": ("compare", "failed", "resume", "grade"),
}
"""Commands that read most columns of a table."""
FAMILIES = ("one null", "all null", "other type", "nulls in lists", "dictionary", "large types", "missing")
NUMBERS = ("negative", "zero", "huge", "large", "longer lists", "empty lists", "not finite")


def columns(run: Path, table: str) -> list[str]:
    return list(pq.read_schema(run / table / "part-00000.parquet").names)


@pytest.mark.slow
@pytest.mark.parametrize("table", odd_runs.TABLES)
def test_every_column_is_changed_in_every_way(run: Path, tmp_path: Path, table: str) -> None:
    """What the reader of a table lets through is what it should be; what it does not has a sentence that names the column."""
    for column in columns(run, table):
        for way, change in odd_runs.CHANGES.items():
            odd = odd_runs.copy_of(run, tmp_path / "run")
            if odd_runs.changed_column(odd, table, column, change):
                said = refusal(odd, table, column)
                assert said is None or f"`{column}`" in said, (column, way)


def refusal(run: Path, table: str, column: str) -> str | None:
    """The sentence that refuses a column; None where it can be read."""
    try:
        list(read_batches(run, table, [column]))
    except InputError as error:
        return str(error)
    return None


def chosen(run: Path, table: str) -> Iterator[tuple[str, str]]:
    """One way of changing each column, another one for the next."""
    ways = [*FAMILIES, *NUMBERS]
    for place, column in enumerate(columns(run, table)):
        yield column, ways[place % len(ways)]


@pytest.mark.slow
@pytest.mark.parametrize("table", odd_runs.TABLES)
def test_commands_read_changed_columns_or_say_what_is_wrong(run: Path, tmp_path: Path, table: str) -> None:
    for column, way in chosen(run, table):
        odd = odd_runs.copy_of(run, tmp_path / "run")
        if odd_runs.changed_column(odd, table, column, odd_runs.CHANGES[way]):
            carried_out(odd, tmp_path, *READ_BY[table])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column", "way", "reader"),
    [
        ("chains", "input_row", "one null", "resume"),
        ("chains", "stop_reason", "other type", "report"),
        ("chains", "answer", "other type", "grade"),
        ("calls", "engine", "one null", "calibrate"),
        ("calls", "end_unix_ns", "zero", "perfetto"),
        ("calls", "queue_time_s", "negative", "perfetto"),
        ("calls", "output_token_ids", "longer lists", "replay"),
        ("steps", "decision", "one null", "report"),
        ("steps", "candidate_tokens", "longer lists", "report"),
        ("steps", "score_value", "not finite", "report"),
    ],
)
def test_changes_that_once_ended_in_a_traceback(run: Path, tmp_path: Path, table: str, column: str, way: str, reader: str) -> None:
    odd = odd_runs.copy_of(run, tmp_path / "run")
    assert odd_runs.changed_column(odd, table, column, odd_runs.CHANGES[way])
    if reader == "replay":
        odd_runs.run_replayed(odd, run, tmp_path)
    else:
        carried_out(odd, tmp_path, reader)


@pytest.mark.slow
@pytest.mark.parametrize(("column", "number"), [("input_row", 0), ("sample_index", 5)])
def test_chains_that_the_run_does_not_have_are_not_taken_for_others(run: Path, tmp_path: Path, column: str, number: int) -> None:
    odd = odd_runs.copy_of(run, tmp_path / "run")
    assert odd_runs.changed_column(odd, "chains", column, odd_runs.filled(number, ""))
    done = command("resume", odd)
    assert done.code == 2
    assert "chains: has a chain that is not part of the run: " in done.stderr


VALUES: tuple[Any, ...] = (None, "odd", -7, 10**22, [], 1e300)


@pytest.mark.slow
def test_run_json_with_any_value_changed(run: Path, tmp_path: Path) -> None:
    """Every field has one of the values, another one than the field before it."""
    card = json.loads((run / "run.json").read_text())
    for number, place in enumerate(odd_runs.places(card)):
        if place[0] in ("versions", "graph", "host"):
            continue
        odd = odd_runs.copy_of(run, tmp_path / "run")
        changed = json.loads((run / "run.json").read_text())
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = VALUES[number % len(VALUES)]
        (odd / "run.json").write_text(json.dumps(changed))
        carried_out(odd, tmp_path, "compare", "resume")
