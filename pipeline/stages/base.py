"""The stage contract: two pure functions around engine calls.

`requests` says what to ask about a chain in its current state, `apply` what the answers do to it. Neither waits, times,
retries or records; the runtime does that once for all stages.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Protocol, runtime_checkable

from msgspec import Struct, structs

from pipeline.engine import Candidate, Completion, Content, Request
from pipeline.errors import RequestRefused
from pipeline.graph.spec import SamplingSpec, StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Span, Verdict
from pipeline.reasoning.prompts import PromptBuilder

TOO_LONG = "too long"
"""Label of the verdict on candidates that do not fit into the engine's context together."""
REPLACEMENT = "\ufffd"
"""What tokenizers decode the bytes of a part of a character to."""
LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, and so the most tokens of one."""


class Stage(Protocol):
    """A stage of a plan, ready to run."""

    name: str
    spec: Any
    """The `StageSpec` that it was built from."""
    role: str
    """The role of the engine that it calls."""
    in_thread: bool
    """Whether `apply` may take long, so that it is called in a thread."""

    def requests(self, chain: Chain) -> list[Request]:
        """The requests to send about `chain` in its current state; the stage asks nothing where there are none."""

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """The outcome for `chain` of the `completions`, which are in the order of the requests. Does not change the chain."""

    def check(self, candidates: int) -> str | None:
        """Why the engine's tokenizer does not suit this stage where up to `candidates` are drafted, in one clause; None where it does."""


@runtime_checkable
class ShowingStage(Stage, Protocol):
    """A judge that shows its engine the candidates in a prompt."""

    def room_for(self, chain: Chain, candidates: int) -> int:
        """Maximum number of tokens of each of that many candidates, so that the question about them fits; below 1: it does not fit."""


class StagePlace(Struct, frozen=True, kw_only=True):
    """The place of a stage in its plan: what the other stages and the engines mean for it."""

    judges: tuple[ShowingStage, ...] = ()
    """The judges that are shown what a draft stage drafts."""
    measured: bool = False
    """Whether a gate reads the log probabilities of its drafts."""
    seeded_as: str | None = None
    """The stage whose name is part of the seed of its requests, where that is another one."""
    unsupported: Mapping[str, str] = {}
    """Sampling parameters that an engine of any writing stage does not support, with its role. A graph that sets one is refused as a
    whole, a problem by the first stage that writes."""


ALONE = StagePlace()


class StageKind(Struct, frozen=True, kw_only=True):
    """A kind of stage: its spec and how it is built. An entry point of the group `pipeline.stages` names one of these."""

    spec: type[StageSpec]
    """The keys that a graph file may hold for it; its tag is the word under `kind`."""
    build: Any
    """Makes a stage ready to run: `build(name, spec, builders, place) -> Stage`, where `builders` has a `PromptBuilder` for each
    role, and `place` is its `StagePlace`."""

    @property
    def name(self) -> str:
        """The word under `kind`."""
        return str(self.spec.__struct_config__.tag)


class CallFreeStage:
    """The common part of stages that call no engine."""

    role: ClassVar[str] = ""
    in_thread = False

    def check(self, candidates: int) -> str | None:
        return None

    def requests(self, chain: Chain) -> list[Request]:
        return []


