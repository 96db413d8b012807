"""The answer of a simulated engine, without the time that it takes, whole or cut by an interruption. Pure."""

from collections.abc import Sequence

from msgspec import Struct, structs

from pipeline.engine import Candidate, Tokenizer


class Output(Struct, frozen=True):
    """The answer to a request without its timing: text, log probabilities, and the lengths that decide how long it takes."""

    candidates: tuple[Candidate, ...]
    lengths: tuple[int, ...]
    """Number of tokens that are sampled for each candidate, at least one until it is cut; a request that only scores samples one, which
    is dropped."""
    option_logprobs: tuple[float, ...] = ()
    scored_logprobs: tuple[float, ...] = ()

    @property
    def cached(self) -> tuple[tuple[int, ...], ...]:
        """The output tokens of each candidate whose keys and values the cache will hold: all but the last sampled one."""
        each = zip(self.candidates, self.lengths, strict=True)
        return tuple(candidate.ids[: length - 1] for candidate, length in each) if self.candidates else ((),)

    @property
    def sampled(self) -> int:
        """Tokens that were sampled for the candidates."""
        return sum(len(candidate.ids) + candidate.ended for candidate in self.candidates)

    def cut(self, counts: Sequence[int], tokenizer: Tokenizer) -> "Output":
        """The part of it that a request gets if it is interrupted after `counts` tokens of each candidate."""
        each = zip(self.candidates, self.lengths, counts, strict=True)
        candidates = tuple(_interrupted(one, length, count, tokenizer) for one, length, count in each)
        return structs.replace(self, candidates=candidates, lengths=tuple(counts))


def _interrupted(candidate: Candidate, length: int, count: int, tokenizer: Tokenizer) -> Candidate:
    """`candidate`, of `length` sampled tokens, once `count` of them were there: with that share of its log probability."""
    if count == length:
        return candidate
    ids, total = candidate.ids[:count], candidate.cumulative_logprob
    return Candidate(
        ids=ids,
        text=tokenizer.decode(ids),
        cumulative_logprob=None if total is None else total * count / length,
        finish_reason="interrupted",
    )
