"""What the live display says of a run: counts of a view at given times."""

from io import StringIO
from typing import cast

import pytest
from rich.console import Console

from pipeline.cli.live import Meter, line, panel
from pipeline.engine import EngineStatistics, Request
from pipeline.run.prepare import load_plan
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor
from pipeline.runtime.lane import Call, Lane
from pipeline.runtime.progress import Progress
from pipeline.store.resume import ResumeState
from pipeline.store.rows import CallRow
from tests.support.paths import ROOT, SIM
from tests.support.rows import blank

ROLES = ["draft", "target"]


class Counting:
    """The statistics of an engine, set by hand."""

    def __init__(self) -> None:
        self.restarts = self.written_tokens = 0

    def statistics(self) -> EngineStatistics:
        zeros = dict.fromkeys(EngineStatistics.__struct_fields__, 0) | {"speculation": None}
        return EngineStatistics(**zeros | {"restarts": self.restarts, "written_tokens": self.written_tokens})


class Watched:
    """A run on two engines of four calls each, and a meter over it whose clock is set by hand."""

    def __init__(self, admission: Admission | None = None) -> None:
        self.now = 0.0
        plan = load_plan(ROOT / "graphs/speccot.yaml", SIM, ())
        self.progress = Progress(plan, ResumeState(), print, Clock(0, lambda: self.now), admission)
        self.engines = {role: Counting() for role in ROLES}
        self.lanes = {role: Lane(role, 8) for role in ROLES}
        for lane in self.lanes.values():
            for order in range(4):
                lane.put(Call("draft", order, Request(request_id=str(order), prompt_ids=[1], max_tokens=4)))
                lane.take()
        self.meter = Meter(cast("Executor", self), 10, now=lambda: self.now)

    def shown(self) -> str:
        out = StringIO()
        Console(file=out, width=160).print(panel(self.meter))
        return out.getvalue()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_display_says_how_many_chains_pause() -> None:
    admission = Admission([CacheLimit(role="target", tokens=100, sequences=8)])
    members = [admission.enter() for _ in range(2)]
    for member in members:
        admission.before_level(member, {"target": range(30)})
    watched = Watched(admission)
    assert "paused" not in line(watched.meter)
    admission.before_level(members[0], {"target": range(90)})
    assert " · 1 paused" in line(watched.meter)
    assert "1 paused" in watched.shown()


def test_how_far_the_run_is_and_what_the_engines_do(watched: Watched) -> None:
    watched.progress.done = 2
    for _ in range(60):
        watched.now += 5
        for engine in watched.engines.values():
            engine.written_tokens += 1_000
    shown = "20% · 2/10 · 0.00667 problems/s · 20:00 left · elapsed 5:00 · tokens kept 0/s of 400/s · 0 in flight: 4 draft, 4 target"
    assert line(watched.meter) == shown
    assert [part for part in shown.split(" · ") if part not in watched.shown()] == []
    watched.engines["draft"].restarts = 2
    assert line(watched.meter).endswith(" · draft restarted 2x")


def test_while_nothing_is_finished_it_counts_steps_and_says_why_no_more_come(watched: Watched) -> None:
    watched.now += 10
    watched.progress.steps = 3
    watched.engines["draft"].written_tokens = 500
    assert line(watched.meter).startswith("0% · 0/10 · 3 steps · elapsed 0:10 · tokens kept 0/s of 50/s")
    watched.progress.call(blank(CallRow, error_type="EngineUnavailable", error_message="the server answered 503"))
    said = "the server answered 503; 1 call waits for its next attempt, number 2"
    assert line(watched.meter).endswith(f" · {said}")
    assert said in watched.shown()


def test_few_right_answers_are_counted_and_many_are_a_share(watched: Watched) -> None:
    for graded, correct, said in ((2, 2, "right 2 of 2"), (40, 39, "right 97.5 %")):
        watched.progress.graded, watched.progress.correct = graded, correct
        assert f" · {said} · " in line(watched.meter)
