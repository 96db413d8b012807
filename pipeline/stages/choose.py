"""`choose`: all candidates in one prompt, one token names the best or none of them."""

import math
from collections.abc import Sequence

from pipeline.engine import Completion, Request
from pipeline.graph.spec import ChooseSpec
from pipeline.reasoning.chain import Chain, Outcome, Verdict
from pipeline.reasoning.prompts import LABELS
from pipeline.stages.base import EngineStage


class ChooseStage(EngineStage):
    """The option of highest probability among the candidates and `0`, none (SpecCoT 3.4, eq. 4; SCoT 3.4, eq. 3).

    Where the stage may not reject, 0 is no option and the question does not mention it (SCoT 4.3). Identical candidates are
    shown once. Where an earlier stage left no candidates nothing is asked and no verdict given.
    """

    spec: ChooseSpec

    def requests(self, chain: Chain) -> list[Request]:
        if not chain.candidates:
            return []
        shown = [chain.translate(chain.candidates[i], self.role) for i in chain.distinct_candidates()]
        prompt = self.builder.choose(chain.contexts[self.role], shown, unit=self.spec.unit, reject=self.spec.reject)
        return [self.request(chain, prompt.ids, 1, option_ids=prompt.option_ids)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return Outcome()
        distinct = chain.distinct_candidates()
        probs, mass = probabilities(completions[0].option_logprobs)
        best = max(range(len(probs)), key=probs.__getitem__) + (not self.spec.reject)
        chosen = distinct[best - 1] if best else None
        verdict = Verdict(
            kind="choose", chosen=chosen, label=LABELS[best], value=max(probs), probs=probs, mass=mass, distinct=len(distinct)
        )
        return Outcome(verdict=verdict)


def probabilities(logprobs: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Renormalised probabilities of the options, and their mass before that; all 0 where no option has any."""
    top = max(logprobs)
    if top == -math.inf:
        return (0.0,) * len(logprobs), 0.0
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights)
    return tuple(weight / total for weight in weights), min(1.0, total * math.exp(top))
