"""Queries over run folders: parts and write-ahead files are one view, whatever became of the run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from pipeline.errors import UsageError
from pipeline.store.query import DERIVED, TABLES, Query, query
from pipeline.store.rows import ROWS, ChainRow
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import write_run_json


class Counts(Struct):
    run: str
    chains: int
    right: float | None
    engines: tuple[str, ...]


def chains(*numbers: int, **fields: Any) -> list[ChainRow]:
    return [blank(ChainRow, chain_id=f"p{i}#0", problem_id=f"p{i}", input_row=i + 1, **fields) for i in numbers]


@pytest.fixture
def running(tmp_path: Path) -> RunStore:
    """A run in progress: two rows are in a part, two in a write-ahead file."""
    store = RunStore(write_run_json(tmp_path / "it's [1]*"))
    store.append("chains", chains(0, 1, correct=True))
    store.close()
    store = RunStore(tmp_path / "it's [1]*")
    store.append("chains", [*chains(2, correct=False), *chains(3, stop_reason="error", reference_answer="7", correct=None)])
    return store


def test_a_running_run_reads_like_a_finished_one(running: RunStore) -> None:
    sql = "SELECT run, count(*) AS chains, avg(counted::INT) AS right, ['a', $more] AS engines FROM chains GROUP BY run"
    with Query(running.folder) as before:
        assert before.rows(sql, Counts, more="b") == [Counts("it's [1]*", 4, 0.5, ("a", "b"))]
        running.close()
        with Query(running.folder) as after:
            assert after.rows(sql, Counts, more="b") == before.rows(sql, Counts, more="b")
        assert before.scalar("SELECT list(input_row ORDER BY input_row) FROM chains WHERE finished") == [1, 2, 3]


def test_tables_that_are_not_there_are_empty(tmp_path: Path) -> None:
    with query(write_run_json(tmp_path)) as asked:
        for table in TABLES:
            found = asked.select(f"FROM {table}")
            derived = DERIVED if table == "chains" else ()
            assert (set(found.columns), found.fetchall()) == ({"run", *ROWS[table].__struct_fields__, *derived}, [])


def test_several_folders_are_one_set_of_tables(tmp_path: Path) -> None:
    for name, number in (("a/run", 1), ("b/run", 2), ("c/other", 3)):
        store = RunStore(write_run_json(tmp_path / name))
        store.append("chains", chains(*range(number)))
        store.close()
    with Query(tmp_path / "a/run", tmp_path / "b/run", tmp_path / "c/other") as asked:
        found = asked.columns("SELECT run, count(*) AS n FROM chains GROUP BY run ORDER BY n")
    assert found["run"].tolist() == ["a/run", "b/run", "other"]
    assert found["n"].tolist() == [1, 2, 3]


def test_folders_are_no_columns(running: RunStore) -> None:
    running.close()
    folder = running.folder.parent / "wall_time_s=5" / "correct=true"
    shutil.copytree(running.folder, folder)
    with Query(folder) as asked:
        assert asked.columns("SELECT correct FROM chains WHERE correct IS NOT NULL")["correct"].tolist() == [True, True, False]


def test_a_run_that_is_given_twice_is_not_counted_twice(running: RunStore) -> None:
    with pytest.raises(UsageError, match="is given twice; name each run once"):
        Query(running.folder, running.folder.parent / "." / running.folder.name)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT stag FROM calls", 'Candidate bindings: "stage"'),
        ("SELECT calls.stag FROM calls", 'does not have a column named "stag"'),
        ("FROM chain", "Table with name chain does not exist! Did you mean"),
        *((sql, "expected one query") for sql in ("DROP VIEW calls", "COPY calls TO 'x.csv'", "SELECT 1; SELECT 2", "")),
    ],
)
def test_users_queries_are_refused_in_a_sentence(tmp_path: Path, sql: str, said: str) -> None:
    with Query(write_run_json(tmp_path)) as asked, pytest.raises(UsageError, match=f"^SQL: .*{said[:30]}") as caught:
        asked.select(sql)
    assert said in str(caught.value)
