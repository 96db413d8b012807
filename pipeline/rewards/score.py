"""`pipeline score RUN --prm FILE`: scores every drafted and committed step of a run folder with a process reward model
(SpecCoT A.1, Table 5). A run folder enters, its table `rewards` leaves; nothing else in it is touched.

A candidate text that was drafted several times is scored once. A text of several steps, such as a whole thought, is scored
after each of them and gets the least of these rewards.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import anyio

from pipeline.engine import Engine, Request
from pipeline.engines.registry import open_engines, virtual_time
from pipeline.errors import ChainError, GraphError, Interrupted, RunError
from pipeline.graph.plugins import engine_specs
from pipeline.graph.spec import EngineSpec
from pipeline.rewards.prompts import RewardPromptBuilder
from pipeline.rewards.spec import RewardSpec, load_reward_model
from pipeline.rewards.steps import StepsToScore, StepToScore, open_input
from pipeline.rewards.tally import Reward, RewardTally, ScoringResult
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.retry import RetryingCaller
from pipeline.stages.choose import probabilities
from pipeline.store.events import RewardRow
from pipeline.store.folder import hold
from pipeline.store.rewrite import replacing
from pipeline.store.run_file import RunFile
from pipeline.tasks import unwrapped

WINDOW = 2
"""Steps being scored at once, as a multiple of the engine's `max_in_flight`."""
WRITE_ROWS = 256
"""Rows that are collected before they are written."""
OnProgress = Callable[[int, int], None]
"""Called with the number of steps scored so far and the number of all steps."""


class Unscored(ChainError):
    """A text cannot be given a reward."""


def score_run(
    run: Path, prm: Path, *, input_file: Path | None = None, settings: Sequence[str] = (), watch: OnProgress = lambda done, total: None
) -> ScoringResult:
    """Score the steps of the run folder `run` with the model of the file `prm`, and write them there as the table `rewards`.

    Raises `UsageError` before an engine starts where the file, the folder or its input is wrong, `EngineDead` when the
    engine is lost, `RunError` where no step at all could be scored. An earlier table is replaced whole or stays.
    """
    spec = load_reward_model(prm, engine_specs(), settings)
    if virtual_time({"reward": spec.reward}, str(prm)):
        raise GraphError(f"{prm}: $.reward", "is simulated, so its rewards would be meaningless; expected a backend that serves a model")
    file = RunFile.read(run)
    steps = StepsToScore(run, file, open_input(run, file, input_file), spec.prompt.thought_end)
    tally = RewardTally(run.resolve().name, file.run_id, str(getattr(spec.reward, "model", "reward")))
    with hold(run):
        try:
            return anyio.run(_score, run, prm, spec, steps, tally, watch)
        except KeyboardInterrupt:
            raise Interrupted from None


async def _score(run: Path, prm: Path, spec: RewardSpec, steps: StepsToScore, tally: RewardTally, watch: OnProgress) -> ScoringResult:
    """Open the engine, score all steps and write the table `rewards`."""
    async with open_engines({"reward": spec.reward}) as engines:
        builder = RewardPromptBuilder(engines["reward"].tokenizer, spec.prompt, str(prm))
        scorer = Scorer(engines["reward"], spec.reward, builder)
        waiting: list[RewardRow] = []
        started = time.monotonic()
        with replacing(run, "rewards", RewardRow) as append:

            def keep(step: StepToScore, rewards: dict[str, Reward]) -> None:
                waiting.extend(tally.rows(step, rewards))
                if len(waiting) >= WRITE_ROWS:
                    append(waiting)
                    waiting.clear()
                watch(tally.steps, steps.total)

            await scorer.run(steps, keep)
            append(waiting)
            if not tally.rewards:
                raise RunError(f"{run}: none of its {tally.steps:,} steps could be scored; the first one: {tally.first_error}")
    return tally.scored(scorer.requests, time.monotonic() - started)


class Scorer:
    """Scores steps with one reward model, at most `max_in_flight` requests at once."""

    def __init__(self, engine: Engine, spec: EngineSpec, builder: RewardPromptBuilder) -> None:
        self._max_in_flight, self._builder = spec.max_in_flight, builder
        self._slots = anyio.CapacityLimiter(spec.max_in_flight)
        self._caller = RetryingCaller(engine, spec, Clock(time.time_ns()))
        self.requests = 0
        """Requests that were answered."""

    async def run(self, steps: Iterable[StepToScore], keep: Callable[[StepToScore, dict[str, Reward]], None]) -> None:
        """Score `steps` and call `keep` with each of them, in order, and the reward of each of its texts. Raises `RunError`."""
        in_progress: deque[tuple[StepToScore, dict[str, Reward]]] = deque()
        room = anyio.Semaphore(WINDOW * self._max_in_flight)

        async def score_step(step: StepToScore, rewards: dict[str, Reward]) -> None:
            async with anyio.create_task_group() as texts:
                for text in step.steps:
                    texts.start_soon(self._score_text, step, text, rewards)
            while in_progress and len(in_progress[0][1]) == len(in_progress[0][0].steps):
                keep(*in_progress.popleft())
                room.release()

        with unwrapped():
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._caller.watch)
                async with anyio.create_task_group() as tasks:
                    for step in steps:
                        await room.acquire()
                        in_progress.append((step, {}))
                        tasks.start_soon(score_step, *in_progress[-1])
                watchers.cancel_scope.cancel()

    async def _score_text(self, step: StepToScore, text: str, rewards: dict[str, Reward]) -> None:
        """Put the reward of one text into `rewards`; a `ChainError` becomes a reward without a value."""
        parts, number = step.steps[text], list(step.steps).index(text)
        try:
            if not parts:
                raise Unscored("the text says nothing")
            found = [await self._ask(step, parts[: i + 1], f"{number}.{i}") for i in range(len(parts))]
            rewards[text] = Reward(min(found))
        except ChainError as error:
            rewards[text] = Reward(None, str(error), type(error).__name__)

    async def _ask(self, step: StepToScore, parts: Sequence[str], name: str) -> float:
        """P(good) / (P(good) + P(bad)) after the last of `parts`."""
        request = Request(
            request_id=f"{step.chain_id}/{step.step_index}/reward.{name}",
            prompt_ids=self._builder.ids(step.problem, [*step.before, *parts]),
            max_tokens=1,
            option_ids=self._builder.option_ids,
            affinity=step.chain_id,
        )
        async with self._slots:
            completion = await self._caller.ask(request)
        self.requests += 1
        (good, _), mass = probabilities(completion.option_logprobs)
        if not mass:
            raise Unscored("the model gives neither answer any probability")
        return good
