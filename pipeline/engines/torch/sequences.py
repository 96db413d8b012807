"""The state of requests inside the worker: how far each candidate is, and when it ends. No torch and no clock here."""

from collections.abc import Callable

import numpy as np

from pipeline.confidence import confidence_of
from pipeline.engine import Candidate, Completion, FinishReason, Request, Timing, Usage
from pipeline.engines.torch.sampling import stream_key

Decode = Callable[[list[int]], str]


class Stops:
    """Decides whether a token ends a candidate; one for each set of stop strings and ids, because it caches what it finds of a token."""

    def __init__(self, strings: tuple[str, ...], ids: tuple[int, ...], eos: frozenset[int], decode: Decode) -> None:
        self.eos = eos
        """The end-of-sequence tokens."""
        self._strings, self._ids, self._decode = strings, frozenset(ids), decode
        self._last = {text[-1] for text in strings}
        # A token has a character at least. One token more than needed, because decoders may treat the first of a text differently.
        self._tail = max(map(len, strings), default=0) + 1
        self._endings: dict[int, bool] = {}

    def may_end(self, token: int) -> bool:
        """True if this token can be a candidate's last one, so that `reason` must be asked; cached for every token."""
        known = self._endings.get(token)
        if known is None:
            text = self._decode([token])
            # It may hold the last character of a stop string, or a part of a character.
            completes = bool(self._strings) and ("\ufffd" in text or not self._last.isdisjoint(text))
            known = self._endings[token] = token in self.eos or token in self._ids or completes
        return known

    def reason(self, ids: list[int]) -> str | int | None:
        """The stop id or stop string that the last of `ids` completes; None where it completes none."""
        if ids[-1] in self._ids:
            return ids[-1]
        tail = self._decode(ids[-self._tail :]) if self._strings else ""
        return next((text for text in self._strings if text in tail), None)


class Sequence:
    """One candidate while it is generated, in a slot of the KV cache."""

    __slots__ = ("ids", "index", "key", "likeliest", "logprob", "logprobs", "slot", "state")

    def __init__(self, state: "RequestState", index: int, slot: int) -> None:
        self.state, self.index, self.slot = state, index, slot
        self.key = stream_key(state.request.seed, index)
        self.ids: list[int] = []
        self.logprob = 0.0
        self.logprobs: list[float] = []
        self.likeliest: list[list[float]] = []
        """Where the request asks for them: the log probability of each sampled token, and those of the likeliest in its place."""

    @property
    def position(self) -> int:
        """Position in the slot of the newest token, whose keys and values are computed next."""
        return len(self.state.prompt) + len(self.ids) - 1

    def push(self, token: int, logprob: float, likeliest: list[float] | None = None) -> bool:
        """Append a sampled token and return whether the candidate has ended; one that has is added to `RequestState.ended`."""
        state = self.state
        self.logprob += logprob
        if likeliest is not None:
            self.logprobs.append(logprob)
            self.likeliest.append(likeliest)
        state.output_tokens += 1
        self.ids.append(token)
        if state.stops.may_end(token):
            reason = state.stops.reason(self.ids)
            if reason is not None:
                return self._end("stop", reason)
            if token in state.stops.eos:
                self.ids.pop()
                return self._end("stop", None)
        if len(self.ids) == state.max_tokens:
            return self._end("length", None)
        return False

    def _end(self, finish: FinishReason, reason: str | int | None) -> bool:
        self.state.ended[self.index] = Candidate(
            ids=tuple(self.ids),
            text=self.state.decode(self.ids),
            cumulative_logprob=self.logprob,
            finish_reason=finish,
            stop_reason=reason,
            confidence=confidence_of(self.logprobs, self.likeliest),
        )
        return True


class RequestState:
    """One request from its arrival to its completion."""

    def __init__(self, number: int, request: Request, stops: Stops, decode: Decode, max_model_len: int, arrival_s: float) -> None:
        self.number, self.request, self.stops, self.decode = number, request, stops, decode
        self.prompt = np.array(request.prompt_ids, dtype=np.int64)
        self.max_tokens = min(request.max_tokens, max_model_len - len(self.prompt))
        self.started = 0
        """How many candidates have a slot or have ended."""
        self.ended: dict[int, Candidate] = {}
        """The candidates that have ended, by their index."""
        self.option_logprobs: tuple[float, ...] = ()
        self.cached_tokens = self.output_tokens = 0
        self.arrival_s, self.first_scheduled_s, self.first_token_s = arrival_s, 0.0, 0.0

    @property
    def affinity(self) -> str:
        """Whose newest content a slot holds: that of the chain, for each adapter of its requests; empty without a chain."""
        chain, adapter = self.request.affinity, self.request.adapter
        return chain if adapter is None or not chain else f"{chain}\0{adapter}"

    @property
    def unstarted(self) -> int:
        """How many candidates have no slot yet."""
        return self.request.n - self.started

    @property
    def finished(self) -> bool:
        """True if all candidates have ended."""
        return len(self.ended) == self.request.n

    def settle(self, option: int, logprob: float) -> None:
        """End a choice: its only candidate is the token `option`."""
        self.output_tokens = 1
        text = self.decode([option])
        self.ended[0] = Candidate(ids=(option,), text=text, cumulative_logprob=logprob, finish_reason="length")

    def completion(self, end_s: float) -> Completion:
        """The answer to the request, which must be `finished`."""
        return Completion(
            candidates=tuple(self.ended[index] for index in sorted(self.ended)),
            option_logprobs=self.option_logprobs,
            usage=Usage(
                input_tokens=len(self.prompt),
                cached_input_tokens=self.cached_tokens,
                output_tokens=self.output_tokens,
            ),
            timing=Timing.of(self.arrival_s, self.first_scheduled_s, self.first_token_s, end_s),
        )
