"""Runs to export: one on simulated engines of which one dies now and then, and folders whose rows are written here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.store.events import CallRow, ChainRow
from pipeline.store.run_store import RunStore
from tests.support.replicas import replica_run
from tests.support.run_files import SIM, write_run_json
from tests.support.runs import solve

Blank = Callable[..., Any]
T = 1_700_000_000_000_000_000
ENGINES = {"draft": SIM | {"model": "small"}, "target": SIM | {"model": "org/large"}}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 problems, twice each; the draft dies after every 40 calls, and the calls that it had are sent again."""
    settings = ("engines.draft.faults.dies_after_calls=40", "engines.draft.max_restarts=100")
    return solve(tmp_path_factory.mktemp("run"), settings=settings, samples=2).folder


@pytest.fixture(scope="session")
def calls(run_folder: Path) -> list[dict[str, Any]]:
    """The calls of `run_folder`."""
    rows: list[dict[str, Any]] = pq.read_table(run_folder / "calls").to_pylist()
    assert {row["error_type"] for row in rows} == {None, "EngineDead"}
    return rows


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two replicas."""
    return replica_run(tmp_path_factory.mktemp("replicas"), 2)


@pytest.fixture
def written(tmp_path: Path, blank: Blank) -> Callable[..., Path]:
    """`written(calls, chains, ...)`: a run folder of these (start, end, ...) in nanoseconds since `T`, each list of calls a part; `call`:
    further columns of all calls, `card`: of `run.json`."""

    def write(
        parts: Sequence[Sequence[tuple[int, int]]], chains: Sequence[tuple[int, int]] = (), call: dict[str, Any] | None = None, **card: Any
    ) -> Path:
        folder = tmp_path / "written"
        folder.mkdir()
        about = {"run_id": "written", "graph_file": "graphs/speccot.yaml", "engines": ENGINES, "started_unix_ns": T}
        write_run_json(folder, **about | card)
        for part in parts:
            rows = [
                blank(CallRow, engine="target", stage="s", chain_id="c", submit_unix_ns=T + start, end_unix_ns=T + end, **call or {})
                for start, end in part
            ]
            store = RunStore(folder)
            store.append("calls", rows)
            store.close()
        store = RunStore(folder)
        store.append("chains", [blank(ChainRow, start_unix_ns=T + start, end_unix_ns=T + end) for start, end in chains])
        store.close()
        return folder

    return write
