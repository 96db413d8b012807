"""A folder whose files are not those of its run is refused in a sentence that names the file, and stays as it is."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.session.options import resume_options
from pipeline.session.run import run as resume
from pipeline.store.check import check_chains
from pipeline.store.events import CallRow, ChainRow, RewardRow, StepRow
from pipeline.store.parts import write_part
from pipeline.store.query import check_readable
from pipeline.store.read import read_table
from pipeline.store.run_file import RunFile
from pipeline.store.run_store import RunStore
from tests.support.golden import golden_run

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, `run` and `other/run`, whose calls and steps have several parts each."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "other").mkdir()
    golden_run(folder)
    golden_run(folder / "other")
    return folder


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Path:
    """A copy of `run`, which was interrupted as its `run.json` says, beside one of `other`."""
    shutil.copytree(source / "other/run", tmp_path / "other")
    folder = Path(shutil.copytree(source / "run", tmp_path / "run"))
    change_card(folder, status="interrupted")
    return folder


def change_card(run: Path, **fields: object) -> None:
    card = msgspec.json.decode((run / "run.json").read_bytes()) | fields
    (run / "run.json").write_bytes(msgspec.json.encode({name: value for name, value in card.items() if value is not None}))


def content(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and not path.is_fifo() and path.name != "run.lock"
    }


def swap(run: Path, one: str, other: str) -> None:
    os.rename(run / one, run / "x")
    os.rename(run / other, run / one)
    os.rename(run / "x", run / other)


def last(run: Path, table: str) -> Path:
    return sorted((run / table).glob("part-*.parquet"))[-1]


def without(run: Path, table: str, column: str) -> None:
    part = last(run, table)
    write_part(part, pq.ParquetFile(part).read().drop_columns([column]))


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "the first part is missing": (
        lambda run: (run / "calls/part-00000.parquet").unlink(),
        r"calls: part-00000\.parquet is missing, and part-00001\.parquet is there; put the files of the run back from a copy, or start a ",
    ),
    "the last part is missing": (lambda run: last(run, "calls").unlink(), r"calls: lacks \d+ of the rows that `chains` counts; put the"),
    "the last part of the steps is missing": (lambda run: last(run, "steps").unlink(), "(lacks|calls or steps of 4 chains are missing)"),
    "a table is missing": (lambda run: shutil.rmtree(run / "steps"), r"steps: lacks \d+ of the rows"),
    "a part is there twice": (
        lambda run: shutil.copy(last(run, "chains"), run / "chains/part-00001.parquet"),
        r"chains/part-00001\.parquet: holds what belongs in chains/part-00000\.parquet; put the files",
    ),
    "a part is of another run": (
        lambda run: shutil.copy(run.parent / "other/chains/part-00000.parquet", run / "chains"),
        r"chains/part-00000\.parquet: belongs to another run",
    ),
    "a part of another run is there too": (
        lambda run: shutil.copy(run.parent / "other/chains/part-00000.parquet", run / "chains/part-00001.parquet"),
        r"chains/part-00001\.parquet: belongs to another run",
    ),
    "two parts are swapped": (
        lambda run: swap(run, "calls/part-00000.parquet", "calls/part-00001.parquet"),
        "holds what belongs in calls/part-",
    ),
    "tables are swapped": (lambda run: swap(run, "calls", "steps"), r"part-00000\.parquet: holds what belongs in (steps|calls)/part-00000"),
    "a part is cut": (
        lambda run: os.truncate(run / "calls/part-00000.parquet", 4000),
        r"calls/part-00000\.parquet: cannot be read: ",
    ),
    "a part is empty": (
        lambda run: os.truncate(run / "calls/part-00000.parquet", 0),
        r"calls/part-00000\.parquet: cannot be read: ",
    ),
    "another program's part": (
        lambda run: pq.write_table(pa.table({"chain_id": ["c"]}), last(run, "chains")),
        r"chains/part-00000\.parquet: cannot be read: it has no seal: it is damaged, or was written by another program",
    ),
    "a column is missing": (lambda run: without(run, "steps", "decision"), r"steps/part-\d+\.parquet: has no column `decision`"),
    "another format": (
        lambda run: change_card(run, format=7),
        r"run\.json: is of the format 7, and this version reads format 1; read",
    ),
    "no format": (lambda run: change_card(run, format=None), r"run\.json: names no format, and this version reads format 1; read"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_wrong_is_named_by_readers_and_by_resume_and_nothing_is_changed(run: Path, edit: str) -> None:
    change, says = EDITS[edit]
    change(run)
    before = content(run)
    said = [refusal(check, run) for check in (check_readable, check_chains, lambda run: resume(resume_options(run)))]
    assert re.search(says, said[0] or said[1]), said
    assert said[2] == (said[1] or said[0])
    assert content(run) == before


def refusal(check: Callable[[Path], object], run: Path) -> str:
    """The sentence that refuses a run folder; empty where none does."""
    try:
        check(run)
    except InputError as error:
        return str(error)
    return ""


def test_a_garbled_page_is_met_by_who_reads_every_row(run: Path) -> None:
    part = run / "calls/part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:2000] + bytes(byte ^ 0xFF for byte in whole[2000:2040]) + whole[2040:])
    with pytest.raises(InputError, match=r"calls/part-00000\.parquet: cannot be read: "):
        read_table(run, CallRow, "calls")


def test_the_files_of_two_generations_are_told_apart(tmp_path: Path, blank: Callable[..., object]) -> None:
    store = RunStore(tmp_path)
    for name in ("old", "new"):
        with store.replace("rewards") as table:
            table.append([blank(RewardRow)])  # type: ignore[list-item]
        shutil.copy(tmp_path / "rewards/part-00000.parquet", tmp_path / name)
    second = pq.ParquetFile(tmp_path / "old").read()
    metadata = {**(second.schema.metadata or {})}
    metadata[b"pipeline.file"] = metadata[b"pipeline.file"].replace(b"/00000/", b"/00001/")
    write_part(tmp_path / "rewards/part-00001.parquet", second.replace_schema_metadata(metadata))
    with pytest.raises(InputError, match="rewards: has files from before and after the table was replaced; put"):
        check_readable(tmp_path)


def test_a_step_rests_on_calls_that_are_there(tmp_path: Path, blank: Callable[..., object]) -> None:
    store = RunStore(tmp_path)
    store.append("steps", [blank(StepRow, chain_id="begun", step_index=1, calls=2)])  # type: ignore[list-item]
    store.append("chains", [blank(ChainRow, chain_id=each, stop_reason="cancelled") for each in ("begun", "twice", "twice")])  # type: ignore[misc]
    store.close()
    with pytest.raises(InputError, match=r"calls or steps of 2 chains are missing or are there twice \(begun, twice\); a file of the run"):
        check_chains(tmp_path)


def test_files_that_are_none_of_a_run_do_not_matter(run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "calls/part-00009.parquet.tmp").write_bytes(b"PAR1")
    (run / "calls/notes.parquet").write_bytes(b"")
    check_readable(run)
    check_chains(run)
    assert RunFile.read(run).format == 1
