"""`score`: lets the engine rate the only candidate, in its place in the thought, from 0 to 9 with one token."""

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.spec import Name, StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.stages.base import EngineStage, StageKind
from pipeline.stages.choose import probabilities

SCALES = {"greedy": Scale("score", 0.0, 9.0, integers=True), "expected": Scale("expected score", 0.0, 9.0)}


class ScoreSpec(StageSpec, frozen=True, kw_only=True, tag="score"):
    """One token, 0 to 9, rates the only candidate; it is accepted if the rating reaches `threshold` (SpecReason 4.1)."""

    engine: Name
    threshold: Annotated[float, Meta(ge=0.0, le=9.0)] = 7.0
    method: Literal["greedy", "expected"] = "greedy"
    """`greedy`: the likeliest digit counts; `expected`: the mean of the digits, weighted with their probabilities."""

    judges: ClassVar[bool] = True

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        """See `StageSpec.flaws`."""
        many = sum(spec.drafted for spec in before.values())
        if many > 1:
            yield "", f"`score` rates one candidate and gets {many}; set `candidates: 1` or use `choose`"


class ScoreStage(EngineStage):
    """Compares a step's rating, the likeliest digit or the expected one, with a threshold (SpecReason 4.1: utility).

    Where there is no candidate nothing is asked and no verdict given.
    """

    spec: ScoreSpec

    def check(self, candidates: int) -> str | None:
        """See `Stage.check`."""
        return None if self.builder.can_score else "its engine's tokenizer has no single tokens for the digits 0 to 9"

    def requests(self, chain: Chain) -> list[Request]:
        """See `Stage.requests`."""
        if not chain.candidates:
            return []
        candidate = chain.translate(chain.candidates[0], self.role)
        prompt = self.builder.score(chain.contexts[self.role], candidate)
        return [self.request(chain, prompt.ids, 1, option_ids=prompt.option_ids)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """See `Stage.apply`."""
        if not completions:
            return Outcome()
        probs, mass = probabilities(completions[0].option_logprobs)
        best = max(range(len(probs)), key=probs.__getitem__)
        value = sum(i * p for i, p in enumerate(probs)) if self.spec.method == "expected" else float(best)
        accepted = value >= self.spec.threshold
        verdict = Verdict(
            kind="score",
            chosen=0 if accepted else None,
            label=string.digits[best],
            value=value,
            scale=SCALES[self.spec.method],
            options=tuple(string.digits),
            probs=probs,
            mass=mass,
            threshold=self.spec.threshold,
        )
        return Outcome(verdict=verdict)


KIND = StageKind(spec=ScoreSpec, build=ScoreStage)
