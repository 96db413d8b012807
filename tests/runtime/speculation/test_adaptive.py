"""The controller on virtual time: against the target alone in random worlds, in the tail, and what it may cost."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.engine import EngineStatistics
from pipeline.runtime.speculation.adaptive import Adaptive
from pipeline.runtime.speculation.modes import NOTHING_KNOWN, Knowledge, RoundPace
from pipeline.runtime.speculation.tuning import MAX_CHANGES
from tests.support.fluid import Fixed, Fluid, Surface, World, adverse_world, lengths

SEEDS = range(64)
"""Kept: each is a world of its own."""
TARGET = Surface(fixed=0.0136, per_context=5.4e-8, per_token=5.6e-5, overhead=0.0032)
DRAFT = Surface(fixed=7.4e-4, per_context=6e-9, per_token=3e-6, overhead=0.0032)
"""QwQ-32B and a draft of 1.5B on two H100."""


def world(batch: int, count: int, mean: float = 2000, sigma: float = 0.5, interference: float = 0.0, acceptance: float = 0.85) -> World:
    return World(
        target=TARGET,
        draft=DRAFT,
        interference=interference,
        batch=batch,
        lengths=lengths(count, mean, sigma, 1),
        acceptance=lambda _: acceptance,
    )


def adaptive(of: World, counted: bool = True, known: Knowledge = NOTHING_KNOWN) -> tuple[float, Adaptive]:
    """The makespan under the controller, and the controller."""
    fluid = Fluid(of, Fixed("direct"))
    control = Adaptive(fluid.statistics if counted else EngineStatistics, known=known, most=of.batch)
    fluid.control = control
    return fluid.run(), control


def alone(of: World) -> float:
    return Fluid(of, Fixed("direct")).run()


def always(of: World) -> float:
    return Fluid(of, Fixed("speculative")).run()


def decisions(control: Adaptive) -> list[str]:
    return [change.what for change in control.changes]


@pytest.mark.slow
def test_it_is_seldom_much_slower_than_the_target_alone_and_never_where_it_knows() -> None:
    """Of some 100 steps a few are lost before a hopeless draft is noticed; the next run on these engines does not lose them."""
    cold, known = [], []
    for adverse in map(adverse_world, SEEDS):
        seconds, control = adaptive(adverse)
        cold.append(alone(adverse) / seconds)
        known.append(alone(adverse) / adaptive(adverse, known=control.knowledge)[0])
    assert sum(ratio >= 0.97 for ratio in cold) >= 58
    assert min(cold) >= 0.93
    assert sum(ratio >= 0.97 for ratio in known) >= 63
    assert min(known) >= 0.95


@pytest.mark.parametrize(("batch", "count"), [(1, 3), (4, 8)])
def test_it_is_nearly_as_fast_as_speculating_from_the_start_where_that_wins(batch: int, count: int) -> None:
    winning = world(batch, count)
    seconds, control = adaptive(winning)
    assert always(winning) < alone(winning) / 1.5
    assert always(winning) / seconds >= 0.97
    assert decisions(control)[0] == "speculate"


@pytest.mark.slow
def test_where_rounds_only_lose_it_looks_once_and_the_next_run_does_not_begin_them() -> None:
    losing = world(16, 48, interference=1.0, acceptance=0.0)
    seconds, control = adaptive(losing)
    assert alone(losing) / seconds >= 0.97
    assert decisions(control)[:2] == ["speculate", "check"]
    seconds, control = adaptive(losing, known=control.knowledge)
    assert (alone(losing) / seconds, decisions(control)[0]) == (pytest.approx(1.0, abs=0.01), "direct")


@pytest.mark.slow
def test_where_neither_mode_is_clearly_faster_it_does_not_go_to_and_fro() -> None:
    tie = world(16, 64, mean=700, sigma=0.3, interference=1.0, acceptance=0.7)
    seconds, control = adaptive(tie)
    assert 0.85 < alone(tie) / always(tie) < 0.95
    assert alone(tie) / seconds >= 0.98
    lost = [change for change in control.changes if change.what == "losing"]
    assert len({change.live for change in lost}) == len(lost) > 0
    assert [change for change in lost if not (change.speculative or 0) < (change.direct or 0)] == []


@pytest.mark.slow
def test_speculation_ends_soon_after_drafts_become_useless() -> None:
    drifting = replace(world(8, 40), acceptance=lambda progress: 0.9 if progress < 0.4 else 0.0, interference=1.0)
    seconds, control = adaptive(drifting)
    assert decisions(control)[-1] == "losing"
    assert alone(drifting) / seconds >= 0.98


@pytest.mark.slow
def test_the_tail_speculates_though_the_full_batch_does_not() -> None:
    """With all places taken the target computes at its limit; the last chains leave it idle."""
    busy = replace(world(64, 64, mean=3000, sigma=0.9), target=replace(TARGET, per_token=3e-4))
    for known in (NOTHING_KNOWN, adaptive(busy)[1].knowledge):
        seconds, control = adaptive(busy, known=known)
        assert next(change.live for change in control.changes if change.what == "speculate" and change.live) <= 32
        assert alone(busy) / seconds > 1.1


@pytest.mark.slow
def test_it_learns_from_interrupted_requests_where_nobody_counts_the_targets_tokens() -> None:
    winning = world(8, 24)
    assert always(winning) / adaptive(winning, counted=False)[0] >= 0.95
    losing = world(8, 24, interference=1.0, acceptance=0.0)
    seconds, control = adaptive(losing, counted=False)
    assert alone(losing) / seconds >= 0.95
    assert control.knowledge.direct


@pytest.mark.slow
def test_the_same_facts_give_the_same_decisions() -> None:
    some = world(16, 32, interference=0.5)
    (first, one), (second, two) = adaptive(some), adaptive(some)
    assert first == second
    assert list(one.changes) == list(two.changes)
    assert one.knowledge == two.knowledge


KNOWN_TO_LOSE = Knowledge(direct=(0.03, 0.0, 0.0), paces=(RoundPace(1, 0.05, 100, 64),))


def test_events_at_one_moment_and_chains_without_a_step_do_no_harm() -> None:
    control = Adaptive(lambda: EngineStatistics(written_tokens=0), known=KNOWN_TO_LOSE, most=3)
    for order in range(3):
        control.enter(order, 1.0)
    assert control.mode(0, 100, 1.0) == "direct"
    control.wrote(0, "direct", 0, False, 1.0)
    control.leave(0, 1.0)
    control.leave(1, 1.0)
    assert list(control.interrupts(1.0)) == []
    control.leave(2, 1.0)
    assert list(control.interrupts(5.0)) == []
    assert control.wake() == math.inf


def test_a_look_while_no_chain_runs_is_not_the_last_one() -> None:
    control = Adaptive(lambda: EngineStatistics(written_tokens=0), known=KNOWN_TO_LOSE, most=1)
    control.enter(0, 0.0)
    assert control.mode(0, 100, 0.0) == "direct"
    control.leave(0, 0.1)
    assert list(control.interrupts(control.wake())) == []
    control.enter(1, 5.0)
    assert control.mode(1, 100, 5.0) == "direct"
    assert control.wake() < math.inf


@pytest.mark.parametrize(("pace", "mode"), [(0.025, "speculative"), (0.05, "direct")])
def test_a_run_begins_as_it_is_known_to_be_faster_with_as_many_chains_as_it_will_have(pace: float, mode: str) -> None:
    known = Knowledge(direct=(0.03, 0.0, 0.0), paces=(RoundPace(1, 0.01, 1000, 64), RoundPace(64, pace, 1000, 64)), draft_s=0.004)
    control = Adaptive(known=known, most=64)
    control.enter(0, 0.0)
    assert control.mode(0, 100, 0.0) == mode


def test_changes_are_bounded() -> None:
    assert Adaptive().changes.maxlen == MAX_CHANGES


class Watched:
    """A controller that looks whenever it wants to while 64 chains write directly, and nothing else happens."""

    def __init__(self, requests: Callable[[], tuple[int, int]]) -> None:
        """`requests` says how many run and how many wait."""
        self.now, self._requests = 0.0, requests
        self.control = Adaptive(self._statistics, known=KNOWN_TO_LOSE, most=64)
        for order in range(64):
            self.control.enter(order, 0.0)
            assert self.control.mode(order, 100, 0.0) == "direct"

    def _statistics(self) -> EngineStatistics:
        running, waiting = self._requests()
        return EngineStatistics(running=running, waiting=waiting, written_tokens=int(self.now * 500))

    def look(self, until: float) -> int | None:
        while self.control.wake() < until:
            self.now = self.control.wake()
            self.control.interrupts(self.now)
        return self.control.max_running


def test_requests_that_wait_at_the_target_say_how_many_chains_there_is_room_for() -> None:
    requests = 16, 48
    watched = Watched(lambda: requests)
    assert watched.control.max_running is None
    assert watched.look(until=1.0) == 18
    for order in range(18, 64):
        watched.control.pause(order, watched.now)
    requests = 17, 0
    assert watched.look(until=watched.control.wake() + 0.001) == 20
    watched.control.resume(18, watched.now)
    assert watched.control.mode(18, 100, watched.now) == "direct"


def test_requests_that_wait_for_a_moment_only_say_nothing() -> None:
    waiting = iter([48, 0] * 1000)
    assert Watched(lambda: (16, next(waiting))).look(until=1.0) is None
