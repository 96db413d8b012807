"""`score`: lets the engine rate the only candidate, in its place in the thought, from 0 to 9 with one token. `likelihood`: judges each
candidate by its log probability under the engine; no question is asked and nothing is generated."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.prompts import LABELS
from pipeline.graph.spec import Name, StageSpec, pending_drafts
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder
from pipeline.stages.base import ALONE, EngineStage, StageKind, StagePlace
from pipeline.stages.choose import probabilities

SCALES = {"greedy": Scale("score", 0.0, 9.0, integers=True), "expected": Scale("expected score", 0.0, 9.0)}
LIKELIHOOD_SCALE = Scale("log probability of the best candidate", high=0.0, unit="nats per token")


class ScoreSpec(StageSpec, frozen=True, kw_only=True, tag="score"):
    """Rate the candidate from 0 to 9 with one token, and accept it if the rating reaches `threshold` (SpecReason 4.1)."""

    engine: Name
    """The role that judges."""
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

    def __init__(self, name: str, spec: ScoreSpec, builders: Mapping[str, PromptBuilder], place: StagePlace = ALONE) -> None:
        super().__init__(name, spec, builders, place)
        self.alone = self.builder.prompts.score.form == "alone"

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


class LikelihoodSpec(StageSpec, frozen=True, kw_only=True, tag="likelihood"):
    """Accept the most likely candidate by its log probability under the engine, if that reaches `threshold` (not in the papers)."""

    engine: Name
    """The role that judges."""
    threshold: Annotated[float, Meta(le=0.0)] = -0.5
    """Minimum value of the `statistic` that is accepted, in nats per token."""
    statistic: Literal["mean", "minimum"] = "mean"
    """`mean` over the candidate's tokens, or `minimum`: its least likely token decides, so that one wrong number is enough."""

    judges: ClassVar[bool] = True

    @property
    def needs(self) -> Mapping[str, object]:
        return {"scoring": True}


class LikelihoodStage(EngineStage):
    """Compares the likeliest candidate with a threshold in nats per token (not in the papers; SpecReason 4.1 leaves it to future work).

    Every distinct candidate is one request. In the verdict the candidates are the options: `value` is the best one's
    statistic, `mass` the probability that the engine would have written one of them itself. A candidate without tokens
    cannot be scored and is not accepted. Where there are no candidates nothing is asked and no verdict given.
    """

    spec: LikelihoodSpec

    def requests(self, chain: Chain) -> list[Request]:
        context = chain.contexts[self.role]
        return [self.request(chain, context, 1, part=f"/{i}", scored_ids=ids) for i, ids in self._distinct(chain).items() if ids]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not chain.candidates:
            return self.unjudged(chain)
        distinct, answers = self._distinct(chain), iter(completions)
        logprobs = [next(answers).scored_logprobs if ids else () for ids in distinct.values()]
        statistic = fmean if self.spec.statistic == "mean" else min
        values = [statistic(each) if each else -math.inf for each in logprobs]
        best = max(range(len(values)), key=values.__getitem__)
        accepted = bool(logprobs[best]) and values[best] >= self.spec.threshold
        probs, mass = probabilities([math.fsum(each) if each else -math.inf for each in logprobs])
        verdict = Verdict(
            kind="likelihood",
            chosen=list(distinct)[best] if accepted else None,
            label=LABELS[best + 1] if accepted else LABELS[0],
            value=values[best],
            scale=LIKELIHOOD_SCALE,
            options=tuple(LABELS[1 : len(distinct) + 1]),
            of_candidates=True,
            probs=probs,
            mass=mass,
            threshold=self.spec.threshold,
            distinct=len(distinct),
        )
        return Outcome(verdict=verdict)

    def _distinct(self, chain: Chain) -> dict[int, tuple[int, ...]]:
        """The token ids, in the engine's vocabulary, of each distinct candidate, by its index."""
        return {i: tuple(chain.translate(chain.candidates[i], self.role)) for i in chain.distinct_candidates()}


KIND = StageKind(spec=ScoreSpec, build=ScoreStage)
LIKELIHOOD = StageKind(spec=LikelihoodSpec, build=LikelihoodStage)
