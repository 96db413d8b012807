"""`pipeline score RUN --prm FILE`: scores every drafted and committed step of a run folder with a process reward model
(SpecCoT A.1, Table 5). A run folder enters, its table `rewards` leaves; nothing else in it is touched.

A candidate text that was drafted several times is scored once. A text of several steps, such as a whole thought, is scored
after each of them and gets the least of these rewards.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from msgspec import Struct, structs

from pipeline.data.problems import Problem
from pipeline.engine import Engine, Request
from pipeline.engines.registry import open_engines
from pipeline.errors import ChainError, GraphError, InputError, RunError
from pipeline.graph.load import load_reward_model
from pipeline.graph.plan import Plan
from pipeline.graph.rewards import ChatPrompt, TextPrompt
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.reward_prompts import RewardPromptBuilder, Thought
from pipeline.runtime.clock import Clock
from pipeline.runtime.retry import RetryingCaller
from pipeline.stages.choose import probabilities
from pipeline.store.folder import hold
from pipeline.store.kept_problems import Problems, solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import RewardRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore
from pipeline.tasks import unwrapped

WINDOW = 1024
"""Steps that are scored together, and written in their order."""
QUALITY = """
    SELECT coalesce(decision, 'all') AS decision, count(*) AS steps, avg(drafted) AS drafted, avg(committed) AS committed
    FROM (
        SELECT any_value(decision) AS decision, avg(reward) FILTER (WHERE candidate_index IS NOT NULL) AS drafted,
            max(reward) FILTER (WHERE selected) AS committed
        FROM rewards GROUP BY chain_id, step_index HAVING count(candidate_index) > 0
    )
    GROUP BY ROLLUP (decision) ORDER BY decision
