"""`answer`: closes the thought, where that is still open, and lets the engine write the answer that follows it. `trial`: asks for the
answer before the thought is over, in a few tokens that are not kept, and how sure the engine is of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pipeline.engine import Completion, Request
from pipeline.grading.stated import boxed
from pipeline.graph.spec import SamplingSpec, StageSpec, Tokens, TrialSpec
from pipeline.reasoning.chain import Chain, Outcome, Span, Trial
from pipeline.stages.base import EngineStage, StageKind

MOST = 20
"""Most tokens of a trial answer; what is longer was not about to be answered. DEER's published code has as many."""
STOPS = ("}.", "}$", "\n")
"""A trial answer ends with its box, in a sentence or a formula, or with its line."""


class AnswerSpec(SamplingSpec, frozen=True, kw_only=True, tag="answer"):
    """Close the thought and write the answer, which ends the chain."""

    max_tokens: Tokens = 1024
    """Maximum number of tokens of the answer."""
    budget: Literal["thought", "response"] = "thought"
    """What the token budget covers. `thought`: an unfinished thought is closed, and the answer has its own `max_tokens`. `response`:
    thought and answer together; an unfinished thought has no answer, unless it ended early because its answer stands."""
    token_budget: Tokens | None = None
    """With `budget: response`: maximum number of tokens of thought and answer together."""

    answers: ClassVar[bool] = True

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        if self.budget == "response" and self.token_budget is None:
            yield "token_budget", "is missing: `budget: response` needs the maximum number of tokens of thought and answer together"


class AnswerStage(EngineStage):
    """Asks for the final answer after the committed thought (SpecCoT 3.1; SCoT 3.4), or for the rest of one that is cut; nothing where
    the budget leaves no token for it. A model without reasoning tags boxes its answer in the thought: where that ended by itself or with
    the box, nothing is asked, and the answer is the thought's text from the paragraph of its last box on, as in SpecReason's code."""

    spec: AnswerSpec

    def requests(self, chain: Chain) -> list[Request]:
        if self._stated(chain):
            return []
        begun = () if chain.answer is None else chain.translate(chain.answer, self.role)
        max_tokens = chain.left_of_response(self._room(chain)) - len(begun)
        if max_tokens < 1:
            return []
        prompt: Sequence[int] = chain.contexts[self.role]
        if not self.close_ids or prompt[-1] != self.close_ids[0]:
            prompt = [*prompt, *self.builder.close_thought_ids]
        # What is blank alone may be what an answer begins with; whoever shows the answer ends it there.
        stop = tuple(text for text in chain.problem.settings.stop if text.strip())
        return [self.request(chain, [*prompt, *begun] if begun else prompt, max_tokens, stop=stop, **self.sampled(chain))]

    def _stated(self, chain: Chain) -> str | None:
        """The answer that the thought states, of a model that closes none; None where it is to be asked for."""
        ended = chain.ending.closed or chain.ending.reason == "answer_boxed"
        if self.close_ids or chain.answer is not None or not ended or boxed(text := chain.thought_text) is None:
            return None
        return text[text.rfind("\n\n", 0, text.rfind("box")) + 1 :].lstrip("\n")

    def _room(self, chain: Chain) -> int:
        """Most tokens of the answer."""
        spec = self.spec
        if spec.budget == "thought":
            return spec.max_tokens
        return (spec.token_budget or 0) - chain.thought_tokens if chain.ending.closed or chain.ending.answer_stands else 0

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return Outcome() if (stated := self._stated(chain)) is None else Outcome(answer=Span(self.role, (), stated))
        candidate = self.whole(completions[0].candidates[0])
        cut = candidate.finish_reason == "length"
        if chain.answer is None:
            return Outcome(answer=Span(self.role, candidate.ids, candidate.text, cut=cut))
        begun = tuple(chain.translate(chain.answer, self.role))
        return Outcome(answer=Span(self.role, begun + candidate.ids, chain.answer.text + candidate.text, cut=cut))


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
        prompt = self.builder.trial(chain.contexts[self.role])
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


KIND = StageKind(spec=AnswerSpec, build=AnswerStage)
TRIAL = StageKind(spec=TrialSpec, build=TrialStage)
