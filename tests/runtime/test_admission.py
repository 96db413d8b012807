"""Which chains go on where their contexts do not all fit, and what the engines are found to have computed again."""

import random
from collections.abc import Sequence
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.run.prepare import load_plan
from pipeline.runtime.admission.admission import Admission, AdmissionMember
from pipeline.runtime.admission.cache import CLASSES, Cache, CacheLimit, cache_limits
from pipeline.runtime.chain_recorder import ComputedContexts, block_tokens
from pipeline.runtime.schedule import Lockstep, Schedule, Sequential
from tests.support.paths import ROOT, SIM


def admission(tokens: float, **fields: float) -> Admission:
    return Admission([CacheLimit(role="t", tokens=tokens, **fields)])  # type: ignore[arg-type]


def grow(found: Admission, member: AdmissionMember, tokens: int) -> bool:
    return found.before_level(member, {"t": range(tokens)})


def going(members: Sequence[AdmissionMember]) -> list[bool]:
    return [member.running for member in members]


def test_the_youngest_pauses_where_the_contexts_do_not_fit_any_more() -> None:
    found = admission(100)
    old, middle, young = members = [found.enter() for _ in range(3)]
    assert [grow(found, member, 30) for member in members] == [True] * 3
    assert grow(found, old, 31)  # 91 tokens, and four of the mean step, 1, beside each: 103
    assert going(members) == [True, True, False]
    assert not grow(found, young, 30)
    assert grow(found, middle, 30)
    assert found.pauses == 1


def test_a_chain_that_pauses_goes_on_before_another_one_begins() -> None:
    found = admission(100)
    old, _, young = members = [found.enter() for _ in range(3)]
    for member in members:
        grow(found, member, 34)
    assert going(members) == [True, True, False]
    assert not found.may_enter()
    assert list(found.leave(old)) == [young]
    assert young.running
    assert not found.may_enter()


def test_the_oldest_goes_on_however_long_it_is() -> None:
    found = admission(100)
    old, young = found.enter(), found.enter()
    assert grow(found, old, 500)
    assert not grow(found, young, 1)
    assert not found.may_enter()
    assert list(found.leave(old)) == [young]


def test_a_cache_is_not_filled_to_its_last_token() -> None:
    found = admission(100)
    members = [found.enter() for _ in range(2)]
    assert [grow(found, member, 47) for member in members] == [True, True]
    assert going(members) == [True, True]
    grow(found, members[0], 49)  # 96 tokens
    assert going(members) == [True, False]


def test_a_chain_that_ends_while_it_pauses_leaves_no_trace() -> None:
    found = admission(100)
    old, young = found.enter(), found.enter()
    grow(found, old, 60)
    assert not grow(found, young, 60)
    assert list(found.leave(young)) == []
    assert not found.may_enter()  # one more is expected to begin with 60
    assert list(found.leave(old)) == []
    assert found.may_enter()


def test_places_of_one_size_limit_the_number_of_chains() -> None:
    found = admission(1000, sequences=2)
    members = [found.enter() for _ in range(2)]
    assert not found.may_enter()
    assert list(found.leave(members[0])) == []
    assert found.may_enter()


def test_growth_is_expected_once_chains_have_ended() -> None:
    found = admission(1000)
    first = found.enter()
    for tokens in range(10, 411, 100):
        grow(found, first, tokens)
    list(found.leave(first))
    begun = 0
    while found.may_enter():
        grow(found, found.enter(), 10)
        begun += 1
    assert begun == 1  # each will have come to 410 and takes four steps of 100 beside it


def test_chains_that_live_count_in_the_expectation() -> None:
    """The first to end are the short ones; the others have shown already that they are longer."""

    def cache(*living: int) -> Cache:
        found = Cache(CacheLimit(role="t", tokens=5500))
        for length in (16, *living):
            found.begin(0)
            for before, tokens in pairwise(range(0, length + 1, 16)):
                found.grow(0, before, tokens, running=False)
        found.end(0, 16)
        return found

    assert cache().has_room(60, 0, 0, unseen=59)
    assert not cache(320, 320, 320).has_room(60, 0, 0, unseen=59)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(0, 1 << 20))
