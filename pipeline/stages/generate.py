"""`generate`: one engine writes without a verdict: guidance, a fallback step, a whole thought, or a response with its answer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pipeline.engine import Candidate, Completion, Request
from pipeline.graph.spec import Purpose, SamplingSpec, StageSpec, Tokens
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.stages.base import EngineStage, StageKind


class GenerateSpec(SamplingSpec, frozen=True, kw_only=True, tag="generate"):
    """One engine writes: guidance (SpecCoT eq. 2), a fallback step (eq. 5), a whole thought or a whole response."""

    unit: Literal["tokens", "step", "thought", "response"]
    """How far it writes. `tokens`: `max_tokens`, across blank lines, unless the thought ends first; `step`: up to a blank line; `thought`:
    up to `</think>`; `response`: to the end of the sequence."""
    max_tokens: Annotated[int, Meta(ge=0, le=1_000_000)]
    """Maximum number of tokens. 0, only with `unit: tokens`: the stage is skipped (SpecCoT 4.3: no guidance)."""
    answer_tokens: Tokens | None = None
    """With `unit: response`: maximum number of tokens of the answer; the rest is cut off. Null: no limit."""
    first_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """In a `repeat`: this stage writes the first n steps without drafts (SpecReason 4.1)."""

    writes: ClassVar[bool] = True

    @property
    def purpose(self) -> Purpose:
        return "guide" if self.unit == "tokens" else "write"

    @property
    def needs(self) -> Mapping[str, object]:
        if not self.max_tokens:
            return {}
        return {**super().needs, **({"continues": True} if self.unit in ("step", "tokens") else {})}

    @property
    def finishes(self) -> bool:
        return self.unit == "response"

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        if not self.max_tokens and (self.unit != "tokens" or inside_repeat):
            yield "max_tokens", "expected at least 1, got 0; only `unit: tokens` outside a `repeat` can be switched off with 0"
        if self.first_steps and not inside_repeat:
            yield "first_steps", "only a stage inside a `repeat` can write the first steps"


class GenerateStage(EngineStage):
    """Lets its engine continue the chain's context (SpecCoT eq. 2 and 5); where `max_tokens` is 0 nothing is asked."""

    spec: GenerateSpec

    def requests(self, chain: Chain) -> list[Request]:
        spec = self.spec
        if not spec.max_tokens or chain.is_spent:
            return []
        stop_ids = () if spec.unit == "response" else self.close_ids
        most = chain.room(spec.max_tokens, self.role)
        return [self.request(chain, chain.contexts[self.role], most, stop=self.stop, stop_ids=stop_ids, **self.sampled(chain))]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not completions:
            return Outcome()
        [candidate] = completions[0].candidates
        if self.spec.unit == "response":  # one that was cut at its last token leaves what it wrote, and the chain continues
            candidate = self.whole(candidate, self.begun(chain))
            thought, answer = self._split(candidate)
            return Outcome(step=thought, decision="written", answer=answer, finishes=candidate.finish_reason == "stop")
        [step] = self.spans([candidate], chain)
        return Outcome(step=step, decision=self._decision(chain))

    def _decision(self, chain: Chain) -> str:
        if self.spec.unit == "tokens" and not chain.thought:
            return "guidance"
        if chain.candidates and (chain.verdicts or not chain.readings):
            return "fallback"
        if chain.candidates and str(self.spec.when).endswith(".passed"):
            return "unverified"
        return "first_steps" if self.spec.first_steps and not chain.candidates else "written"

    def _within(self, answer: Span) -> Span:
        """What follows a thought, without what it has beyond the tokens of an answer."""
        most = self.spec.answer_tokens
        if most is None or len(answer.ids) <= most:
            return answer
        ids = answer.ids[:most]
        text = self.builder.tokenizer.decode(ids)
        cut = self.whole(Candidate(ids=ids, text=text, cumulative_logprob=None, finish_reason="length"))
        return Span(self.role, cut.ids, cut.text, cut=True)

    def _split(self, candidate: Candidate) -> tuple[Span, Span | None]:
        """The thought and the answer of a response, as far as it came. Without `</think>` there is no answer, unless the model has no
        reasoning tags at all: then a finished response is both."""
        ids, text = candidate.ids, candidate.text
        finished = candidate.finish_reason == "stop"
        if not self.close_ids or self.close_ids[0] not in ids:
            whole = Span(self.role, ids, text, finished, candidate.finish_reason == "length")
            return whole, Span(self.role, ids, text) if finished and not self.close_ids else None
        cut = ids.index(self.close_ids[0]) + 1
        mark = self.builder.prompts.thought.close
        closed = self.builder.tokenizer.decode(ids[:cut]).count(mark)  # the thought may spell it out before
        parts = text.split(mark)
        thought, answer = mark.join([*parts[:closed], ""]), mark.join(parts[closed:])
        rest = Span(self.role, ids[cut:], answer, cut=candidate.finish_reason != "stop")
        return Span(self.role, ids[:cut], thought, True), self._within(rest)


KIND = StageKind(spec=GenerateSpec, build=GenerateStage)
