"""Where chains are: waiting, at one replica, or over."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.chain_queue import ChainQueue
from pipeline.cluster.messages import Assignment
from pipeline.data.problems import Problem
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Start
from pipeline.runtime.resume_state import ResumedChain, ResumeState
from pipeline.store.events import CallRow, StepRow
from tests.support.rows import blank


def queue_of(count: int, state: ResumeState | None = None) -> ChainQueue:
    queue = ChainQueue(state or ResumeState())
    for place in range(count):
        queue.add(Start(Problem(row=place + 1, problem_id=f"p{place}", problem="?", answer=None), 0, place))
    return queue


def names(chains: Iterable[Assignment]) -> list[str]:
    return [chain_id(each.item.problem_id, each.sample_index) for each in chains]


def call(chain: str, request: str, submit_s: float, **fields: Any) -> Any:
    times = {"submit_unix_ns": round(submit_s * 1e9), "end_unix_ns": round(submit_s * 1e9) + 10**9, "client_wait_s": 0.25}
    return blank(CallRow, chain_id=chain, request_id=request, **times | fields)


def test_a_chain_that_failed_on_a_replica_goes_to_another_one_once() -> None:
    queue = queue_of(2)
    queue.take(0, 1, alone=False)
    assert queue.try_elsewhere("p0#0")
    assert names(queue.take(0, 2, alone=False)) == ["p1#0"]
    assert queue.take(0, 2, alone=False) == ()
    assert names(queue.take(1, 2, alone=False)) == ["p0#0"]
    assert not queue.try_elsewhere("p0#0")
    queue.put_back(["p0#0"])
    assert names(queue.take(0, 2, alone=True)) == ["p0#0"], "there is no other one"


def test_what_is_recorded_of_a_chain_goes_with_it() -> None:
    state = ResumeState(chains={"p0#0": ResumedChain(attempts=1, steps=[(9,)])})
    queue = queue_of(2, state)
    first, second = queue.take(0, 2, alone=True)
    assert second.resumed is None
    assert first.resumed is not None
    first.resumed.steps.clear()  # a replica of this process takes out what it comes to
    queue.call(call("p0#0", "a", 2.0, prompt_digest=7, input_tokens=3, output_tokens=2, output_token_ids=((1, 2),)))
    queue.call(call("p0#0", "b", 1.0, error_type="CallTimeout"))
    queue.step(blank(StepRow, chain_id="p0#0", step_token_ids=(1, 2)))
    queue.put_back(["p0#0"])
    [again] = queue.take(1, 1, alone=True)
    resumed = again.resumed
    assert resumed is not None
    assert (list(resumed.calls), resumed.attempts, resumed.steps) == (["a"], 3, [(9,), (1, 2)])
    queue.call(call("p0#0", "c", 90.0))
    assert (resumed.started_unix_ns, resumed.lived_s) == (750_000_000, 2.25 + 1.25), "the time between two replicas is not its own"
    assert (resumed.calls["a"].prompt_digest, [list(ids) for ids in resumed.calls["a"].output_token_ids]) == (7, [[1, 2]])
    assert state.chains == {}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["take", "end", "lose"]), st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_every_chain_is_in_one_place(actions: list[tuple[str, int, int]]) -> None:
    """Against lists: those that wait, those of each replica, those that are over."""
    queue, waiting = queue_of(12), [f"p{i}#0" for i in range(12)]
    at: dict[int, list[str]] = {replica: [] for replica in range(4)}
    for action, replica, number in actions:
        assert sorted(queue.names(replica)) == sorted(at[replica])
        if action == "take":
            found = names(queue.take(replica, number, alone=False))
            assert found == waiting[:number], "in their order, and those that came back first"
            at[replica] += found
            del waiting[:number]
        elif action == "end" and at[replica]:
            queue.end(at[replica].pop(0))
        elif action == "lose":
            waiting[:0] = back = list(queue.names(replica))
            queue.put_back(back)
            at[replica].clear()
        assert (queue.waiting, queue.handed) == (len(waiting), sum(map(len, at.values())))
        assert all(queue.counts[each] == len(at[each]) for each in at)
    queue.exhausted = True
    assert queue.over == (not waiting and not any(at.values()))