def test_classes_hold_what_a_plain_sum_does_however_often_they_widen(lengths: list[int], seed: int) -> None:
    cache, draw = Cache(CacheLimit(role="t", tokens=1)), random.Random(seed)
    for length in lengths:
        start = draw.randrange(50)
        cache.begin(start)
        cache.go(start, start)
        for before, tokens in pairwise(sorted({start, *(start + draw.randrange(1 + length) for _ in range(3)), start + length})):
            cache.grow(start, before, tokens, running=True)
    assert cache.tokens == sum(cache._contexts)
    assert sum(cache._going) == sum(cache._live) == len(lengths)
    assert max(lengths) < CLASSES * cache._width


def test_a_step_counts_as_often_as_there_are_candidates() -> None:
    plan = load_plan(ROOT / "graphs/speccot.yaml", SIM)
    limits = cache_limits(plan, {"draft": {"kv_cache_tokens": 100}, "target": {"kv_cache_tokens": 0}})
    assert limits == {"draft": CacheLimit(role="draft", tokens=100, parallel_steps=5), "target": None}
    assert cache_limits(load_plan(ROOT / "graphs/target.yaml", SIM), {"target": {"kv_cache_tokens": 100}}) == {}


def test_what_an_engine_had_computed_for_an_earlier_step_and_does_not_find_is_computed_again() -> None:
    computed = ComputedContexts({"t": 10})
    assert computed.recomputed("t", "t", 100, 0) == 0
    assert computed.recomputed("t", "t", 100, 0) == 0, "calls of one step may be in flight together"
    assert computed.recomputed("t", "t", 145, 100) == 0
    assert computed.recomputed("t", "t", 145, 60) == 40
    assert computed.recomputed("t", "t", 160, 0) == 140, "a block that is not full is kept by no cache"
    assert computed.recomputed("d", "d", 160, 0) == 0, "another engine computes it for the first time"
    assert (block_tokens({"block_size": 128}), block_tokens({})) == (128, 16)


async def play(schedule: Schedule, lengths: Sequence[Sequence[int]]) -> dict[int, list[float]]:
    """Chains whose contexts are so long at their turns, each of which takes a second; returns when their turns came."""
    turns: dict[int, list[float]] = {number: [] for number in range(len(lengths))}

    async def chain(number: int, member: AdmissionMember | None) -> None:
        for tokens in lengths[number]:
            await schedule.before_level(1, member, {"t": range(tokens)})
            turns[number].append(anyio.current_time() - origin)
            await anyio.sleep(1)
        schedule.leave(member)

    origin = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for number in range(len(lengths)):
            tasks.start_soon(chain, number, await schedule.enter())
        schedule.exhausted()
    return turns


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Schedule, Lockstep])
async def test_a_chain_waits_while_it_pauses_and_holds_nobody_up(kind: type[Schedule]) -> None:
    turns = await play(kind(2, admission(100)), [[50, 60, 70], [30, 40, 41]])
    assert turns == {0: [0, 1, 2], 1: [0, 3, 4]}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Schedule, Lockstep, Sequential])
async def test_every_chain_comes_to_its_end_in_whatever_room(kind: type[Schedule]) -> None:
    draw = random.Random(7)
    lengths = [sorted(draw.randrange(1, 200) for _ in range(draw.randrange(1, 9))) for _ in range(40)]
    for tokens in (1, 150, 1000):
        turns = await play(kind(7, admission(tokens)), lengths)
        assert [len(turns[number]) for number in range(40)] == [len(each) for each in lengths]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Schedule, Lockstep])
async def test_a_chain_that_is_cancelled_while_it_pauses_is_missed_by_nobody(kind: type[Schedule]) -> None:
    schedule = kind(2, admission(100))
    old, young = await schedule.enter(), await schedule.enter()
    schedule.exhausted()
    began: list[float] = []

    async def waits() -> None:
        with anyio.move_on_after(2):
            await schedule.before_level(1, young, {"t": range(80)})
        schedule.leave(young)

    async def works() -> None:
        for _ in range(4):
            await schedule.before_level(1, old, {"t": range(80)})
            began.append(anyio.current_time() - origin)
            await anyio.sleep(1)
        schedule.leave(old)

    origin = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(works)
        tasks.start_soon(waits)
    assert began == [0, 1, 2, 3]
    assert schedule.live == 0
