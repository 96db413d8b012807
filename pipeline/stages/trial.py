"""`trial`: asks for the answer before the thought is over, in a few tokens that are not kept, and how sure the engine is of it."""

import math
from collections.abc import Sequence

from pipeline.engine import Completion, Request
from pipeline.grading.stated import boxed
from pipeline.graph.spec import TrialSpec
from pipeline.reasoning.chain import Chain, Outcome, Trial
from pipeline.stages.base import EngineStage, StageKind

MOST = 20
"""Most tokens of a trial answer; what is longer was not about to be answered. DEER's published code has as many."""
STOPS = ("}.", "}$", "\n")
"""What ends a trial answer: the end of its box in a sentence or a formula, and that of its line."""


class TrialStage(EngineStage):
    """Lets the engine answer at once, greedily, behind a closed thought (DEER, arXiv 2504.15895, section 3.2; Dynasor, arXiv 2412.20993,
    section 4). The answer stage follows where the thought ends with it."""

    spec: TrialSpec

    def check(self, candidates: int) -> str | None:
        if self.builder.think_close_id is None:
            mark = self.builder.prompts.thought.close
            what = f"`until` asks for an answer behind a closed thought, but its engine's model closes none with {mark!r}"
            return f"{what}; set `answer_confident` and `answer_stable` to null"
        return None

    def requests(self, chain: Chain) -> list[Request]:
        prompt = self.builder.trial(chain.contexts[self.context])
        return [self.request(chain, prompt, MOST, stop=STOPS, logprobs=self.spec.confidence)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        [candidate] = completions[0].candidates
        answer = answer_in(self.builder.prompts.trial + candidate.text, candidate.finish_reason)
        sure = candidate.confidence
        return Outcome(trial=Trial(answer, 0.0 if answer is None or sure is None else math.exp(sure.mean)))


def answer_in(text: str, finish_reason: str) -> str | None:
    """The answer in what was written, its given beginning included: what is in its box, else all of it if it came to its end."""
    whole = text.strip() if finish_reason == "stop" else None
    return boxed(text) or (None if "\\boxed" in text else whole) or None


KIND = StageKind(spec=TrialSpec, build=TrialStage)
