"""Which chains go on where their contexts do not all fit."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.run.prepare import load_plan
from pipeline.runtime.admission.admission import Admission, AdmissionMember
from pipeline.runtime.admission.cache import CLASSES, FILLED, Cache, CacheLimit, cache_limits
from tests.support.paths import ROOT, SIM


@given(
    st.integers(20, 400),
    st.sampled_from([2, 1000]),
    st.lists(st.tuples(st.sampled_from(["enter", "grow", "grow", "leave"]), st.integers(0, 9), st.integers(1, 90)), max_size=60),
)
def test_the_oldest_chains_run_as_far_as_they_fit_and_one_always_does(size: int, places: int, moves: list[tuple[str, int, int]]) -> None:
    """None begins while another pauses; who pauses continues in the order of age, and nobody leaves a trace."""
    found = Admission([CacheLimit(role="t", tokens=size, sequences=places)])
    members: list[AdmissionMember] = []
    tokens: dict[AdmissionMember, int] = {}
    pausing: set[AdmissionMember] = set()

    def leave(member: AdmissionMember) -> None:
        members.remove(member)
        before = [each for each in members if each.running]
        resumed = list(found.leave(member))
        assert before + resumed == [each for each in members if each.running]
        tokens.pop(member, None)
        pausing.difference_update((member, *resumed))

    for move, place, grown in moves:
        member = members[place % len(members)] if members else None
        if move == "enter" and found.may_enter():
            assert all(each.running for each in members)
            members.append(found.enter())
        elif move == "grow" and member is not None and member not in pausing:
            tokens[member] = tokens.get(member, 0) + grown
            if not found.before_level(member, {"t": range(tokens[member])}):
                pausing.add(member)
        elif move == "leave" and member is not None:
            leave(member)
        running = [each for each in members if each.running]
        assert running == members[: len(running)]
        assert bool(running) == bool(members)
        assert len(running) == 1 or (len(running) <= places and sum(tokens.get(each, 0) for each in running) <= FILLED * size)
        assert found.paused == len(members) - len(running)
    for member in members[::-1]:
        leave(member)
    assert found.may_enter()


def test_the_youngest_pauses_once_a_step_no_longer_fits_beside_the_contexts() -> None:
    found = Admission([CacheLimit(role="t", tokens=100)])
    members = old, _, young = [found.enter() for _ in range(3)]
    assert [found.before_level(member, {"t": range(30)}) for member in members] == [True] * 3
    assert found.before_level(old, {"t": range(31)})  # 91 tokens, and four of the mean step, 1, beside each: 103
    assert [member.running for member in members] == [True, True, False]
    assert not found.before_level(young, {"t": range(30)})
    assert found.pauses == 1


def test_growth_is_expected_once_chains_have_ended() -> None:
    found = Admission([CacheLimit(role="t", tokens=1000)])
    first = found.enter()
    for tokens in range(10, 411, 100):
        found.before_level(first, {"t": range(tokens)})
    list(found.leave(first))
    begun = 0
    while found.may_enter():
        found.before_level(found.enter(), {"t": range(10)})
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
