"""Counting rewards: scored steps enter, their rows and the mean rewards of drafted and committed steps leave."""

from collections import Counter

from msgspec import Struct

from pipeline.rewards.steps import StepToScore
from pipeline.store.events import RewardRow


class Reward(Struct, frozen=True):
    """The reward of one text."""

    value: float | None
    """0 to 1; None where the text could not be scored."""
    error: str | None = None
    """Why there is no value."""
    kind: str = ""
    """The type of that error; empty where there is a value."""


class MeanRewards(Struct, frozen=True):
    """RunningMean rewards over steps that were drafted."""

    steps: int
    drafted: float | None
    """RunningMean over the steps of the mean of their candidates, each as often as it was drafted."""
    committed: float | None
    """RunningMean over the steps of what was committed."""


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
    """Mean rewards of `all` drafted steps, and by decision. The committed text of an `accepted` step is the candidate that the
    verifier selected, that of a `fallback` step replaced the candidates."""
    errors: dict[str, int]
    """How many texts have no reward, by the type of error."""
    first_error: str | None
    """The message of the first of these errors."""


class RunningMean:
    """The mean of the values added so far; None is not counted."""

    def __init__(self, *values: float | None) -> None:
        self._sum, self._count = 0.0, 0
        for value in values:
            self.add(value)

    def add(self, value: float | None) -> None:
        """Count one more value."""
        if value is not None:
            self._sum, self._count = self._sum + value, self._count + 1

    @property
    def value(self) -> float | None:
        """The mean so far; None where nothing was counted."""
        return self._sum / self._count if self._count else None


class RunningMeans:
    """The mean rewards of the steps added so far."""

    def __init__(self) -> None:
        self._steps, self._drafted, self._committed = 0, RunningMean(), RunningMean()

    def add(self, drafted: float | None, committed: float | None) -> None:
        """Count one more step: the mean of its candidates, and its committed text."""
        self._steps += 1
        self._drafted.add(drafted)
        self._committed.add(committed)

    @property
    def quality(self) -> MeanRewards:
        """The means so far."""
        return MeanRewards(self._steps, self._drafted.value, self._committed.value)


class RewardTally:
    """Turns rewards into rows of the table `rewards`, and counts them."""

    def __init__(self, run: str, run_id: str, model: str) -> None:
        self._run, self._run_id, self._model = run, run_id, model
        self.steps = self.rewards = 0
        """Steps so far, and their texts that have a reward."""
        self.first_error: str | None = None
        """The message of the first text without a reward."""
        self._candidates = 0
        self._errors: Counter[str] = Counter()
        self._means: dict[str, RunningMeans] = {}

    def rows(self, step: StepToScore, rewards: dict[str, Reward]) -> list[RewardRow]:
        """Count one step; its rows, one for each candidate and one for the committed text where it is none of them."""
        self._count(step, rewards)
        return [
            RewardRow(
                run_id=self._run_id,
                problem_id=step.problem_id,
                chain_id=step.chain_id,
                sample_index=step.sample_index,
                step_index=step.step_index,
                candidate_index=each.candidate_index,
                selected=each.selected,
                decision=step.decision,
                source_engine=each.source_engine,
                reward=rewards[each.text].value,
                reward_error=rewards[each.text].error,
                model=self._model,
            )
            for each in step.texts
        ]

    def scored(self, requests: int, wall_s: float) -> ScoringResult:
        """The outcome, after `requests` requests in `wall_s` seconds."""
        return ScoringResult(
            run=self._run,
            model=self._model,
            steps=self.steps,
            candidates=self._candidates,
            requests=requests,
            wall_s=wall_s,
            quality={decision: self._means[decision].quality for decision in sorted(self._means)},
            errors=dict(self._errors.most_common()),
            first_error=self.first_error,
        )

    def _count(self, step: StepToScore, rewards: dict[str, Reward]) -> None:
        self.steps += 1
        for reward in rewards.values():
            self.rewards += reward.value is not None
            self._errors.update([reward.kind] if reward.value is None else [])
            self.first_error = self.first_error or reward.error
        candidates = [rewards[each.text].value for each in step.texts if each.candidate_index is not None]
        committed = next(rewards[each.text].value for each in step.texts if each.selected)
        self._candidates += len(candidates)
        for decision in ("all", step.decision) if candidates else ():
            self._means.setdefault(decision, RunningMeans()).add(RunningMean(*candidates).value, committed)
