"""The retry loop by itself: what is sent again and when, what an observer is told, and time in which the process stood still."""

import math
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest
from msgspec import structs

from pipeline.engine import Candidate, Completion, EngineStatistics, Request, Usage
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, RequestRefused
from pipeline.runtime.clock import LONGEST_BACKOFF_S, UNNOTICED_S, Clock, backoff_s, sleep_noticing
from pipeline.runtime.retry import CHECKS, UNOBSERVED, AttemptListener, CallTimeout, RetryingCaller

pytestmark = pytest.mark.anyio
DEVICE = SimDeviceSpec(name="d", flops_per_s=1.0, bytes_per_s=1.0)
SPEC = SimSpec(model="m", device=DEVICE, parameters=1.0, kv_bytes_per_token=1.0, timeout_s=10.0, max_retries=3, max_restarts=1)
PATIENT = structs.replace(SPEC, timeout_s=None, hang_s=10.0, max_retries=0, max_restarts=0)
REQUEST = Request(request_id="r", prompt_ids=(5,), max_tokens=4)
ANSWER = Completion(
    candidates=(Candidate(ids=(5,), text="a", cumulative_logprob=-1.0, finish_reason="length"),),
    usage=Usage(input_tokens=1, output_tokens=1),
)
NONE = structs.replace(ANSWER, candidates=())
BUSY = EngineUnavailable("draft", "is busy")
Reaction = Completion | Exception | float


class Scripted:
    """An engine that reacts to each call as it is told: an answer, an error, or seconds without either."""

    role, tokenizer, max_model_len, vocab_size = "draft", SimTokenizer(), 100, VOCAB_SIZE

    def __init__(self, *reactions: Reaction, still: bool = False) -> None:
        """`still`: it computes nothing that could be seen."""
        self.facts: dict[str, str] = {}
        self.reactions, self.still = list(reactions), still
        self.sent: list[Request] = []
        self.restarts = self.kills = 0

    async def generate(self, request: Request) -> Completion:
        self.sent.append(request)
        reaction = self.reactions.pop(0)
        if isinstance(reaction, Exception):
            raise reaction
        if isinstance(reaction, Completion):
            return reaction
        await anyio.sleep(reaction)
        return ANSWER

    def statistics(self) -> EngineStatistics:
        zeros = dict.fromkeys(EngineStatistics.__struct_fields__, 0) | {"speculation": None}
        return EngineStatistics(**zeros | {"busy_s": 0.0 if self.still else anyio.current_time()})

    def kill(self, exit_reason: str) -> None:
        self.kills += 1

    async def restart(self) -> None:
        self.restarts += 1

    async def aclose(self) -> None:
        pass


class Served(Scripted):
    """One whose server answers another call every nine seconds, so many in all, and is away for so long each time when it is asked."""

    def __init__(self, *reactions: Reaction, answers: int = 0, away_s: Sequence[float] = ()) -> None:
        super().__init__(*reactions, still=True)
        self.began, self.answers, self.away_s = anyio.current_time(), answers, list(away_s)

    def statistics(self) -> EngineStatistics:
        return structs.replace(super().statistics(), requests=min(self.answers, int((anyio.current_time() - self.began) / 9)))

    async def wait_answering(self) -> bool:
        away_s = self.away_s.pop(0) if self.away_s else 0.0
        await anyio.sleep(away_s)
        return away_s > 0


