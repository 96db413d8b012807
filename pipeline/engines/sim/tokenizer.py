"""A tokenizer that needs no vocabulary and counts like a real one: every token is written into its own id.

Text enters, ids leave, and back; any text that UTF-8 can carry survives. A token is up to six letters with the space before them: most
words of English are one token. Only the first letter may be a capital, and one alone is without the space. Else a token is a digit, a line
feed, a blank line, or one to three other bytes. So a digit, a letter as an option, and the end of a step stand on token boundaries.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from pipeline.graph.prompts import DELIMITER, THINK_CLOSE, THINK_OPEN

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS = (THINK_OPEN, THINK_CLOSE, USER, ASSISTANT, END)
_LENGTH_SHIFT = 24
_WORDS = 4 << _LENGTH_SHIFT
"""The first id of a word; those of other bytes are below, their number in the upper bits."""
_OF_A_KIND = 27**6
"""The words of one kind: with a space or not, with a capital or not."""
VOCAB_SIZE = _WORDS + 4 * _OF_A_KIND
"""One more than the largest id."""
_REMEMBERED = 1 << 16
"""So many pieces of text are remembered at most: more than texts of lower-case words have."""
# A piece of other bytes never reaches over a digit, a letter, a space, a line feed, a `<` or the first byte of a character.
_TEXT = re.escape(DELIMITER).encode() + rb"| ?[a-z]{1,6}| ?[A-Z][a-z]{1,5}|[A-Z]|[0-9\n]|[^0-9A-Za-z\n][^0-9A-Za-z \n<\xc0-\xff]{0,2}"
_TEXT_PIECE = re.compile(_TEXT)
_SPECIAL_IDS = {text.encode(): number for number, text in enumerate(SPECIALS)}
_PIECE = re.compile("|".join(map(re.escape, SPECIALS)).encode() + b"|" + _TEXT)


@lru_cache(maxsize=_REMEMBERED)
def _id_of(piece: bytes) -> int:
    if piece in _SPECIAL_IDS:
        return _SPECIAL_IDS[piece]
    letters = piece.strip(b" ")
    if not letters.isalpha():
        return len(piece) << _LENGTH_SHIFT | int.from_bytes(piece, "big")
    kind = 2 * (piece != letters) + letters[:1].isupper()
    number = 0
    for letter in letters.lower():
        number = 27 * number + letter - 96
    return _WORDS + kind * _OF_A_KIND + number


@lru_cache(maxsize=_REMEMBERED)
def _piece_of(token: int) -> bytes:
    if token < len(SPECIALS):
        return SPECIALS[token].encode()
    if token < _WORDS:
        length = token >> _LENGTH_SHIFT
        return (token & 0xFFFFFF).to_bytes(3, "big")[3 - length :] if length else "\N{REPLACEMENT CHARACTER}".encode()
    kind, number = divmod(token - _WORDS, _OF_A_KIND)
    letters = bytearray()
    while number:
        number, letter = divmod(number, 27)
        letters.append(letter + 96)
    word = bytes(reversed(letters))
    return (b" " if kind > 1 else b"") + (word.capitalize() if kind % 2 else word)


class SimTokenizer:
    """The `Tokenizer` contract for simulated engines; all of them share this vocabulary."""

    vocabulary = "sim-words"

    def __init__(self) -> None:
        self.special_ids = {text: number for number, text in enumerate(SPECIALS)}
        self.eos_ids = frozenset({self.special_ids[END]})

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self.special_ids.values())

    def encode(self, text: str) -> list[int]:
        return list(map(_id_of, _PIECE.findall(text.encode("utf-8", "replace"))))

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += map(_id_of, _TEXT_PIECE.findall(part.encode("utf-8", "replace"))) if number % 2 else self.encode(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(_piece_of, ids)).decode("utf-8", "replace")

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        turns = (
            f"{ASSISTANT}{message['content']}{END}" if message["role"] == "assistant" else f"{USER}{message['content']}"
            for message in messages
        )
        return f"{''.join(turns)}{ASSISTANT}{THINK_OPEN}\n"
