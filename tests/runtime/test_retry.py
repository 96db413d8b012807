"""The retry loop by itself: what is sent again and when, what an observer is told, and time in which the process stood still."""

import math
import time
from collections.abc import Callable

import anyio
import pytest
from msgspec import structs

from pipeline.engine import Asks, Candidate, Completion, EngineStatistics, Request, Usage
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, RequestRefused
from pipeline.runtime.clock import UNNOTICED_S, Clock, backoff_s, sleep_noticing
from pipeline.runtime.retry import CHECKS, UNOBSERVED, UNREADABLE, AttemptListener, CallTimeout, RetryingCaller
from pipeline.runtime.supervisor import STEADY_S

pytestmark = pytest.mark.anyio
SPEC = SimSpec(
    model="m",
    device=SimDeviceSpec(name="d", flops_per_s=1.0, bytes_per_s=1.0),
    parameters=1.0,
    kv_bytes_per_token=1.0,
    timeout_s=10.0,
    max_retries=3,
    max_restarts=1,
)
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

    def __init__(self, *reactions: Reaction) -> None:
        self.facts: dict[str, str] = {}
        self.reactions = list(reactions)
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
        return EngineStatistics(**zeros | {"busy_s": anyio.current_time()})

    def kill(self, exit_reason: str) -> None:
        self.kills += 1

    async def restart(self) -> None:
        self.restarts += 1

    async def aclose(self) -> None:
        pass


class Still(Scripted):
    """A scripted engine that computes nothing that could be seen."""

    def statistics(self) -> EngineStatistics:
        return structs.replace(super().statistics(), busy_s=0.0)


class Dripping(Still):
    """One whose server answers another call every so many seconds, until it has answered the last one."""

    def __init__(self, every_s: float, answered: int, *reactions: Reaction) -> None:
        super().__init__(*reactions)
        self.began, self.every_s, self.answered = anyio.current_time(), every_s, answered

    def statistics(self) -> EngineStatistics:
        answered = min(self.answered, int((anyio.current_time() - self.began) / self.every_s))
        return structs.replace(super().statistics(), requests=answered)

    async def rehearse(self, asks: Asks) -> None:
        raise AssertionError

    async def wait_answering(self) -> bool:
        return False


PATIENT = structs.replace(SPEC, timeout_s=None, hang_s=10.0, max_retries=0, max_restarts=0)