class Log(AttemptListener):
    """An observer that writes down what it is told, and gives every attempt another priority."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float]] = []

    def begin_attempt(self, request: Request) -> Request:
        self.lines.append(("attempt", anyio.current_time()))
        return structs.replace(request, priority=len(self.lines))

    def end_attempt(self, end: Completion | Exception) -> None:
        self.lines.append((type(end).__name__ if isinstance(end, Exception) else "answer", anyio.current_time()))

    def begin_wait(self, now: float) -> None:
        self.lines.append(("wait", now))

    def end_wait(self, now: float) -> None:
        self.lines.append(("go on", now))


async def nothing() -> None: ...


async def outcome(
    engine: Scripted,
    observer: AttemptListener = UNOBSERVED,
    spec: SimSpec = SPEC,
    *,
    clock: Clock | None = None,
    beside: Callable[[], Awaitable[None]] = nothing,
) -> Completion | Exception:
    """What a call comes to."""
    caller = RetryingCaller(engine, spec, clock or Clock(0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.watch)
        tasks.start_soon(beside)
        try:
            return await caller.ask(REQUEST, observer)
        except Exception as error:
            return error
        finally:
            tasks.cancel_scope.cancel()
    raise AssertionError


async def test_every_attempt_and_every_wait_is_told_with_its_times() -> None:
    engine, log, start = Scripted(EngineUnavailable("draft", "is busy", retry_after_s=7.0), 50.0, NONE, 2.0), Log(), anyio.current_time()
    assert await outcome(engine, log) == ANSWER
    second, third = backoff_s("r", 1), backoff_s("r", 2)
    steps = [0, 0, 0, 7, 0, 10, 0, second, 0, 0, 0, third, 0, 2]
    names = ["attempt", "EngineUnavailable", "wait", "go on", "attempt", "CallTimeout", "wait", "go on"]
    names += ["attempt", "BadCompletion", "wait", "go on", "attempt", "answer"]
    assert [name for name, _ in log.lines] == names
    assert [at - start for _, at in log.lines] == pytest.approx([sum(steps[: i + 1]) for i in range(len(steps))])
    assert [request.priority for request in engine.sent] == [1, 5, 9, 13]


@pytest.mark.parametrize(
    ("reactions", "retries", "error", "sent"),
    [
        ([BUSY], 3, EngineUnavailable, 4),
        ([NONE], 3, BadCompletion, 4),
        ([11.0], 3, CallTimeout, 4),
        ([RequestRefused("no")], 3, RequestRefused, 1),
        ([ZeroDivisionError()], 3, ZeroDivisionError, 1),
    ],
)
async def test_a_call_is_sent_again_as_often_as_that_may_help(
    reactions: list[Reaction], retries: int, error: type[Exception], sent: int
) -> None:
    engine, log = Scripted(*reactions * 20), Log()
    assert type(await outcome(engine, log, structs.replace(SPEC, max_retries=retries))) is error
    assert len(engine.sent) == sent == [name for name, _ in log.lines].count("attempt")
    assert log.lines[-1][0] == error.__name__


@pytest.mark.parametrize(
    ("engine", "spec", "dropped_s"),
    [
        (lambda: Scripted(5000.0), PATIENT, None),
        (lambda: Scripted(100_000.0, still=True), PATIENT, 10.0),
        (lambda: Scripted(9.9, still=True), PATIENT, None),
        (lambda: Served(2000.0, answers=5000), PATIENT, None),
        (lambda: Served(40_000.0, answers=3), PATIENT, 37.0),  # the last answer came in the 27th second
        (lambda: Scripted(100_000.0), structs.replace(PATIENT, timeout_s=77.0), 77.0),
    ],
)
async def test_a_call_is_dropped_where_its_engine_makes_no_progress_and_not_before(
    engine: Callable[[], Scripted], spec: SimSpec, dropped_s: float | None
) -> None:
    start, asked = anyio.current_time(), engine()
    found = await outcome(asked, spec=spec)
    assert not asked.kills
    if dropped_s is None:
        assert found == ANSWER
    else:
        limit = "did not answer within timeout_s=77" if spec.timeout_s else "made no progress for hang_s=10"
        assert (type(found), str(found)) == (CallTimeout, f"engine 'draft' {limit}")
        assert anyio.current_time() - start == pytest.approx(dropped_s, abs=spec.hang_s / CHECKS)


async def test_a_death_is_not_the_requests_fault() -> None:
    engine = Scripted(EngineDead("draft", "gone"), ANSWER)
    assert await outcome(engine, spec=structs.replace(SPEC, max_retries=0)) == ANSWER
    assert (len(engine.sent), engine.restarts) == (2, 1)
    again = await outcome(Scripted(EngineDead("draft", "gone"), EngineDead("draft", "gone again"), ANSWER))
    assert isinstance(again, EngineDead)
    assert again.exit_reason == "gone again; it was restarted once, and max_restarts=1 allows no more"


async def test_a_call_without_retries_left_gets_one_more_if_nobody_was_answered_either() -> None:
    spec, start = structs.replace(SPEC, max_retries=0), anyio.current_time()
    assert await outcome(Served(BUSY, ANSWER, away_s=[40.0]), spec=spec) == ANSWER
    assert anyio.current_time() - start == pytest.approx(40.0)
    assert await outcome(Served(BUSY, ANSWER), spec=spec) is BUSY
    engine = Served(BUSY, BUSY, ANSWER, away_s=[40.0, 40.0])
    assert await outcome(engine, spec=spec) is BUSY
    assert (len(engine.sent), len(engine.away_s)) == (2, 1)


@pytest.mark.parametrize(("asked_s", "waited_s"), [(None, None), (7.0, 7.0), (86400.0, 300.0), (math.inf, 300.0), (math.nan, None)])
async def test_no_engine_makes_a_call_wait_without_bound(asked_s: float | None, waited_s: float | None) -> None:
    start = anyio.current_time()
    assert await outcome(Scripted(EngineUnavailable("draft", "is busy", asked_s), ANSWER)) == ANSWER
    assert anyio.current_time() - start == pytest.approx(waited_s or backoff_s("r", 0))


def test_backing_off_doubles_up_to_a_bound_and_brings_no_two_calls_back_together() -> None:
    for attempt in range(20):
        waits = {backoff_s(f"r{i}", attempt) for i in range(50)}
        longest = min(LONGEST_BACKOFF_S, 0.5 * 2**attempt)
        assert len(waits) == 50
        assert all(longest / 2 <= wait <= longest for wait in waits)


STOPPED_S = 1.2
"""Longer than a limit of 0.8 s, and than what is not noticed."""
HANGING = structs.replace(SPEC, timeout_s=None, hang_s=1.0)


@pytest.mark.slow  # in real time
@pytest.mark.parametrize(
    ("answer_s", "spec", "killed"),
    [
        (STOPPED_S + 0.6, structs.replace(SPEC, timeout_s=0.8), False),
        (30.0, structs.replace(SPEC, timeout_s=0.8, max_retries=0), None),
        (STOPPED_S + 0.6, HANGING, False),
        (STOPPED_S + 1.7, HANGING, True),
    ],
)
def test_time_in_which_the_process_did_not_run_is_nobodys_delay(answer_s: float, spec: SimSpec, killed: bool | None) -> None:
    """Soon after the call was sent nothing of the event loop runs for `STOPPED_S`; `killed`: None where the call times out all the same."""

    async def stop() -> None:
        await anyio.sleep(0.4)  # the engine has been looked at
        time.sleep(STOPPED_S)  # noqa: ASYNC251

    async def main() -> Completion | Exception:
        return await outcome(engine, spec=spec, clock=Clock(0, time.monotonic), beside=stop)

    engine = Scripted(answer_s, still=True)
    found = anyio.run(main)
    assert isinstance(found, CallTimeout) if killed is None else (found, engine.kills > 0) == (ANSWER, killed)


@pytest.mark.parametrize(("late_s", "lost_s"), [(0.0, 0.0), (UNNOTICED_S, 0.0), (60.0, 60.0)])
def test_only_what_is_more_than_late_is_lost(late_s: float, lost_s: float) -> None:
    times = iter([0.0, 0.0, 0.01 + late_s])
    assert anyio.run(sleep_noticing, 0.01, Clock(0, lambda: next(times))) == pytest.approx(lost_s)
