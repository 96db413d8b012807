"""What the live display says of a run: counts of a view at given times."""

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from pipeline.cli.live import SILENT_S, SILENT_TIMES, AnswerSilence, Meter, line, panel
from pipeline.engine import EngineStatistics, Request
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit
from pipeline.runtime.clock import Clock
from pipeline.runtime.lane import Call, Lane
from pipeline.runtime.progress import Progress
from pipeline.runtime.resume_state import ResumeState
from pipeline.session.observer import View
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT, SIM

ROLES = ["draft", "target"]


def test_an_engine_without_an_answer_is_silent_since_its_last_one() -> None:
    silence = AnswerSilence(0.0)
    assert silence.seconds(1.0, 1, 4) is None
    assert silence.seconds(1.0 + SILENT_S - 0.1, 1, 4) is None
    assert silence.seconds(1.0 + SILENT_S, 1, 4) == SILENT_S
    assert silence.seconds(100.0, 1, 4) == 99.0
    assert silence.seconds(101.0, 2, 4) is None


def test_an_engine_that_takes_long_for_each_answer_is_not_silent() -> None:
    silence, answer_s = AnswerSilence(0.0), 30.0
    silence.seconds(answer_s, 1, 1)
    assert silence.seconds(answer_s + SILENT_TIMES * answer_s - 1, 1, 1) is None
    assert silence.seconds(answer_s + SILENT_TIMES * answer_s, 1, 1) == SILENT_TIMES * answer_s


def test_an_engine_without_calls_is_not_silent() -> None:
    silence = AnswerSilence(0.0)
    silence.seconds(1.0, 1, 1)
    assert silence.seconds(1000.0, 1, 0) is None
    assert silence.seconds(1000.0 + SILENT_S - 1, 1, 1) is None


class Counting:
    """The statistics of an engine that has answered so many requests."""

    def __init__(self) -> None:
        self.requests = self.written_tokens = 0

    def statistics(self) -> EngineStatistics:
        zeros = dict.fromkeys(EngineStatistics.__struct_fields__, 0) | {"speculation": None}
        return EngineStatistics(**zeros | {"requests": self.requests, "written_tokens": self.written_tokens})


class Watched:
    """A view with two engines of four calls each, and a meter over it whose clock is set by hand."""

    def __init__(self, virtual_time: bool = False) -> None:
        self.now = 0.0
        plan = load_plan(ROOT / "graphs/speccot.yaml", SIM, ())
        self.progress = Progress(plan, ResumeState())
        self.engines = {role: Counting() for role in ROLES}
        self.lanes = {role: Lane(role, 8) for role in ROLES}
        for lane in self.lanes.values():
            for order in range(4):
                lane.put(Call("draft", order, Request(request_id=str(order), prompt_ids=[1], max_tokens=4)))
                lane.take()
        view = View(
            plan=plan,
            folder=None,
            chains=10,
            schedule="pipelined",
            batch_size=4,
            virtual_time=virtual_time,
            progress=self.progress,
            lanes=self.lanes,
            engines=self.engines,
            clock=Clock(0, lambda: self.now),
        )
        self.meter = Meter(view, lambda: self.now)

    def shown(self) -> str:
        out = StringIO()
        Console(file=out, width=160).print(panel(self.meter))
        return out.getvalue()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_display_says_how_many_chains_pause(watched: Watched) -> None:
    admission = Admission([CacheLimit(role="target", tokens=100, sequences=8)])
    members = [admission.enter() for _ in range(2)]
    for member in members:
        admission.before_level(member, {"target": range(30)})
    watched.meter.view = msgspec.structs.replace(watched.meter.view, admission=admission)
    watched.progress.live = 2
    assert "paused" not in line(watched.meter)
    admission.before_level(members[0], {"target": range(90)})
    assert "1 paused" in line(watched.meter)
    assert "2 in flight (1 paused): " in watched.shown()


def test_the_display_says_since_when_an_engine_is_silent_and_then_knows_no_end(watched: Watched) -> None:
    watched.progress.done = 2
    for _ in range(4):
        watched.now += 5
        for engine in watched.engines.values():
            engine.requests += 1
        assert "no answer" not in line(watched.meter)
    assert line(watched.meter) == "2/10 · 0.1 problems/s · 0 tokens · ETA 1:20"
    watched.now += 150
    watched.engines["target"].requests += 1
    said = line(watched.meter)
    assert said.endswith(" · ETA - · draft, no answer for 2:30")
    shown = watched.shown()
    assert "draft, no answer for 2:30" in shown
    assert "ETA -" in shown
    assert "0 generated tokens/s, 0 kept tokens/s · 0 in flight: draft 4, target 4" in shown
    watched.engines["draft"].requests += 1
    assert "no answer" not in line(watched.meter)
    assert "ETA -" not in line(watched.meter)


def test_an_engine_that_writes_is_not_silent_and_its_tokens_are_counted(watched: Watched) -> None:
    for _ in range(60):
        watched.now += 5
        for engine in watched.engines.values():
            engine.written_tokens += 1_000
    assert line(watched.meter) == "0/10 · 0 problems/s · 120,000 tokens · ETA -"


def test_few_right_answers_are_counted_and_many_are_a_share(watched: Watched) -> None:
    for graded, correct, said in ((2, 2, "2 of 2 right"), (40, 39, "97.5 % right")):
        watched.meter.view = msgspec.structs.replace(watched.meter.view, graded=lambda counts=(graded, correct): counts)
        assert f" · {said} · " in line(watched.meter)


def test_nobody_is_silent_on_virtual_time() -> None:
    watched = Watched(virtual_time=True)
    watched.now += 1000
    assert "no answer" not in line(watched.meter)
