"""`pipeline score RUN --prm FILE`: scores every drafted and committed step of a run folder with a process reward model
(SpecCoT A.1, Table 5). A run folder enters, its table `rewards` leaves; nothing else in it is touched.

A candidate text that was drafted several times is scored once. A text of several steps, such as a whole thought, is scored
after each of them and gets the least of these rewards.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct

from pipeline.engine import Engine, Request
from pipeline.engines.registry import open_engines, virtual_time
from pipeline.errors import ChainError, GraphError, InputError, Interrupted, RunError
from pipeline.graph.load import load_reward_model
from pipeline.graph.rewards import RewardSpec
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.reward_prompts import RewardPromptBuilder
from pipeline.rewards.steps import StepToScore, problem_texts, steps_to_score
from pipeline.runtime.clock import Clock
from pipeline.runtime.retry import RetryingCaller
from pipeline.stages.choose import probabilities
from pipeline.store.folder import hold
from pipeline.store.kept_problems import solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import RewardRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore
from pipeline.tasks import unwrapped

WINDOW = 2
"""Steps being scored at once, as a multiple of the engine's `max_in_flight`."""
WRITE_ROWS = 256
"""Rows that are collected before they are written."""
QUALITY = """
    SELECT coalesce(decision, 'all') AS decision, count(*) AS steps, avg(drafted) AS drafted, avg(committed) AS committed
    FROM (
        SELECT any_value(decision) AS decision, avg(reward) FILTER (WHERE candidate_index IS NOT NULL) AS drafted,
            max(reward) FILTER (WHERE selected) AS committed
        FROM rewards GROUP BY chain_id, step_index HAVING count(candidate_index) > 0
    )
    GROUP BY ROLLUP (decision) ORDER BY decision
"""
OnProgress = Callable[[int, int], None]
"""Called with the number of steps scored so far and the number of all steps."""


class Unscored(ChainError):
    """A text cannot be given a reward."""


class Reward(Struct, frozen=True):
    """The reward of one text."""

    value: float | None
    """0 to 1; None where the text could not be scored."""
    error: ChainError | None = None
    """Why there is no value."""


Keep = Callable[[StepToScore, Mapping[str, Reward]], None]
"""Called with each step and the reward of each of its texts."""


class MeanRewards(Struct, frozen=True):
    """Mean rewards over the steps that were drafted and have one decision, or over all."""

    decision: str
    """A decision, or `all`. The committed text of an `accepted` step is the candidate that the verifier selected, in a `fallback` step it
    replaced the candidates."""
    steps: int
    drafted: float | None
    """Mean over the steps of the mean of their candidates, each as often as it was drafted."""
    committed: float | None
    """Mean over the steps of what was committed."""


class ScoringResult(Struct, frozen=True, kw_only=True):
    """The outcome of scoring a run folder."""

    run: str
    """The name of the run folder."""
    model: str
    """The reward model."""
    steps: int
    """Committed steps, guidance included."""
    candidates: int
    """Drafted candidates of these steps."""
    requests: int
    """Requests that the reward model answered."""
    wall_s: float
    """Seconds of scoring, without the start of the engine."""
    quality: dict[str, MeanRewards]
    """Mean rewards by `MeanRewards.decision`."""
    errors: dict[str, int]
    """The number of texts without a reward, by the type of error."""
    first_error: str | None
    """The message of the first of these errors."""


def score_run(run: Path, prm: Path, *, settings: Sequence[str] = (), watch: OnProgress = lambda done, total: None) -> ScoringResult:
    """Score the steps of the run folder `run` with the model of the file `prm`, and write them there as the table `rewards`.

    Raises `UsageError` before an engine starts where the file, the folder or its input is wrong, `EngineDead` when the
    engine is lost, `RunError` where no step at all could be scored. An earlier table is replaced whole or stays.
    """
    spec = load_reward_model(prm, settings)
    if virtual_time({"reward": spec.reward}, str(prm)):
        raise GraphError(f"{prm}: $.reward", "is simulated, so its rewards would be meaningless; expected a backend that serves a model")
    file, model = RunFile.read(run), str(getattr(spec.reward, "model", "reward"))
    with Query(run) as query, hold(run):
        total = int(query.scalar("SELECT count(*) FROM steps"))
        if not total:
            raise InputError(str(run), "holds no steps to score")
        problems = problem_texts(query, file.plan, solved_problems(run, file))
        steps = steps_to_score(query, file.plan, problems, spec.prompt.thought_end)
        with RunStore(run).rewards() as add:
            writer = _Writer(add, {"run_id": file.run_id, "model": model}, lambda done: watch(done, total))
            try:
                requests, wall_s = anyio.run(_score, spec, str(prm), steps, writer.keep)
            except KeyboardInterrupt:
                raise Interrupted from None
            writer.flush()
            if not writer.rewards:
                raise RunError(f"{run}: none of its {total:,} steps could be scored; the first one: {writer.first_error}")
    with Query(run) as query:
        quality = query.rows(QUALITY, MeanRewards)
        candidates = int(query.scalar("SELECT count(candidate_index) FROM rewards"))
    return ScoringResult(
        run=run.resolve().name,
        model=model,
        steps=total,
        candidates=candidates,
        requests=requests,
        wall_s=wall_s,
        quality={each.decision: each for each in quality},
        errors=dict(writer.errors.most_common()),
        first_error=writer.first_error,
    )


