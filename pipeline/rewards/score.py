"""`pipeline grade RUN --prm FILE`: scores every drafted and committed step of a run folder with a process reward model
(SpecCoT A.1, Table 5). A run folder enters, its table `rewards` leaves; nothing else in it is touched.

A text that is drafted several times is asked about once. One of several steps, such as a whole thought, is asked about
after each of them and has the least of their rewards.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import anyio

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.registry import open_engines, virtual_time
from pipeline.errors import ChainError, EngineDead, EngineUnavailable, GraphError, Interrupted, PipelineError, RunError, first_of
from pipeline.graph.plugins import engine_specs
from pipeline.graph.spec import EngineSpec
from pipeline.rewards.prompts import RewardDialect
from pipeline.rewards.spec import RewardSpec, load_reward_model
from pipeline.rewards.steps import Round, Rounds, open_input
from pipeline.rewards.tally import Reward, Scored, Tally
from pipeline.runtime.backoff import backoff_s
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.dispatch import CallTimeout
from pipeline.runtime.supervisor import Supervisor
from pipeline.stages.choose import probabilities
from pipeline.trace.events import RewardRow
from pipeline.trace.folder import hold
from pipeline.trace.rewrite import replacing
from pipeline.trace.run_file import RunFile

WINDOW = 2
"""Steps under way at once, as a multiple of the engine's `max_in_flight`: most ask for more than one text."""
WRITE_ROWS = 256
Watch = Callable[[int, int], None]
"""Told how many steps are scored, of how many."""


class Unscored(ChainError):
    """A text that no reward can be given to."""


def score_run(
    run: Path, prm: Path, *, input_file: Path | None = None, settings: Sequence[str] = (), watch: Watch = lambda done, total: None
) -> Scored:
    """Score the steps of the run folder `run` with the model of the file `prm`, and write them there as the table `rewards`.

    Raises `UsageError` before an engine starts where the file, the folder or its input is wrong, `EngineDead` when the
    engine is lost, `RunError` where no step at all could be scored. An earlier table is replaced whole or stays.
    """
    spec = load_reward_model(prm, engine_specs(), settings)
    if virtual_time({"reward": spec.reward}, str(prm)):
        raise GraphError(f"{prm}: $.reward", "is simulated, and its rewards would mean nothing; expected a backend that serves a model")
    file = RunFile.read(run)
    rounds = Rounds(run, file, open_input(file, input_file), spec.prompt.thought_end)
    tally = Tally(run.resolve().name, file.run_id, str(getattr(spec.reward, "model", "reward")))
    with hold(run):
        try:
            return anyio.run(_score, run, prm, spec, rounds, tally, watch)
        except KeyboardInterrupt:
            raise Interrupted from None


async def _score(run: Path, prm: Path, spec: RewardSpec, rounds: Rounds, tally: Tally, watch: Watch) -> Scored:
    """From an open engine to a whole table."""
    async with open_engines({"reward": spec.reward}) as engines:
        builder = RewardDialect(engines["reward"].tokenizer, spec.prompt, str(prm))
        scorer = Scorer(engines["reward"], spec.reward, builder)
        waiting: list[RewardRow] = []
        started = time.monotonic()
        with replacing(run, "rewards", RewardRow) as append:

            def keep(round_: Round, rewards: dict[str, Reward]) -> None:
                waiting.extend(tally.rows(round_, rewards))
                if len(waiting) >= WRITE_ROWS:
                    append(waiting)
                    waiting.clear()
                watch(tally.steps, rounds.total)

            await scorer.run(rounds, keep)
            append(waiting)
            if not tally.rewards:
                raise RunError(f"{run}: none of its {tally.steps:,} steps could be scored; the first one: {tally.first_error}")
    return tally.scored(scorer.requests, time.monotonic() - started)


class Scorer:
    """Asks one reward model, as much at once as its spec allows."""

    def __init__(self, engine: Engine, spec: EngineSpec, builder: RewardDialect) -> None:
        self._engine, self._spec, self._dialect = engine, spec, builder
        self._places = anyio.CapacityLimiter(spec.max_in_flight)
        self._clock = Clock(time.time_ns(), time.monotonic)
        self._asked: dict[str, float] = {}
        self._supervisor = Supervisor(engine, spec, self._clock, lambda: next(iter(self._asked.values()), None))
        self.requests = 0
        """Answered ones."""

    async def run(self, rounds: Iterable[Round], keep: Callable[[Round, dict[str, Reward]], None]) -> None:
        """Pass each of `rounds` on to `keep`, in order, with the reward of each of its texts. Raises `RunError`."""
        under_way: deque[tuple[Round, dict[str, Reward]]] = deque()
        room = anyio.Semaphore(WINDOW * self._spec.max_in_flight)

        async def one(round_: Round, rewards: dict[str, Reward]) -> None:
            async with anyio.create_task_group() as texts:
                for text in round_.steps:
                    texts.start_soon(self._text, round_, text, rewards)
            while under_way and len(under_way[0][1]) == len(under_way[0][0].steps):
                keep(*under_way.popleft())
                room.release()

        try:
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._supervisor.watch)
                async with anyio.create_task_group() as tasks:
                    for round_ in rounds:
                        await room.acquire()
                        under_way.append((round_, {}))
                        tasks.start_soon(one, *under_way[-1])
                watchers.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group, PipelineError) or group from None

    async def _text(self, round_: Round, text: str, rewards: dict[str, Reward]) -> None:
        """The reward of one text: what fails is data, unless the engine is lost."""
        steps, number = round_.steps[text], list(round_.steps).index(text)
        try:
            if not steps:
                raise Unscored("the text says nothing")
            found = [await self._step(round_, steps[: i + 1], f"{number}.{i}") for i in range(len(steps))]
            rewards[text] = Reward(min(found))
        except ChainError as error:
            rewards[text] = Reward(None, str(error), type(error).__name__)

    async def _step(self, round_: Round, steps: Sequence[str], name: str) -> float:
        """The probability of the good answer after the last of `steps`, against that of the bad one."""
        request = Request(
            request_id=f"{round_.chain_id}/{round_.step_index}/reward.{name}",
            prompt_ids=self._dialect.ids(round_.problem, [*round_.before, *steps]),
            max_tokens=1,
            option_ids=self._dialect.option_ids,
            affinity=round_.chain_id,
        )
        async with self._places:
            completion = await self._ask(request)
        self.requests += 1
        (good, _), mass = probabilities(completion.option_logprobs)
        if not mass:
            raise Unscored("the model gives neither answer any probability")
        return good

    async def _ask(self, request: Request) -> Completion:
        """Ask, and ask again what the engine could not answer for the moment or died over. It keeps its place in flight."""
        failures = 0
        while True:
            life, self._asked[request.request_id] = self._supervisor.life, self._clock.now()
            try:
                with anyio.move_on_after(self._spec.timeout_s):
                    return await self._engine.generate(request)
                raise CallTimeout(self._engine.role, self._spec.timeout_s)
            except EngineDead as death:
                await self._supervisor.wait_restarted(life, death)
            except EngineUnavailable as refusal:
                if failures >= self._spec.max_retries:
                    raise
                await anyio.sleep(backoff_s(request.request_id, failures, refusal.retry_after_s))
                failures += 1
            finally:
                self._asked.pop(request.request_id, None)
