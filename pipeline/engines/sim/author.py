"""What a simulated engine answers, apart from when: requests enter, candidates and the lengths that cost time leave.

By default a `TextModel` writes; whoever else has text may stand in its place. Nothing here knows of time.
"""

from typing import Protocol

from msgspec import Struct

from pipeline.engine import Candidate, Request, Tokenizer
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.text import TextModel
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer


class Answer(Struct, frozen=True):
    """What a request will get, apart from when."""

    candidates: tuple[Candidate, ...]
    lengths: tuple[int, ...]
    """Sampled tokens of each candidate; a scoring samples one that nobody sees."""
    option_logprobs: tuple[float, ...] = ()
    scored_logprobs: tuple[float, ...] = ()

    @property
    def keeps(self) -> tuple[tuple[int, ...], ...]:
        """Output tokens whose keys and values the cache will hold: all but the last sampled one."""
        each = zip(self.candidates, self.lengths, strict=True)
        return tuple(candidate.ids[: length - 1] for candidate, length in each) if self.candidates else ((),)


class Author(Protocol):
    """Where an engine's text comes from."""

    tokenizer: Tokenizer
    vocab_size: int

    def answer(self, request: Request, max_model_len: int) -> Answer:
        """What `request`, which fits into the context, gets. Raises `ChainError` where there is nothing to give."""


class TextAuthor:
    """The seeded text model of a spec."""

    def __init__(self, spec: SimSpec) -> None:
        self.tokenizer: Tokenizer = SimTokenizer()
        self.vocab_size = VOCAB_SIZE
        self._model = TextModel(spec.model, spec.text)

    def answer(self, request: Request, max_model_len: int) -> Answer:
        """See `Author.answer`."""
        prompt = tuple(request.prompt_ids)
        if request.scored_ids:
            return Answer((), (1,), scored_logprobs=self._model.score(prompt, tuple(request.scored_ids)))
        if request.option_ids:
            chosen, logprobs = self._model.choose(request, prompt)
            ids = (request.option_ids[chosen],)
            option = Candidate(ids=ids, text=self.tokenizer.decode(ids), cumulative_logprob=logprobs[chosen], finish_reason="length")
            return Answer((option,), (1,), option_logprobs=logprobs)
        written = self._model.write(request, prompt, min(request.max_tokens, max_model_len - len(prompt)))
        return Answer(tuple(written), tuple(len(candidate.ids) + candidate.ended for candidate in written))
