"""What is said of a run that goes on, by looks at its folder at given times."""

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.analysis.progress import WINDOW_S
from pipeline.analysis.run_list import run_state
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.run_store import RunStore
from pipeline.view.live import BINS, LiveEngine, LiveRun, LiveRuns, ModeCount
from pipeline.view.shelf import Shelf
from tests.support.rows import blank

S = 10**9


class Watched:
    """A run of which rows are written, and looks at it by a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.store, self.shelf = RunStore(folder), Shelf(folder)
        self.live = LiveRuns(lambda: self.now)
        self.since = RunFile.read(folder).sessions[-1].started_unix_ns

    def look(self) -> LiveRun:
        folder = self.store.folder
        with self.shelf.query(folder.name) as db:
            return self.live.look(folder, db, self.run, run_state(folder, folder.name))

    def step(self, chain: str, index: int, mode: str) -> None:
        self.store.append("steps", [blank(StepRow, chain_id=chain, step_index=index, mode=mode, end_unix_ns=self.since + S)])

    def call(self, engine: str, tokens: int, in_flight: int, at_s: float, **more: int) -> None:
        at = self.since + int(at_s * S)
        row = blank(CallRow, engine=engine, output_tokens=tokens, in_flight_engine=in_flight, submit_unix_ns=at - S, end_unix_ns=at, **more)
        self.store.append("calls", [row])

    @property
    def run(self) -> RunFile:
        return RunFile.read(self.store.folder)

    def rewrite(self, **fields: Any) -> None:
        (self.store.folder / "run.json").write_bytes(structs.replace(self.run, **fields).encode())

    def end(self, chain: str, at_s: float) -> None:
        at = self.since + int(at_s * S)
        self.store.append("chains", [blank(ChainRow, chain_id=chain, stop_reason="end", end_unix_ns=at)])


@pytest.fixture
def watched(tmp_path: Path, runs: Path) -> Watched:
    (tmp_path / "live").mkdir()
    run = structs.replace(RunFile.read(runs / "speccot"), status="running")
    (tmp_path / "live" / "run.json").write_bytes(run.encode())
    return Watched(tmp_path / "live")


def test_chains_in_flight_are_those_with_a_step_and_no_end(watched: Watched) -> None:
    for chain, mode in (("a#0", "speculative"), ("b#0", "speculative"), ("c#0", "direct"), ("d#0", "speculative")):
        watched.step(chain, 0, mode)
    watched.step("d#0", 1, "direct")
    watched.end("a#0", 2)
    found = watched.look()
    assert found.modes == [ModeCount("speculative", 1), ModeCount("direct", 2)]
    assert found.in_flight == 3


def test_rates_and_the_time_left_come_with_the_second_look(watched: Watched) -> None:
    watched.call("draft", 100, 5, at_s=1)
    assert (watched.look().per_s, watched.look().left_s) == ({"over": None, "steps": None, "tokens draft": None}, None)
    watched.now = 10.0
    watched.call("draft", 400, 7, at_s=3)
    for number in range(5):
        watched.end(f"p{number}#0", 2 + number)
    found = watched.look()
    assert found.per_s == {"over": 0.5, "steps": 0.0, "tokens draft": 40.0}
    assert found.left_s == (21 - 5) / 0.5


def test_rates_are_of_this_session_and_of_the_time_that_somebody_looked(watched: Watched) -> None:
    watched.look()
    watched.now = WINDOW_S
    watched.end("p0#0", 1)
    assert watched.look().per_s["over"] == 1 / WINDOW_S
    watched.now += WINDOW_S + 1
    assert watched.look().per_s["over"] is None, "nobody looked for longer than the rates are over"
    watched.now += 2
    watched.rewrite(sessions=(*watched.run.sessions, structs.replace(watched.run.sessions[-1], started_unix_ns=watched.since + 1000 * S)))
    assert watched.look().per_s["over"] is None
    watched.now += 2
    watched.end("p1#0", 2)
    assert watched.look().per_s["over"] == 0.5


def test_what_is_at_the_engines_of_all_replicas_counts(watched: Watched) -> None:
    watched.call("draft", 1, 5, at_s=100, replica=0, waiting_engine=2)
    watched.call("draft", 1, 3, at_s=110, replica=1)
    watched.call("draft", 1, 9, at_s=1, replica=2, waiting_engine=7)
    assert watched.look().engines == [LiveEngine("draft", 3, 8, 2)], "the third has answered none of late"


def test_an_engine_that_was_not_asked_of_late_does_not_say_what_is_at_it(watched: Watched) -> None:
    watched.call("draft", 100, 5, at_s=1)
    watched.call("target", 10, 3, at_s=200)
    assert watched.look().engines == [LiveEngine("draft", 100, None, 0), LiveEngine("target", 10, 3, 0)]


def test_ends_are_spread_over_the_session(watched: Watched) -> None:
    for number, at_s in enumerate((0.5, 30, 30.1, BINS)):
        watched.end(f"p{number}#0", at_s)
    ended = watched.look().ended
    assert {place: share for place, share in enumerate(ended) if share} == {0: 0.5, 30: 1.0, BINS - 1: 0.5}


def test_a_session_that_ends_no_chain_any_more_shows_it(watched: Watched) -> None:
    """By a real clock, whose time is known also while nothing happens."""
    watched.since = time.time_ns() - 100 * S
    watched.rewrite(virtual_time=False, sessions=(structs.replace(watched.run.sessions[-1], started_unix_ns=watched.since),))
    watched.end("p0#0", 1)
    watched.end("p1#0", 26)
    assert {place for place, share in enumerate(watched.look().ended) if share} == {0, 15}, "26 of 100 s, and a little more"
