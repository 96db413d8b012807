"""A stage kind as another package would write it: a verifier that asks its own question, whether the next step is right."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.spec import CallSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.stages.base import EngineStage, StageKind
from pipeline.stages.choose import probabilities

QUESTION, PREFILL, OPTIONS = "Is the last step right? Answer Y or N.", "Answer: ", ("Y", "N")


class CriticSpec(CallSpec, frozen=True, kw_only=True, tag="critic"):
    """What a graph file may say of it."""

    at_least: Annotated[float, Meta(ge=0, le=100)] = 50.0
    """Percent."""

    judges: ClassVar[bool] = True


class CriticStage(EngineStage):
    """Asks about each candidate in its place; the likeliest one is accepted from `at_least` on."""

    spec: CriticSpec

    def check(self, candidates: int) -> str | None:
        return None if self.builder.can_name(QUESTION, PREFILL, OPTIONS) else "its engine's tokenizer has no single tokens for Y and N"

    def requests(self, chain: Chain) -> list[Request]:
        return [self._request(chain, place) for place in range(len(chain.candidates))]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return Outcome()
        found = [probabilities(completion.option_logprobs) for completion in completions]
        percent = [100 * options[0] for options, _ in found]
        best = max(range(len(percent)), key=percent.__getitem__)
        accepted = percent[best] >= self.spec.at_least
        verdict = Verdict(
            kind="critic",
            chosen=best if accepted else None,
            label=OPTIONS[not accepted],
            value=percent[best],
            scale=Scale("probability of Y", 0.0, 100.0),
            options=OPTIONS,
            probs=found[best][0],
            mass=found[best][1],
            threshold=self.spec.at_least,
            distinct=len(chain.distinct_candidates()),
        )
        return Outcome(verdict=verdict)

    def _request(self, chain: Chain, place: int) -> Request:
        context = [*chain.contexts[self.role], *chain.translate(chain.candidates[place], self.role)]
        prompt = self.builder.ask(context, QUESTION, PREFILL, OPTIONS)
        return self.request(chain, prompt.ids, 1, part=f"/{place}", option_ids=prompt.option_ids)


KIND = StageKind(spec=CriticSpec, build=CriticStage)
