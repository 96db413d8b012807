"""Where chains are: waiting, at one replica, or over."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.messages import Assignment
from pipeline.cluster.pool import Pool
from pipeline.data.problems import Problem
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.order import Start
from pipeline.runtime.resume_state import ResumedChain, ResumeState
from pipeline.store.events import CallRow, StepRow
from tests.support.rows import blank

NOBODY = frozenset[int]


def pool_of(count: int, state: ResumeState | None = None) -> Pool:
    pool = Pool(state or ResumeState())
    for place in range(count):
        pool.add(Start(Problem(row=place + 1, problem_id=f"p{place}", problem="?", answer=None), 0, place))
    return pool


def names(chains: Iterable[Assignment]) -> list[str]:
    return [chain_id(each.item.problem_id, each.sample_index) for each in chains]


def call(chain: str, request: str, submit_s: float = 1.0, **fields: Any) -> Any:
    times = {"submit_unix_ns": round(submit_s * 1e9), "end_unix_ns": round(submit_s * 1e9) + 10**9, "client_wait_s": 0.25}
    return blank(CallRow, chain_id=chain, request_id=request, **times | fields)


def test_chains_are_handed_out_in_their_order_and_counted() -> None:
    pool = pool_of(5)
    assert names(pool.take(0, 2, NOBODY)) == ["p0#0", "p1#0"]
    assert names(pool.take(1, 9, NOBODY)) == ["p2#0", "p3#0", "p4#0"]
    assert pool.take(0, 9, NOBODY) == ()
    assert (pool.waiting, pool.handed, pool.counts) == (0, 5, {0: 2, 1: 3})
    assert (pool.has(0, "p0#0"), pool.has(1, "p0#0"), pool.has(0, "unknown")) == (True, False, False)
    assert list(pool.names(1)) == ["p2#0", "p3#0", "p4#0"]


def test_a_pool_is_over_once_the_input_is_and_every_chain() -> None:
    pool = pool_of(1)
    pool.take(0, 1, NOBODY)
    pool.exhausted = True
    assert not pool.over
    assert pool.end("p0#0").order == 0
    assert (pool.over, pool.counts[0], pool.handed) == (True, 0, 0)


def test_chains_that_come_back_go_out_first_in_the_order_in_which_they_were_handed_out() -> None:
    pool = pool_of(5)
    pool.take(0, 3, NOBODY)
    assert pool.put_back(list(pool.names(0))) == 3
    assert (pool.waiting, pool.handed, pool.counts[0]) == (5, 0, 0)
    assert names(pool.take(1, 5, NOBODY)) == ["p0#0", "p1#0", "p2#0", "p3#0", "p4#0"]


def test_a_chain_avoids_a_replica_as_long_as_there_are_others() -> None:
    pool = pool_of(2)
    pool.take(0, 1, NOBODY)
    pool.put_back(["p0#0"], frozenset({0}))
    assert names(pool.take(0, 2, lambda: frozenset({1}))) == ["p1#0"]
    assert pool.take(0, 2, lambda: frozenset({1})) == ()
    assert names(pool.take(0, 2, NOBODY)) == ["p0#0"], "it is the only one"
    pool.put_back(["p0#0"], frozenset({1}))
    assert names(pool.take(1, 2, lambda: frozenset({0}))) == ["p0#0"], "all others are avoided as well"


def test_what_is_recorded_of_a_chain_goes_with_it() -> None:
    pool = pool_of(1)
    [first] = pool.take(0, 1, NOBODY)
    assert first.resumed is None
    pool.call(call("p0#0", "a", 2.0, prompt_digest=7, input_tokens=3, output_tokens=2, output_token_ids=((1, 2),)))
    pool.call(call("p0#0", "b", 1.0, error_type="CallTimeout"))
    pool.step(blank(StepRow, chain_id="p0#0", step_token_ids=(1, 2), mode="direct"))
    pool.put_back(["p0#0"])
    [again] = pool.take(1, 1, NOBODY)
    resumed = again.resumed
    assert resumed is not None
    assert (list(resumed.calls), resumed.attempts, resumed.steps, resumed.modes) == (["a"], 2, [(1, 2)], ["direct"])
    assert (resumed.started_unix_ns, resumed.ended_unix_ns) == (750_000_000, 3 * 10**9)
    assert (resumed.calls["a"].prompt_digest, [list(ids) for ids in resumed.calls["a"].output_token_ids]) == (7, [[1, 2]])


def test_what_a_replica_takes_out_of_a_chain_stays_in_the_pool() -> None:
    state = ResumeState(chains={"p0#0": ResumedChain(attempts=1, steps=[(1,)], modes=[None])})
    pool = pool_of(1, state)
    [chain] = pool.take(0, 1, NOBODY)
    assert chain.resumed is not None
    chain.resumed.steps.clear()
    pool.put_back(["p0#0"])
    [again] = pool.take(0, 1, NOBODY)
    assert again.resumed is not None
    assert again.resumed.steps == [(1,)]
    assert state.chains == {}


Action = tuple[str, int, int]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["take", "end", "lose", "avoid"]), st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_every_chain_is_in_one_place(actions: list[Action]) -> None:
    """Against sets: those that wait, those of each replica, those that are over."""
    pool, waiting, over = pool_of(12), {f"p{i}#0" for i in range(12)}, set[str]()
    at: dict[int, set[str]] = {replica: set() for replica in range(4)}
    for action, replica, number in actions:
        mine = list(pool.names(replica))
        assert set(mine) == at[replica]
        if action == "take":
            found = set(names(pool.take(replica, number, lambda own=replica: frozenset(range(4)) - {own})))  # type: ignore[misc]
            assert len(found) <= number
            assert found <= waiting
            at[replica] |= found
            waiting -= found
        elif action == "end" and mine:
            pool.end(mine[0])
            at[replica].discard(mine[0])
            over.add(mine[0])
        else:
            back = mine if action == "lose" else mine[:number]
            pool.put_back(back, frozenset({replica}) if action == "avoid" else frozenset())
            at[replica] -= set(back)
            waiting |= set(back)
        assert (pool.waiting, pool.handed) == (len(waiting), sum(map(len, at.values())))
        assert all(pool.counts[each] == len(at[each]) for each in at)
    assert len(waiting) + len(over) + sum(map(len, at.values())) == 12
