"""Puts an answer together that a server sends in pieces, as server-sent events: bytes enter, a `ResponseBody` leaves. Pure."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, structs

from pipeline.engines.openai.client import NoAnswer
from pipeline.engines.openai.replies import NULL
from pipeline.engines.openai.response import CompletionChoice, Logprobs, Piece, ResponseBody, decode_answer

_DONE = b"[DONE]"
_BROKEN_OFF = "broke its answer off"
_STATED = ("usage", "model", "system_fingerprint", "metrics", "timings")


class StreamedAnswer:
    """One answer as far as it has arrived."""

    def __init__(self) -> None:
        self._unread = b""
        self._pieces: dict[int, list[CompletionChoice]] = {}
        """The pieces of each candidate, by its index."""
        self._stated: dict[str, Any] = {}
        """Counts, times and names that came with it."""
        self._flaw: NoAnswer | None = None

    def feed(self, received: bytes) -> None:
        """Take the next bytes of the stream."""
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line.removeprefix(b"data:").strip())

    def body(self) -> ResponseBody:
        """The answer once the stream has ended; raises `NoAnswer` where pieces lack or one of them is none."""
        self.feed(b"\n")  # the last line may have no end
        choices = [_joined(index, pieces) for index, pieces in sorted(self._pieces.items())]
        return self._body(choices, whole=bool(choices) and all(choice.finish_reason is not None for choice in choices))

    def interrupted(self, asked: int) -> ResponseBody:
        """The answer so far, with as many candidates as were requested; raises `NoAnswer` where a piece is none."""
        choices = (_joined(index, self._pieces.get(index, ())) for index in range(asked))
        return self._body([structs.replace(choice, finish_reason=choice.finish_reason or "interrupted") for choice in choices])

    def _body(self, choices: Sequence[CompletionChoice], whole: bool = True) -> ResponseBody:
        if self._flaw is not None:
            raise self._flaw
        if not whole:
            raise NoAnswer("failing", _BROKEN_OFF)
        return ResponseBody(tuple(choices), **self._stated)

    def _take(self, event: bytes) -> None:
        """Take one event; what comes after one that cannot be read is ignored."""
        if event == _DONE or self._flaw is not None:
            return
        try:
            piece = decode_answer(event, Piece, f"{_BROKEN_OFF}: ")
        except NoAnswer as flaw:
            self._flaw = flaw
            return
        for choice in piece.choices or ():
            self._pieces.setdefault(choice.index or 0, []).append(choice)
        self._stated |= {name: value for name in _STATED if (value := getattr(piece, name)) != NULL}


def _joined(index: int, pieces: Sequence[CompletionChoice]) -> CompletionChoice:
    """The candidate that `pieces` make; without pieces one of no tokens."""

    def last(name: str, nothing: object) -> Any:
        return next((value for piece in reversed(pieces) if (value := getattr(piece, name)) != nothing), nothing)

    texts = [piece.text for piece in pieces if piece.text is not None]
    ids = [piece.token_ids for piece in pieces if piece.token_ids is not None]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return CompletionChoice(
        index=index,
        text="".join(texts) if texts or not pieces else None,
        token_ids=tuple(id_ for each in ids for id_ in each) if ids or not pieces else None,
        logprobs=_joined_logprobs(logprobs) if logprobs else None,
        finish_reason=last("finish_reason", None),
        stop_reason=last("stop_reason", UNSET),
        matched_stop=last("matched_stop", UNSET),
        prompt_token_ids=last("prompt_token_ids", NULL),
        error=last("error", NULL),
    )


def _joined_logprobs(pieces: Sequence[Logprobs]) -> Logprobs:
    newer = any(piece.content is not None for piece in pieces)
    return Logprobs(
        token_logprobs=tuple(value for piece in pieces for value in piece.token_logprobs or ()),
        content=tuple(entry for piece in pieces for entry in piece.content or ()) if newer else None,
    )
