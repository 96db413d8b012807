"""A run folder survives SIGKILL at any byte: recovered it has the durable rows, once, as they were; resumed it has those of the whole run.

The property is tested on every state of a small run's folder between two of its file operations, and with the last file cut.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, read_table
from tests.support.golden import TABLES, Files, History, cuts, golden_run, resumed, said, whole


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> History:
    """A run that nothing disturbed."""
    return golden_run(tmp_path_factory.mktemp("golden"))


def killed(history: History, share: float) -> Files:
    """The folder when this share of its file operations was done."""
    return history.moments[round(share * (len(history.moments) - 1))]


@pytest.fixture(scope="module")
def second(finished: History, tmp_path_factory: pytest.TempPathFactory) -> History:
    """The same run, killed and resumed."""
    return resumed(finished, killed(finished, 0.5), tmp_path_factory.mktemp("second") / "run")


def test_the_golden_run_has_several_parts_of_each_kind(finished: History) -> None:
    assert len(finished.moments) > 60
    names = {name for moment in finished.moments for name in moment}
    assert {f"{table}/part-00001.parquet" for table in ("calls", "steps")} <= names
    assert {f"{table}/wal-00000.log" for table in TABLES} <= names
    assert {"run.json", "chains/part-00000.parquet"} <= names
    assert [whole(finished.folder, table).num_rows for table in TABLES] == [100, 48, 4]


def test_a_killed_run_is_resumed_to_the_same_content(finished: History, second: History) -> None:
    assert said(second.folder) == said(finished.folder)
    assert RunFile.read(second.folder).totals == RunFile.read(finished.folder).totals


def is_prefix(found: pa.Table, rows: pa.Table) -> bool:
    """Whether these are the first of the rows, each as it was."""
    return not found.num_rows or bool(found.cast(rows.schema).equals(rows.slice(0, found.num_rows)))


def check_recovers(history: History, folder: Path, table: str, least: int) -> int:
    """Recover a folder: the table has at least these rows, the first of the finished run, before recovering and after it."""
    before = read_table(folder, table)
    RunStore(folder).recover()
    after = read_table(folder, table)
    assert after.num_rows == before.num_rows >= least, f"{table}: rows are lost"
    assert is_prefix(after, history.rows[table]), f"{table}: rows are doubled, torn or changed"
    assert not [*folder.glob("*/wal-*")]
    return after.num_rows


def check_hangs_together(folder: Path) -> None:
    """Every chain that has ended, and every step, has the calls that it rests on."""
    calls, steps = (Counter(row["chain_id"] for row in read_table(folder, table).to_pylist()) for table in ("calls", "steps"))
    for row in read_table(folder, "steps").to_pylist():
        assert calls[row["chain_id"]] >= row["calls"]
    for row in read_table(folder, "chains").to_pylist():
        assert (calls[row["chain_id"]], steps[row["chain_id"]]) == (row["calls"], row["steps"] + 1), "guidance is a row, but no step"


def check_cuts(history: History, moments: list[Files], place: Path, every: int) -> int:
    """`check_recovers` for some moments that follow one another in a history and for the cuts of each; how many that were."""
    durable, count = dict.fromkeys(TABLES, 0), 0
    for before, after in pairwise(moments):
        folder = history.put(before, place)
        durable = {table: check_recovers(history, folder, table, durable[table]) for table in TABLES}
        check_hangs_together(folder)
        assert is_prefix(whole(folder, "problems"), history.rows["problems"])
        for name, moment in cuts(before, after, every):
            table = name.partition("/")[0]
            check_recovers(
                history, history.put(moment, place), *((table, durable[table]) if table in TABLES else ("chains", durable["chains"]))
            )
            count += 1
    return count


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where syncing takes no time."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as folder:
        yield Path(folder) / "run"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["finished", "second"])
def test_a_folder_that_is_cut_anywhere_recovers_to_a_prefix(which: str, place: Path, request: pytest.FixtureRequest) -> None:
    history: History = request.getfixturevalue(which)
    assert check_cuts(history, history.moments, place, 9973) > 30


def test_a_folder_that_is_cut_while_its_first_rows_are_written_recovers_to_a_prefix(finished: History, place: Path) -> None:
    first = next(number for number, moment in enumerate(finished.moments) if "calls/wal-00000.log" in moment)
    assert check_cuts(finished, finished.moments[first : first + 3], place, 10**6) > 3


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.6, 0.9, 0.98])
def test_a_run_that_was_killed_at_any_moment_ends_as_one_that_was_not(
    finished: History, second: History, tmp_path: Path, share: float
) -> None:
    for history in (finished, second):
        moment = killed(history, share)
        cut = [each for _, each in cuts(killed(history, share - 0.01), moment, 10**6)]
        for number, each in enumerate([moment, *cut[1:2]]):
            again = resumed(history, each, tmp_path / f"{history is second}-{number}")
            assert said(again.folder) == said(finished.folder)
            assert RunFile.read(again.folder).totals == RunFile.read(finished.folder).totals
