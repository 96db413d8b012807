"""`likelihood`: judges each candidate by its log probability under the engine. No question is asked and nothing is generated."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.prompts import LABELS
from pipeline.graph.spec import Name, StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.stages.base import EngineStage, StageKind
from pipeline.stages.choose import probabilities

SCALE = Scale("log probability of the best candidate", high=0.0, unit="nats per token")


class LikelihoodSpec(StageSpec, frozen=True, kw_only=True, tag="likelihood"):
    """Accept the most likely candidate by its log probability under the engine, if that reaches `threshold` (not in the papers)."""

    engine: Name
    """The role that judges."""
    threshold: Annotated[float, Meta(le=0.0)] = -0.5
    """Minimum value of the `statistic` that is accepted, in nats per token."""
    statistic: Literal["mean", "minimum"] = "mean"
    """`mean` over the candidate's tokens, or `minimum`: that of its least likely token, so that one wrong number is enough."""

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
        context = chain.contexts[self.context]
        return [self.request(chain, context, 1, part=f"/{i}", scored_ids=ids) for i, ids in self._distinct(chain).items() if ids]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not chain.candidates:
            return self.unjudged(chain)
        distinct, answers = self._distinct(chain), iter(completions)
        logprobs = [next(answers).scored_logprobs if ids else () for ids in distinct.values()]
        values = [self._statistic(each) for each in logprobs]
        best = max(range(len(values)), key=values.__getitem__)
        accepted = bool(logprobs[best]) and values[best] >= self.spec.threshold
        probs, mass = probabilities([math.fsum(each) if each else -math.inf for each in logprobs])
        verdict = Verdict(
            kind="likelihood",
            chosen=list(distinct)[best] if accepted else None,
            label=LABELS[best + 1] if accepted else LABELS[0],
            value=values[best],
            scale=SCALE,
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

    def _statistic(self, logprobs: Sequence[float]) -> float:
        """The statistic that the spec names, in nats per token; -inf of a candidate without tokens."""
        if not logprobs:
            return -math.inf
        return fmean(logprobs) if self.spec.statistic == "mean" else min(logprobs)


KIND = StageKind(spec=LikelihoodSpec, build=LikelihoodStage)
