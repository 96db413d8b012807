"""Puts an answer together that a server sends in pieces, as server-sent events: bytes enter, a `ResponseBody` leaves. Pure."""

from collections.abc import Sequence

from msgspec import UNSET, structs

from pipeline.engines.openai.replies import NULL, Aborted, Unanswered
from pipeline.engines.openai.response import Choice, Logprobs, Piece, ResponseBody, decode_response

_DONE = b"[DONE]"
_BROKEN_OFF = "broke its answer off"
_STATED = ("usage", "model", "system_fingerprint", "metrics", "timings")


class StreamedAnswer:
    """What has arrived of one answer."""

    def __init__(self) -> None:
        self._unread = b""
        self._pieces: dict[int, list[Choice]] = {}
        """The pieces of each candidate, by its index."""
        self._stated = ResponseBody(())
        """What the server has stated about its answer."""
        self._flaw: Unanswered | None = None

    def feed(self, received: bytes) -> None:
        """Take the next bytes of the stream."""
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line.removeprefix(b"data:").strip())

    def body(self) -> ResponseBody:
        """The answer once the stream has ended; raises `Aborted` where pieces lack, and what `decode_response` raises for one of them."""
        self.feed(b"\n")  # the last line may have no end
        if self._flaw is not None:
            raise self._flaw
        choices = tuple(_joined(index, pieces) for index, pieces in sorted(self._pieces.items()))
        if not choices or any(choice.finish_reason is None for choice in choices):
            raise Aborted(_BROKEN_OFF)
        return structs.replace(self._stated, choices=choices)

    def interrupted(self, asked: int) -> ResponseBody:
        """The answer so far, with as many candidates as were requested; raises what `decode_response` does."""
        if self._flaw is not None:
            raise self._flaw
        choices = (_joined(index, self._pieces.get(index, ())) for index in range(asked))
        ended = (structs.replace(choice, finish_reason=choice.finish_reason or "interrupted") for choice in choices)
        return structs.replace(self._stated, choices=tuple(ended))

    def _take(self, data: bytes) -> None:
        """Take one event; what comes after one that cannot be read is ignored."""
        if data == _DONE or self._flaw is not None:
            return
        try:
            piece = decode_response(data, Piece, f"{_BROKEN_OFF}: ")
        except Unanswered as flaw:
            self._flaw = flaw
            return
        for choice in piece.choices or ():
            self._pieces.setdefault(choice.index or 0, []).append(choice)
        stated = {name: value for name in _STATED if (value := getattr(piece, name)) != NULL}
        if stated:
            self._stated = structs.replace(self._stated, **stated)


def _joined(index: int, pieces: Sequence[Choice]) -> Choice:
    """The candidate that `pieces` make; without pieces one of no tokens."""
    texts = [piece.text for piece in pieces if piece.text is not None]
    ids = [piece.token_ids for piece in pieces if piece.token_ids is not None]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return Choice(
        index=index,
        text="".join(texts) if texts or not pieces else None,
        finish_reason=next((piece.finish_reason for piece in reversed(pieces) if piece.finish_reason is not None), None),
        token_ids=tuple(id_ for each in ids for id_ in each) if ids or not pieces else None,
        logprobs=_joined_logprobs(logprobs) if logprobs else None,
        stop_reason=next((piece.stop_reason for piece in reversed(pieces) if piece.stop_reason is not UNSET), UNSET),
        matched_stop=next((piece.matched_stop for piece in reversed(pieces) if piece.matched_stop is not UNSET), UNSET),
        prompt_token_ids=next((piece.prompt_token_ids for piece in pieces if piece.prompt_token_ids != NULL), NULL),
        error=next((piece.error for piece in pieces if piece.error != NULL), NULL),
    )


def _joined_logprobs(pieces: Sequence[Logprobs]) -> Logprobs:
    newer = any(piece.content is not None for piece in pieces)
    return Logprobs(
        token_logprobs=tuple(value for piece in pieces for value in piece.token_logprobs or ()),
        content=tuple(entry for piece in pieces for entry in piece.content or ()) if newer else None,
    )
