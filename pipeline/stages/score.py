"""`score`: lets the engine rate the only candidate, in its place in the thought, from 0 to 9 with one token."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.spec import CallSpec, StageSpec, pending_drafts
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.reasoning.prompts import OptionPrompt
from pipeline.stages.base import EngineStage, StageKind
from pipeline.stages.choose import probabilities

SCALES = {"greedy": Scale("score", 0.0, 9.0, integers=True), "expected": Scale("expected score", 0.0, 9.0)}


class ScoreSpec(CallSpec, frozen=True, kw_only=True, tag="score"):
    """Rate the candidate from 0 to 9 with one token, and accept it if the rating reaches `threshold` (SpecReason 4.1)."""

    threshold: Annotated[float, Meta(ge=0.0, le=9.0)] = 7.0
    """Minimum rating that is accepted."""
    method: Literal["greedy", "expected"] = "greedy"
    """`greedy`: the most likely digit; `expected`: the mean of the digits, weighted by their probabilities."""

    judges: ClassVar[bool] = True

    @property
    def needs(self) -> Mapping[str, object]:
        return {"options": True}

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        many = pending_drafts(before)
        if many > 1:
            yield "", f"`score` rates one candidate but gets {many}; set `candidates: 1` or use `choose`"


class ScoreStage(EngineStage):
    """Compares a step's rating, the likeliest digit or the expected one, with a threshold (SpecReason 4.1: utility).

    Where there is no candidate nothing is asked and no verdict given.
    """

    spec: ScoreSpec

    def check(self, candidates: int) -> str | None:
        asked = self.builder.prompts.score
        return self.builder.flaw(asked, asked.labels)

    def requests(self, chain: Chain) -> list[Request]:
        if not chain.candidates:
            return []
        prompt = self._asked(chain, chain.translate(chain.candidates[chain.pending_from], self.role))
        return [self.request(chain, prompt.ids, 1, option_ids=prompt.option_ids, judged=prompt.judged)]

    def room_for(self, chain: Chain, candidates: int) -> int:
        return (chain.left(self.role, len(self._asked(chain, ()).ids)) - 1) // candidates

    def _asked(self, chain: Chain, candidate: Sequence[int]) -> OptionPrompt:
        told = chain.problem.told(self.builder.prompts)
        return self.builder.score(chain.contexts[self.role], candidate, problem=told, begin=chain.begins[self.role])

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return self.unjudged(chain)
        probs, mass = probabilities(completions[0].option_logprobs)
        best = max(range(len(probs)), key=probs.__getitem__)
        value = sum(i * p for i, p in enumerate(probs)) if self.spec.method == "expected" else float(best)
        accepted = value >= self.spec.threshold
        verdict = Verdict(
            kind="score",
            chosen=chain.pending_from if accepted else None,
            label=self.builder.prompts.score.labels[best],
            value=value,
            scale=SCALES[self.spec.method],
            options=self.builder.prompts.score.labels,
            probs=probs,
            mass=mass,
            threshold=self.spec.threshold,
        )
        return Outcome(verdict=verdict)


KIND = StageKind(spec=ScoreSpec, build=ScoreStage)
