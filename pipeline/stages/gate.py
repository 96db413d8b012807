"""`gate`: looks at how sure the draft was, and decides without a call whether anybody reads it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pipeline.engine import Completion
from pipeline.graph.spec import StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Reading, Span
from pipeline.stages.base import CallFreeStage, StageKind

Statistic = Literal["mean", "min", "first_entropy", "margin", "repeats"]
RANGES: Mapping[Statistic, tuple[float, float, str]] = {
    "mean": (-math.inf, 0.0, "a log probability, at most 0"),
    "min": (-math.inf, 0.0, "a log probability, at most 0"),
    "first_entropy": (0.0, math.inf, "an entropy in nats, at least 0"),
    "margin": (0.0, 1.0, "a difference of probabilities, 0 to 1"),
    "repeats": (1.0, math.inf, "a count of steps, at least 1"),
}
"""The bounds of the threshold of a statistic, and its meaning."""


class GateSpec(StageSpec, frozen=True, kw_only=True, tag="gate"):
    """Let a draft pass unverified, or flag it, by its own log probabilities, without a call (ConfSpec, GlimpRouter, TrigReason)."""

    statistic: Statistic = "mean"
    """`mean`, `min`: log probability of its tokens, or of the least likely one, in nats. `first_entropy`: entropy of its first token, in
    nats, from the 20 likeliest tokens. `margin`: probability of the likeliest token less that of the next, mean over the tokens. `repeats`:
    how many steps of the thought have the same text."""
    threshold: float
    """Value of the statistic beyond which the draft is flagged; equal values pass, except of `repeats`."""
    flags: Literal["unsure", "overconfident"] = "unsure"
    """`unsure`: a lower log probability or margin, or a higher entropy, is flagged; `overconfident`: the opposite."""
    accept: bool = True
    """What passes becomes a step. `false`: it does not; a stage with `when: STAGE.passed` writes the step, from the seed of the draft."""

    gates: ClassVar[bool] = True

    @property
    def reads_logprobs(self) -> bool:
        return self.statistic != "repeats"

    @property
    def commits_passed(self) -> bool:
        return self.accept

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        low, high, what = RANGES[self.statistic]
        if not low <= self.threshold <= high or not math.isfinite(self.threshold):
            yield "threshold", f"is {self.threshold:g}, but `{self.statistic}` is {what}"
        if self.statistic == "repeats" and self.flags != "unsure":
            yield "flags", "applies to log probabilities, and `repeats` is a count of steps; drop it"


class Gate(CallFreeStage):
    """Looks at the pending candidate that looks surest, and flags it or lets it pass; without candidates it finds nothing.

    Candidates that were withheld, and one without log probabilities, are flagged.
    """

    def __init__(self, name: str, spec: GateSpec, *others: object) -> None:
        self.name, self.spec = name, spec

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        values = {place: self._value(chain, chain.candidates[place]) for place in chain.distinct_candidates()}
        known = {place: value for place, value in values.items() if value is not None}
        if not known:
            return Outcome(reading=self._reading(None, None)) if chain.withheld or chain.candidates else Outcome()
        surest = max(known, key=lambda place: known[place] * self._sign)
        reading = self._reading(known[surest], surest)
        if reading.flagged or not self.spec.accept:
            return Outcome(reading=reading)
        return Outcome(reading=reading, step=chain.candidates[surest], decision="unverified")

    @property
    def _sign(self) -> int:
        """1 where a greater value is a surer one, else -1."""
        return -1 if self.spec.statistic in ("first_entropy", "repeats") else 1

    def _value(self, chain: Chain, candidate: Span) -> float | None:
        if self.spec.statistic == "repeats":
            said = candidate.text.strip()
            return float(sum(span.text.strip() == said for span in chain.thought))
        return None if candidate.confidence is None else float(getattr(candidate.confidence, self.spec.statistic))

    def _reading(self, value: float | None, candidate: int | None) -> Reading:
        spec = self.spec
        if value is None:
            flagged = True
        elif spec.statistic == "repeats":
            flagged = value >= spec.threshold
        else:
            above = (value - spec.threshold) * self._sign
            flagged = above > 0 if spec.flags == "overconfident" else above < 0
        return Reading(statistic=spec.statistic, value=value, threshold=spec.threshold, flagged=flagged, candidate=candidate)


KIND = StageKind(spec=GateSpec, build=Gate)