"""
KEPT = ("run_id", "problem_id", "chain_id", "sample_index", "step_index", "decision")
"""The columns of a step that a reward row repeats."""
COLUMNS = (*KEPT, "source_engine", "chosen_candidate", "step_text", "candidate_texts")
OnProgress = Callable[[int, int], None]
"""Called with the number of steps scored so far and the number of all steps."""
Reward: TypeAlias = "float | ChainError"
"""The reward of a text, 0 to 1, or why it has none."""
Keep = Callable[["StepToScore", Mapping[str, Reward]], None]
"""Called with each step and the reward of each of its texts."""


class StepToScore(Struct, frozen=True, kw_only=True):
    """One committed step and what was drafted for it."""

    problem: str
    before: tuple[str, ...]
    """The steps of the thought that precede this one."""
    texts: tuple[str, ...]
    """Its candidates, and the committed text where it is none of them."""
    rows: tuple[RewardRow, ...]
    """The row of each text, still without a reward."""
    steps: dict[str, list[str]]
    """By text: the steps that it is made of, the first one with the beginning that the thought holds already."""


class Unscored(ChainError):
    """A text cannot be given a reward."""


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
    served, prompt = load_reward_model(prm, settings)
    if served.virtual_time:
        raise GraphError(f"{prm}: $.reward", "is simulated, so its rewards would be meaningless; expected a backend that serves a model")
    file, model = RunFile.read(run), str(getattr(served, "model", "reward"))
    errors, first_error, scored = Counter[str](), None, 0
    with Query(run) as query, hold(run):
        total = int(query.scalar("SELECT count(*) FROM steps"))
        if not total:
            raise InputError(str(run), "holds no steps to score")
        steps = steps_to_score(query, file.plan, solved_problems(run, file), model, prompt.thought_end)
        with RunStore(run).rewards() as add:

            def keep(step: StepToScore, rewards: Mapping[str, Reward]) -> None:
                nonlocal first_error, scored
                failed = [reward for reward in rewards.values() if isinstance(reward, ChainError)]
                errors.update(type(error).__name__ for error in failed)
                first_error, scored = first_error or next(map(str, failed), None), scored + len(rewards) - len(failed)
                said = {text: {"reward_error": str(r)} if isinstance(r, ChainError) else {"reward": r} for text, r in rewards.items()}
                add([structs.replace(row, **said[text]) for row, text in zip(step.rows, step.texts, strict=True)])

            anyio.run(_score, served, prompt, str(prm), steps, keep, lambda done: watch(done, total))
            if not scored:
                raise RunError(f"{run}: none of its {total:,} steps could be scored; the first one: {first_error}")
    with Query(run) as query:
        quality = query.rows(QUALITY, MeanRewards)
        candidates = int(query.scalar("SELECT count(candidate_index) FROM rewards"))
    return ScoringResult(
        run=run.resolve().name,
        model=model,
        steps=total,
        candidates=candidates,
        quality={each.decision: each for each in quality},
        errors=dict(errors.most_common()),
        first_error=first_error,
    )


def steps_to_score(query: Query, plan: Plan, problems: Problems, model: str, thought_end: str = "") -> Iterator[StepToScore]:
    """All steps of a run about `problems`, chain by chain; `model` is the reward model. Raises `InputError` where one is missing."""
    told = {item.problem_id: item.told(plan.prompts) for item in problems if isinstance(item, Problem)}
    found = query.stream(f"SELECT {', '.join(COLUMNS)} FROM steps ORDER BY chain_id, step_index")
    rows = (dict(zip(COLUMNS, row, strict=True)) for row in found)
    for _, of_chain in groupby(rows, key=lambda row: row["chain_id"]):
        thought = Thought(thought_end, plan.prompts)
        for row in of_chain:
            if (name := row["problem_id"]) not in told:
                raise InputError(str(problems.name), f"holds no problem {name!r}, of which this run has steps")
            texts = (*row["candidate_texts"], *([row["step_text"]] if row["chosen_candidate"] is None else []))
            yield StepToScore(
                problem=told[name],
                before=tuple(thought.steps),
                texts=texts,
                rows=_rows(row, plan.drafters, model),
                steps={text: thought.steps_of(text) for text in dict.fromkeys(texts)},
            )
            thought.commit(row["step_text"])


def _rows(step: Mapping[str, Any], roles: Sequence[str], model: str) -> tuple[RewardRow, ...]:
    """A row for each candidate of a step, and one for its committed text where it is none of them; `roles` drafted the candidates."""
    count, chosen, writer = len(step["candidate_texts"]), step["chosen_candidate"], step["source_engine"]
    drafters = roles if len(roles) == count else [roles[0] if roles else writer] * count
    common = {name: step[name] for name in KEPT} | {"reward": None, "reward_error": None, "model": model}
    written = RewardRow(**common, candidate_index=chosen, selected=True, source_engine=writer)
    drafted = [structs.replace(written, candidate_index=i, selected=False, source_engine=role) for i, role in enumerate(drafters)]
    return (*drafted, written) if chosen is None else (*drafted[:chosen], written, *drafted[chosen + 1 :])


async def _score(
    served: EngineSpec, prompt: TextPrompt | ChatPrompt, where: str, steps: Iterator[StepToScore], keep: Keep, watch: Callable[[int], None]
) -> None:
    async with open_engines({"reward": served}) as engines:
        builder = RewardPromptBuilder(engines["reward"].tokenizer, prompt, where)
        await Scorer(engines["reward"], served, builder, watch).run(steps, keep)


class Scorer:
    """Scores steps with one reward model, at most `max_in_flight` requests at once; `watch` hears how many steps are scored."""

    def __init__(
        self, engine: Engine, spec: EngineSpec, builder: RewardPromptBuilder, watch: Callable[[int], None] = lambda done: None
    ) -> None:
        self._builder, self._watch = builder, watch
        self._slots = anyio.CapacityLimiter(spec.max_in_flight)
        self._caller = RetryingCaller(engine, spec, Clock(time.time_ns()))
        self._done = 0

    async def run(self, steps: Iterator[StepToScore], keep: Keep) -> None:
        """Score `steps` and call `keep` with each of them, in order, and the reward of each of its texts. Raises `RunError`."""
        with unwrapped():
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._caller.watch)
                while window := list(islice(steps, WINDOW)):
                    found: list[dict[str, Reward]] = [{} for _ in window]
                    async with anyio.create_task_group() as tasks:
                        for step, rewards in zip(window, found, strict=True):
                            tasks.start_soon(self._score_step, step, rewards)
                    for step, rewards in zip(window, found, strict=True):
                        keep(step, rewards)
                watchers.cancel_scope.cancel()

    async def _score_step(self, step: StepToScore, rewards: dict[str, Reward]) -> None:
        """Put the reward of each text into `rewards`; a `ChainError` becomes a reward without a value."""
        for number, (text, parts) in enumerate(step.steps.items()):
            try:
                asked = [await self._ask(step, parts[: i + 1], f"{number}.{i}") for i in range(len(parts))]
                rewards[text] = min(asked) if asked else Unscored("the text says nothing")
            except ChainError as error:
                rewards[text] = error
        self._done += 1
        self._watch(self._done)

    async def _ask(self, step: StepToScore, parts: Sequence[str], name: str) -> float:
        """P(good) / (P(good) + P(bad)) after the last of `parts`."""
        row = step.rows[0]
        request = Request(
            request_id=f"{row.chain_id}/{row.step_index}/reward.{name}",
            prompt_ids=self._builder.ids(step.problem, [*step.before, *parts]),
            max_tokens=1,
            option_ids=self._builder.option_ids,
            affinity=row.chain_id,
        )
        async with self._slots:
            completion = await self._caller.ask(request)
        (good, _), mass = probabilities(completion.option_logprobs)
        if not mass:
            raise Unscored("the model gives neither answer any probability")
        return good
