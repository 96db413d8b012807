"""The controller on virtual time: against the target alone in random worlds, in the tail, and what it may cost."""

import math
from dataclasses import replace

import pytest

from pipeline.runtime.speculation.adaptive import MAX_CHANGES, Adaptive, Requests
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


def adaptive(of: World, counted: bool = True) -> tuple[float, Adaptive]:
    """The makespan under the controller, and the controller."""
    fluid = Fluid(of, Fixed("direct"))
    control = Adaptive(written=fluid.written if counted else lambda: None)
    fluid.control = control
    return fluid.run(), control


def alone(of: World) -> float:
    return Fluid(of, Fixed("direct")).run()


def always(of: World) -> float:
    return Fluid(of, Fixed("speculative")).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_never_much_slower_than_the_target_alone(seed: int) -> None:
    adverse = adverse_world(seed)
    seconds, _ = adaptive(adverse)
    assert alone(adverse) / seconds >= 0.97


@pytest.mark.parametrize(("batch", "count"), [(1, 3), (4, 8)])
def test_it_is_nearly_as_fast_as_speculating_from_the_start_where_that_wins(batch: int, count: int) -> None:
    winning = world(batch, count)
    seconds, _ = adaptive(winning)
    assert always(winning) < alone(winning) / 1.5
    assert always(winning) / seconds >= 0.95


@pytest.mark.slow
def test_it_goes_back_to_the_target_alone_where_rounds_only_lose() -> None:
    losing = world(16, 48, interference=1.0, acceptance=0.0)
    seconds, control = adaptive(losing)
    assert alone(losing) / seconds >= 0.98
    assert control.changes[-1].what in ("losing", "probed")


@pytest.mark.slow
def test_what_trials_cost_stays_within_the_account() -> None:
    losing = world(8, 40, mean=6000, interference=1.0, acceptance=0.1)
    seconds, control = adaptive(losing)
    assert any(change.what == "losing" or change.what == "probed" for change in control.changes)
    assert alone(losing) / seconds >= 0.98


@pytest.mark.slow
def test_speculation_ends_soon_after_drafts_become_useless() -> None:
    drifting = replace(world(8, 40), acceptance=lambda progress: 0.9 if progress < 0.4 else 0.0, interference=1.0)
    seconds, control = adaptive(drifting)
    assert any(change.what == "losing" for change in control.changes)
    assert alone(drifting) / seconds >= 0.99


@pytest.mark.slow
def test_the_tail_speculates_though_the_full_batch_does_not() -> None:
    """With all places taken the target computes at its limit; the last chains leave it idle."""
    busy = replace(world(64, 64, mean=3000, sigma=0.9), target=replace(TARGET, per_token=3e-4))
    seconds, control = adaptive(busy)
    speculating = [change for change in control.changes if change.what == "speculate"]
    assert speculating[-1].live < 32
    assert alone(busy) / seconds > 1.1


@pytest.mark.slow
def test_it_learns_from_interrupted_requests_where_nobody_counts_the_targets_tokens() -> None:
    winning = world(8, 24)
    seconds, control = adaptive(winning, counted=False)
    assert control.changes
    assert always(winning) / seconds >= 0.8
    losing = world(8, 24, interference=1.0, acceptance=0.0)
    assert alone(losing) / adaptive(losing, counted=False)[0] >= 0.95


@pytest.mark.slow
def test_the_same_facts_give_the_same_decisions() -> None:
    some = world(16, 32, interference=0.5)
    (first, one), (second, two) = adaptive(some), adaptive(some)
    assert first == second
    assert list(one.changes) == list(two.changes)


def test_events_at_one_moment_and_chains_without_a_step_do_no_harm() -> None:
    control = Adaptive(written=lambda: 0)
    for order in range(3):
        control.enter(order, 1.0)
    assert control.mode(0, 100, 1.0) == "direct"
    control.wrote(0, "direct", 0, False, 1.0)
    control.leave(0, 1.0)
    control.leave(1, 1.0)
    control.exhausted()
    assert list(control.interrupts(1.0)) == []
    control.leave(2, 1.0)
    assert list(control.interrupts(5.0)) == []
    assert control.wake() == math.inf


def test_changes_are_bounded() -> None:
    assert Adaptive().changes.maxlen == MAX_CHANGES


def looked_at(control: Adaptive, orders: range, until: float) -> None:
    """Let `control` look whenever it wants to while chains `orders` write directly, and nothing else happens."""
    for order in orders:
        control.enter(order, 0.0)
        control.mode(order, 100, 0.0)
    while control.wake() < until:
        control.interrupts(control.wake())


def test_requests_that_wait_at_the_target_say_how_many_chains_there_is_room_for() -> None:
    requests = Requests(running=16, waiting=48)
    control = Adaptive(written=lambda: int(control.wake() * 500), requests=lambda: requests)
    assert control.max_running is None
    looked_at(control, range(64), 0.5)
    assert control.max_running == 18
    now = control.wake()
    for order in range(18, 64):
        control.pause(order, now)
    requests = Requests(running=17, waiting=0)
    control.interrupts(now)
    assert control.max_running == 20
    control.resume(18, now)
    assert control.mode(18, 100, now) == "direct"


def test_requests_that_wait_for_a_moment_only_say_nothing() -> None:
    waiting = iter([48, 0] * 1000)
    control = Adaptive(written=lambda: int(control.wake() * 500), requests=lambda: Requests(16, next(waiting)))
    looked_at(control, range(64), 0.5)
    assert control.max_running is None