async def _score(spec: RewardSpec, where: str, steps: Iterable[StepToScore], keep: Keep) -> tuple[int, float]:
    """Open the engine and score all `steps`; the number of requests and the seconds without the start of the engine."""
    async with open_engines({"reward": spec.reward}) as engines:
        scorer = Scorer(engines["reward"], spec.reward, RewardPromptBuilder(engines["reward"].tokenizer, spec.prompt, where))
        started = time.monotonic()
        await scorer.run(steps, keep)
        return scorer.requests, time.monotonic() - started


class _Writer:
    """Makes rows with the fields `common` of the rewards of steps, hands them to `add`, and counts what has none."""

    def __init__(self, add: Callable[[Sequence[RewardRow]], None], common: Mapping[str, Any], watch: Callable[[int], None]) -> None:
        self._add, self._common, self._watch = add, common, watch
        self._waiting: list[RewardRow] = []
        self.steps = self.rewards = 0
        """Steps so far, and their different texts that have a reward."""
        self.errors: Counter[str] = Counter()
        self.first_error: str | None = None

    def keep(self, step: StepToScore, rewards: Mapping[str, Reward]) -> None:
        """A row for each candidate, and one for the committed text where it is none of them."""
        self.steps += 1
        for reward in rewards.values():
            self.rewards += reward.error is None
            if reward.error is not None:
                self.errors[type(reward.error).__name__] += 1
                self.first_error = self.first_error or str(reward.error)
        for each in step.texts:
            found = rewards[each.text]
            error = None if found.error is None else str(found.error)
            said = {name: getattr(each, name) for name in ("candidate_index", "selected", "source_engine")}
            self._waiting.append(RewardRow(**self._common, **step.place, **said, reward=found.value, reward_error=error))
        if len(self._waiting) >= WRITE_ROWS:
            self.flush()
        self._watch(self.steps)

    def flush(self) -> None:
        """Write the rows that wait."""
        self._add(self._waiting)
        self._waiting = []


class Scorer:
    """Scores steps with one reward model, at most `max_in_flight` requests at once."""

    def __init__(self, engine: Engine, spec: EngineSpec, builder: RewardPromptBuilder) -> None:
        self._max_in_flight, self._builder = spec.max_in_flight, builder
        self._slots = anyio.CapacityLimiter(spec.max_in_flight)
        self._caller = RetryingCaller(engine, spec, Clock(time.time_ns()))
        self.requests = 0
        """Requests that were answered."""

    async def run(self, steps: Iterable[StepToScore], keep: Keep) -> None:
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
            rewards[text] = Reward(min([await self._ask(step, parts[: i + 1], f"{number}.{i}") for i in range(len(parts))]))
        except ChainError as error:
            rewards[text] = Reward(None, error)

    async def _ask(self, step: StepToScore, parts: Sequence[str], name: str) -> float:
        """P(good) / (P(good) + P(bad)) after the last of `parts`."""
        request = Request(
            request_id=f"{step.place['chain_id']}/{step.place['step_index']}/reward.{name}",
            prompt_ids=self._builder.ids(step.problem, [*step.before, *parts]),
            max_tokens=1,
            option_ids=self._builder.option_ids,
            affinity=step.place["chain_id"],
        )
        async with self._slots:
            completion = await self._caller.ask(request)
        self.requests += 1
        (good, _), mass = probabilities(completion.option_logprobs)
        if not mass:
            raise Unscored("the model gives neither answer any probability")
        return good
