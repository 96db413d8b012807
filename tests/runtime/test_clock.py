"""Time during which this process did not run: it is nobody's delay."""

import time

import anyio
import pytest
from msgspec import structs

from pipeline.engine import Candidate, Completion, EngineStatistics, Request, Usage
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.runtime.clock import UNNOTICED_S, Clock, sleep_noticing
from pipeline.runtime.retry import CallTimeout, RetryingCaller

SPEC = SimSpec(
    model="m", device=SimDeviceSpec(name="d", flops_per_s=1.0, bytes_per_s=1.0), parameters=1.0, kv_bytes_per_token=1.0, timeout_s=0.8
)
HANGING = structs.replace(SPEC, max_restarts=1, timeout_s=None, hang_s=1.0)
REQUEST = Request(request_id="r", prompt_ids=(5,), max_tokens=4)
ANSWER = Completion(
    candidates=(Candidate(ids=(5,), text="a", cumulative_logprob=-1.0, finish_reason="length"),),
    usage=Usage(input_tokens=1, output_tokens=1),
)
STOPPED_S = 1.2
"""Longer than `timeout_s`, and than what is not noticed."""


class Late:
    """An engine that answers so many seconds after it was asked, and computes nothing that could be seen."""

    role, tokenizer, max_model_len, vocab_size = "draft", SimTokenizer(), 100, VOCAB_SIZE

    def __init__(self, answer_s: float) -> None:
        self.answer_s, self.killed = answer_s, False
        self.facts: dict[str, str] = {}

    async def generate(self, request: Request) -> Completion:
        await anyio.sleep(self.answer_s)
        return ANSWER

    def statistics(self) -> EngineStatistics:
        zeros = dict.fromkeys(EngineStatistics.__struct_fields__, 0) | {"speculation": None}
        return EngineStatistics(**zeros)

    def kill(self, exit_reason: str) -> None:
        self.killed = True

    async def restart(self) -> None:
        raise AssertionError("it is never dead")

    async def aclose(self) -> None:
        pass


def asked_and_stopped(engine: Late, spec: SimSpec = SPEC) -> Completion | Exception:
    """What comes of a call when this process does not run for `STOPPED_S` soon after it was sent: nothing of the event loop runs."""

    async def main() -> Completion | Exception:
        caller = RetryingCaller(engine, spec, Clock(0, time.monotonic))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.watch)
            tasks.start_soon(stop)
            try:
                return await caller.ask(REQUEST)
            except CallTimeout as error:
                return error
            finally:
                tasks.cancel_scope.cancel()

    async def stop() -> None:
        await anyio.sleep(0.4)  # the engine has been looked at
        time.sleep(STOPPED_S)  # noqa: ASYNC251

    return anyio.run(main)


def test_a_call_that_is_in_flight_while_the_process_is_suspended_goes_on() -> None:
    assert asked_and_stopped(Late(answer_s=STOPPED_S + 0.6)) == ANSWER


def test_what_takes_too_long_without_that_is_dropped_all_the_same() -> None:
    assert isinstance(asked_and_stopped(Late(answer_s=30.0)), CallTimeout)


def test_an_engine_is_not_killed_for_what_it_did_not_do_meanwhile() -> None:
    engine = Late(answer_s=STOPPED_S + 0.6)
    assert asked_and_stopped(engine, HANGING) == ANSWER
    assert not engine.killed


def test_an_engine_that_does_nothing_is_killed_all_the_same() -> None:
    engine = Late(answer_s=STOPPED_S + 1.7)
    assert asked_and_stopped(engine, HANGING) == ANSWER
    assert engine.killed


@pytest.mark.anyio
async def test_time_that_is_virtual_is_never_lost() -> None:
    assert await sleep_noticing(3600.0, Clock(0)) == 0.0


@pytest.mark.parametrize(("late_s", "lost_s"), [(0.0, 0.0), (UNNOTICED_S, 0.0), (60.0, 60.0)])
def test_only_what_is_more_than_late_is_lost(late_s: float, lost_s: float) -> None:
    times = iter([0.0, 0.0, 0.01 + late_s])
    assert anyio.run(sleep_noticing, 0.01, Clock(0, lambda: next(times))) == pytest.approx(lost_s)