class EngineStage:
    """The common part of the built-in stages, each of which calls one engine."""

    def __init__(self, name: str, spec: Any, builders: Mapping[str, PromptBuilder], place: StagePlace = ALONE) -> None:
        self.name, self.spec, self.place = name, spec, place
        self.role: str = spec.engine
        self.builder = builders[self.role]
        self.in_thread = False
        self.close_ids = () if self.builder.think_close_id is None else (self.builder.think_close_id,)
        self.stop = self.builder.prompts.delimiters if getattr(spec, "unit", None) == "step" else ()
        self.sampling: Mapping[str, Any] = spec.sampling if isinstance(spec, SamplingSpec) else {}

    def check(self, candidates: int) -> str | None:
        """Most stages suit every tokenizer."""
        return None

    def sampled(self, chain: Chain) -> Mapping[str, Any]:
        """How the stage samples text for `chain`, as fields of a `Request`. Raises `RequestRefused` for what the problem asks of an engine
        that cannot do it."""
        if not chain.sampling:
            return self.sampling
        for name, value in chain.sampling.items():
            if (role := self.place.unsupported.get(name)) is not None and value != self.sampling.get(name):
                what = f"engine {role!r} does not support `{name}`, which this problem sets to {value}; leave it out"
                raise RequestRefused(what)
        return {**self.sampling, **chain.sampling}

    def request(
        self,
        chain: Chain,
        prompt_ids: Sequence[int],
        max_tokens: int,
        part: str = "",
        judged: Sequence[tuple[int, int]] | None = None,
        **fields: Any,
    ) -> Request:
        """A request with the stage's adapter, whose id names the chain, its step and this stage; `part` is added to tell several requests
        of one step apart.

        `judged` goes into its `content`; `fields` are further fields of the `Request`.
        """
        return Request(
            request_id=f"{chain.chain_id}/{len(chain.thought)}/{self.name}{part}",
            prompt_ids=array("I", prompt_ids),
            max_tokens=max_tokens,
            seed=chain.seed(self.place.seeded_as or self.name),
            adapter=self.spec.adapter,
            affinity=chain.chain_id,
            content=chain.content if judged is None else Content(chain.content.problem, tuple(judged)),
            **fields,
        )

    def unjudged(self, chain: Chain) -> Outcome:
        """The outcome of a judge without candidates: those that were withheld count as rejected."""
        if not (chain.withheld and self.spec.may_reject):
            return Outcome()
        return Outcome(verdict=Verdict(kind=self.spec.kind, chosen=None, label=TOO_LONG, value=0.0, mass=0.0))

    def spans(self, candidates: Sequence[Candidate], chain: Chain) -> list[Span]:
        """Each of the `candidates` as what follows in `chain`. An engine looks for a delimiter only in what it writes: where the step
        before was cut within one, what completes it ends this step."""
        begun, rests = self.begun(chain), chain.rests_of_delimiters if self.spec.unit == "step" else ()
        return [self._completed(self.span(candidate, begun), rests) for candidate in candidates]

    def _completed(self, span: Span, rests: Sequence[str]) -> Span:
        """`span` up to the first of the `rests` of delimiters, where it begins with one."""
        rest = min(filter(span.text.startswith, rests), key=len, default="")
        if not rest:
            return span
        decode = self.builder.tokenizer.decode
        size = next(size for size in range(1, len(span.ids) + 1) if decode(span.ids[:size]).startswith(rest))
        if size == len(span.ids):
            return span
        return Span(self.role, span.ids[:size], decode(span.ids[:size]), confidence=span.confidence)

    def begun(self, chain: Chain) -> list[int]:
        """The tokens of the character that the thought ends within, in the stage's vocabulary: those of its last spans, as far as these
        have no text. None where the vocabulary is another one: then the character is written anew."""
        spans = list(takewhile(lambda span: span.ids and not span.text, reversed(chain.thought)))
        return [id_ for span in reversed(spans) for id_ in chain.translate(span, self.role)]

    def whole(self, candidate: Candidate, begun: Sequence[int] = ()) -> Candidate:
        """`candidate` without the first tokens of a character that it was cut in: whoever continues writes that again, whatever its
        vocabulary. One that would be empty keeps its tokens and has no text: that of the character belongs to what completes it, whose
        tokens follow those `begun`."""
        ids, decode = candidate.ids, self.builder.tokenizer.decode
        if begun:
            candidate = structs.replace(candidate, text=decode([*begun, *ids]))
        if candidate.finish_reason == "stop" or not candidate.text.endswith(REPLACEMENT):
            return candidate
        for size in range(len(ids) - 1, max(len(ids) - LONGEST_CHARACTER, 0), -1):
            if not (text := decode([*begun, *ids[:size]])).endswith(REPLACEMENT):
                return structs.replace(candidate, ids=ids[:size], text=text)
        part = len(begun) + len(ids) < LONGEST_CHARACTER and not candidate.text.strip(REPLACEMENT)
        return structs.replace(candidate, text="") if part else candidate

    def span(self, candidate: Candidate, begun: Sequence[int] = ()) -> Span:
        """`candidate` as a span of the thought, whose first character may have tokens `begun` before; it closes the thought when it ends
        in `</think>` or an end-of-sequence token, or where all that the engine sampled is hidden, as it would be the next time."""
        candidate = self.whole(candidate, begun)
        ids = candidate.ids
        hidden = not ids and candidate.finish_reason == "length"
        closes = candidate.ended or hidden or (ids[-1:] == self.close_ids != ())
        return Span(self.role, ids, candidate.text, closes, candidate.finish_reason == "length" and not closes, candidate.confidence)
