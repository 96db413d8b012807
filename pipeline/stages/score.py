"""`score`: the only candidate, in its place in the thought, rated 0 to 9 with one token."""

import string
from collections.abc import Sequence

from pipeline.engine import Completion, Request
from pipeline.graph.spec import ScoreSpec
from pipeline.reasoning.chain import Chain, Outcome, Verdict
from pipeline.stages.base import EngineStage
from pipeline.stages.choose import probabilities


class ScoreStage(EngineStage):
    """Utility of a step against a threshold (SpecReason 4.1): the likeliest digit, or the expected one.

    Where an earlier stage left no candidate nothing is asked and no verdict given.
    """

    spec: ScoreSpec

    def requests(self, chain: Chain) -> list[Request]:
        if not chain.candidates:
            return []
        candidate = chain.translate(chain.candidates[0], self.role)
        prompt = self.builder.score(chain.contexts[self.role], candidate)
        return [self.request(chain, prompt.ids, 1, option_ids=prompt.option_ids)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
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
            probs=probs,
            mass=mass,
            threshold=self.spec.threshold,
        )
        return Outcome(verdict=verdict)