class Log(AttemptListener):
    """An observer that writes down what it is told, and gives every attempt a priority of its own."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.lines: list[tuple[str, float]] = []

    def begin_attempt(self, request: Request) -> Request:
        self.lines.append(("attempt", self.now()))
        return structs.replace(request, priority=len(self.lines))

    def end_attempt(self, completion: Completion | None, error: Exception | None) -> None:
        self.lines.append((type(error).__name__ if error else "answer", self.now()))

    def begin_wait(self, now: float) -> None:
        self.lines.append(("pause", now))

    def end_wait(self, now: float) -> None:
        self.lines.append(("go on", now))


async def ask(engine: Scripted, observer: AttemptListener = UNOBSERVED, spec: SimSpec = SPEC) -> Completion:
    caller = RetryingCaller(engine, spec, Clock(0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.watch)
        try:
            return await caller.ask(REQUEST, observer)
        finally:
            tasks.cancel_scope.cancel()


async def outcome(engine: Scripted, observer: AttemptListener = UNOBSERVED, spec: SimSpec = SPEC) -> Completion | Exception:
    try:
        return await ask(engine, observer, spec)
    except* Exception as group:
        [error] = group.exceptions
    return error


async def test_every_attempt_and_every_pause_is_told_with_its_times() -> None:
    engine = Scripted(EngineUnavailable("draft", "is busy", retry_after_s=7.0), 50.0, NONE, 2.0)
    log = Log(anyio.current_time)
    start = anyio.current_time()
    assert await outcome(engine, log) == ANSWER
    second, third = backoff_s("r", 1), backoff_s("r", 2)
    steps = [0, 0, 0, 7, 0, 10, 0, second, 0, 0, 0, third, 0, 2]
    names = ["attempt", "EngineUnavailable", "pause", "go on", "attempt", "CallTimeout", "pause", "go on"]
    names += ["attempt", "BadCompletion", "pause", "go on", "attempt", "answer"]
    assert [name for name, _ in log.lines] == names
    assert [at - start for _, at in log.lines] == pytest.approx([sum(steps[: i + 1]) for i in range(len(steps))])
    assert [request.priority for request in engine.sent] == [1, 5, 9, 13]


@pytest.mark.parametrize(("reaction", "error"), [(BUSY, EngineUnavailable), (NONE, BadCompletion), (11.0, CallTimeout)])
async def test_it_is_sent_again_as_often_as_the_spec_says(reaction: Reaction, error: type[Exception]) -> None:
    engine = Scripted(*[reaction] * 9)
    assert type(await outcome(engine)) is error
    assert len(engine.sent) == 1 + SPEC.max_retries


async def test_what_is_no_answer_is_asked_for_again_a_few_times_only() -> None:
    """A request with its seed mostly gets the same one; what may pass is waited for as long as the spec says."""
    patient = structs.replace(SPEC, max_retries=20)
    engine = Scripted(*[NONE, BUSY] * 20)
    assert type(await outcome(engine, spec=patient)) is BadCompletion
    assert len(engine.sent) == 2 * UNREADABLE + 1


@pytest.mark.parametrize(
    ("engine", "spec", "dropped_s"),
    [
        (lambda: Scripted(5000.0), PATIENT, None),
        (lambda: Still(100_000.0), PATIENT, 10.0),
        (lambda: Still(9.9), PATIENT, None),
        (lambda: Dripping(9.0, 5000, 2000.0), PATIENT, None),
        (lambda: Dripping(9.0, 3, 40_000.0), PATIENT, 37.0),  # the last answer came in the 27th second
        (lambda: Scripted(100_000.0), structs.replace(PATIENT, timeout_s=77.0), 77.0),
    ],
)
async def test_a_call_is_dropped_where_its_engine_makes_no_progress_and_not_before(
    engine: Callable[[], Scripted], spec: SimSpec, dropped_s: float | None
) -> None:
    start = anyio.current_time()
    asked = engine()
    found = await outcome(asked, spec=spec)
    assert not asked.kills
    if dropped_s is None:
        assert found == ANSWER
    else:
        limit = "did not answer within timeout_s=77" if spec.timeout_s else "made no progress for hang_s=10"
        assert (type(found), str(found)) == (CallTimeout, f"engine 'draft' {limit}")
        assert anyio.current_time() - start == pytest.approx(dropped_s, abs=spec.hang_s / CHECKS)


async def test_an_engine_that_works_for_an_hour_between_deaths_may_die_for_ever() -> None:
    def deaths(apart_s: float) -> Scripted:
        return Scripted(*[each for _ in range(9) for each in (EngineDead("draft", "gone"), apart_s)])

    async def asked(engine: Scripted) -> int:
        caller = RetryingCaller(engine, structs.replace(PATIENT, max_restarts=2, hang_s=STEADY_S), Clock(0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.watch)
            for _ in range(9):
                try:
                    await caller.ask(REQUEST)
                except EngineDead:
                    break
            tasks.cancel_scope.cancel()
        return engine.restarts

    assert await asked(deaths(STEADY_S)) == 9
    assert await asked(deaths(STEADY_S / 2)) == 2


@pytest.mark.parametrize("error", [RequestRefused("no"), ZeroDivisionError()])
async def test_an_error_that_is_not_the_engines_is_recorded_and_not_sent_again(error: Exception) -> None:
    engine, log = Scripted(error, ANSWER), Log(anyio.current_time)
    assert await outcome(engine, log) is error
    assert [name for name, _ in log.lines] == ["attempt", type(error).__name__]


async def test_a_death_is_not_the_requests_fault() -> None:
    engine = Scripted(EngineDead("draft", "gone"), ANSWER)
    assert await outcome(engine, spec=structs.replace(SPEC, max_retries=0)) == ANSWER
    assert (len(engine.sent), engine.restarts) == (2, 1)
    again = await outcome(Scripted(EngineDead("draft", "gone"), EngineDead("draft", "gone again"), ANSWER))
    assert isinstance(again, EngineDead)
    assert again.exit_reason == "gone again; it was restarted once, and max_restarts=1 allows no more"


class Faraway(Scripted):
    """A scripted engine whose servers were away when it is asked, for so many seconds each time; 0: they were not."""

    def __init__(self, away_s: list[float], *reactions: Reaction) -> None:
        super().__init__(*reactions)
        self.away_s = away_s

    async def rehearse(self, asks: Asks) -> None:
        raise AssertionError

    async def wait_answering(self) -> bool:
        away_s = self.away_s.pop(0)
        await anyio.sleep(away_s)
        return away_s > 0


async def test_a_call_without_retries_left_gets_one_more_if_nobody_was_answered_either() -> None:
    spec, start = structs.replace(SPEC, max_retries=0), anyio.current_time()
    assert await outcome(Faraway([40.0], BUSY, ANSWER), spec=spec) == ANSWER
    assert anyio.current_time() - start == pytest.approx(40.0)
    assert await outcome(Faraway([0.0], BUSY, ANSWER), spec=spec) is BUSY
    engine = Faraway([40.0, 40.0], BUSY, BUSY, ANSWER)
    assert await outcome(engine, spec=spec) is BUSY
    assert (len(engine.sent), len(engine.away_s)) == (2, 1)


@pytest.mark.parametrize(("asked_s", "waited_s"), [(None, None), (7.0, 7.0), (86400.0, 300.0), (math.inf, 300.0), (math.nan, None)])
async def test_no_engine_makes_a_call_wait_without_bound(asked_s: float | None, waited_s: float | None) -> None:
    start = anyio.current_time()
    assert await outcome(Scripted(EngineUnavailable("draft", "is busy", asked_s), ANSWER)) == ANSWER
    assert anyio.current_time() - start == pytest.approx(waited_s or backoff_s("r", 0))


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
    engine = Still(answer_s)

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

    found = anyio.run(main)
    assert isinstance(found, CallTimeout) if killed is None else (found, engine.kills > 0) == (ANSWER, killed)


async def test_time_that_is_virtual_is_never_lost() -> None:
    assert await sleep_noticing(3600.0, Clock(0)) == 0.0


@pytest.mark.parametrize(("late_s", "lost_s"), [(0.0, 0.0), (UNNOTICED_S, 0.0), (60.0, 60.0)])
def test_only_what_is_more_than_late_is_lost(late_s: float, lost_s: float) -> None:
    times = iter([0.0, 0.0, 0.01 + late_s])
    assert anyio.run(sleep_noticing, 0.01, Clock(0, lambda: next(times))) == pytest.approx(lost_s)
