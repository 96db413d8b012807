"""What the rewards of a run come to: scored steps enter, their rows and the means of drafted and committed steps leave."""

from collections import Counter

from msgspec import Struct

from pipeline.rewards.steps import StepToScore
from pipeline.trace.events import RewardRow


class Reward(Struct, frozen=True):
    """Of one text."""

    value: float | None
    error: str | None = None
    """Why there is none."""
    kind: str = ""
    """The error's name."""


class Quality(Struct, frozen=True):
    """Mean rewards over steps that were drafted."""

    steps: int
    drafted: float | None
    """Mean over the steps of the mean of their candidates, each as often as it was drafted."""
    committed: float | None
    """Mean over the steps of what was committed."""


class ScoringResult(Struct, frozen=True, kw_only=True):
    """What scoring a run folder came to."""

    run: str
    model: str
    steps: int
    """All that were committed, guidance included."""
    candidates: int
    requests: int
    wall_s: float
    """Without the start of the engine."""
    quality: dict[str, Quality]
    """Of `all` drafted steps, and by decision: of `accepted` ones what was committed is what the verifier selected, of
    `fallback` ones what replaced the candidates."""
    errors: dict[str, int]
    """Texts without a reward, by the kind of error."""
    first_error: str | None


class Mean:
    """A mean under way; None does not count."""

    def __init__(self, *values: float | None) -> None:
        self._sum, self._count = 0.0, 0
        for value in values:
            self.add(value)

    def add(self, value: float | None) -> None:
        if value is not None:
            self._sum, self._count = self._sum + value, self._count + 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


class Means:
    """A `Quality` under way."""

    def __init__(self) -> None:
        self._steps, self._drafted, self._committed = 0, Mean(), Mean()

    def add(self, drafted: float | None, committed: float | None) -> None:
        """One more step."""
        self._steps += 1
        self._drafted.add(drafted)
        self._committed.add(committed)

    @property
    def quality(self) -> Quality:
        return Quality(self._steps, self._drafted.value, self._committed.value)


class RewardTally:
    """Turns rewards into rows and keeps count."""

    def __init__(self, run: str, run_id: str, model: str) -> None:
        self._run, self._run_id, self._model = run, run_id, model
        self.steps = self.rewards = 0
        """Steps, and texts of theirs that have a reward."""
        self.first_error: str | None = None
        self._candidates = 0
        self._errors: Counter[str] = Counter()
        self._means: dict[str, Means] = {}

    def rows(self, step: StepToScore, rewards: dict[str, Reward]) -> list[RewardRow]:
        """The rows of one step: each candidate, and the step itself where it is none of them."""
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
        """The sum of it all."""
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
            self._means.setdefault(decision, Means()).add(Mean(*candidates).value, committed)
