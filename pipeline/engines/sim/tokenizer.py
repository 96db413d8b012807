"""A tokenizer that needs no vocabulary: an ordinary token is one to three UTF-8 bytes, written into its own id.

Text enters, ids leave, and back; any text that UTF-8 can carry survives. Digits, capital letters, a line feed and a blank line are separate
tokens, and no token reaches into one of them, so that a step ends, and an option of a choice stands, on a token boundary.
"""

import re
from collections.abc import Sequence

from pipeline.graph.prompts import DELIMITER, THINK_CLOSE, THINK_OPEN

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS = (THINK_OPEN, THINK_CLOSE, USER, ASSISTANT, END)
_LENGTH_SHIFT = 24
VOCAB_SIZE = 4 << _LENGTH_SHIFT
"""One more than the largest id."""
_REMEMBERED = 1 << 16
"""So many pieces of text are remembered at most: more than texts of lower-case words have."""
# A piece never reaches over a digit, a capital, a line feed, a `<` or the first byte of a character.
_TEXT = re.escape(DELIMITER).encode() + rb"|[0-9A-Z\n]|[^0-9A-Z\n][^0-9A-Z\n<\xc0-\xff]{0,2}"
_TEXT_PIECE = re.compile(_TEXT)
_PIECE = re.compile("|".join(map(re.escape, SPECIALS)).encode() + b"|" + _TEXT)


class _Ids(dict[bytes, int]):
    """Cache of the id of each piece of text, worked out when it is first asked for."""

    def __missing__(self, piece: bytes) -> int:
        if len(self) > _REMEMBERED:
            self.clear()
            self.update(_SPECIAL_IDS)
        self[piece] = token = len(piece) << _LENGTH_SHIFT | int.from_bytes(piece, "big")
        return token


class _Pieces(dict[int, bytes]):
    """Cache of the bytes of each id, worked out when they are first asked for."""

    def __missing__(self, token: int) -> bytes:
        if len(self) > _REMEMBERED:
            self.clear()
            self.update({number: piece for piece, number in _SPECIAL_IDS.items()})
        length = token >> _LENGTH_SHIFT
        if not 1 <= length <= 3:
            return "\N{REPLACEMENT CHARACTER}".encode()
        self[token] = piece = (token & 0xFFFFFF).to_bytes(3, "big")[3 - length :]
        return piece


_SPECIAL_IDS = {text.encode(): number for number, text in enumerate(SPECIALS)}
_ids = _Ids(_SPECIAL_IDS)
_pieces = _Pieces({number: piece for piece, number in _SPECIAL_IDS.items()})


class SimTokenizer:
    """The `Tokenizer` contract for simulated engines; all of them share this vocabulary."""

    vocabulary = "sim-bytes-3"

    def __init__(self) -> None:
        self.special_ids = {text: number for number, text in enumerate(SPECIALS)}
        self.eos_ids = frozenset({self.special_ids[END]})

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self.special_ids.values())

    def encode(self, text: str) -> list[int]:
        return list(map(_ids.__getitem__, _PIECE.findall(text.encode("utf-8", "replace"))))

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += map(_ids.__getitem__, _TEXT_PIECE.findall(part.encode("utf-8", "replace"))) if number % 2 else self.encode(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(_pieces.__getitem__, ids)).decode("utf-8", "replace")

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        turns = (
            f"{ASSISTANT}{message['content']}{END}" if message["role"] == "assistant" else f"{USER}{message['content']}"
            for message in messages
        )
        return f"{''.join(turns)}{ASSISTANT}{THINK_OPEN}\n"

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """The number of bytes of each of `ids`."""
        return [len(_pieces[token]) for token in ids]
