"""Prompts and answers of servers that take and give text in place of token ids.

Such a server looks for the texts of special tokens in all that it is sent, so that a prompt in which a text spells one out cannot be sent
as it is. Ids enter and a text leaves, or the other way round. Pure.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from pipeline.engine import Tokenizer
from pipeline.errors import RequestRefused

_CLOSE = re.compile(r"</(\w+:)?think(ing)?>|\[/THINK(ING)?\]", re.IGNORECASE)
"""How models write the closing reasoning tag: `</think>`, `</seed:think>`, `[/THINK]`."""


def answer_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The ids of what a server wrote: the first mark that closes a thought does so, and no other special token has a meaning in it."""
    found = next((mark for mark in _CLOSE.finditer(text) if mark[0] in tokenizer.special_ids), None)
    parts = [text] if found is None else [text[: found.start()], found[0], text[found.end() :]]
    return tuple(tokenizer.encode_parts(["", *parts]))


def close_mark(tokenizer: Tokenizer) -> str | None:
    """The text of the model's token that closes a thought; None where it has none."""
    return next((text for text in tokenizer.special_ids if _CLOSE.fullmatch(text)), None)


def prompt_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of `ids`, which a server makes the same control tokens of, and no more: a space follows the first character of one that a
    text spells out. Raises `RequestRefused` where that does not help."""
    control_ids, text = tokenizer.control_ids, tokenizer.decode(ids)
    controls = _any_of(tuple(text for text, id_ in tokenizer.special_ids.items() if id_ in control_ids))
    places = [place for place, id_ in enumerate(ids) if id_ in control_ids]
    if controls.findall(text) == [tokenizer.decode([ids[place]]) for place in places]:
        return text
    said: list[str] = []
    end = 0
    for place in places:
        start = len(tokenizer.decode(ids[:place]))
        said.append(controls.sub(_broken, text[end:start]))
        end = len(tokenizer.decode(ids[: place + 1]))
        said.append(text[start:end])
    whole = "".join([*said, controls.sub(_broken, text[end:])])
    if [id_ for id_ in tokenizer.encode(whole) if id_ in control_ids] != [ids[place] for place in places]:
        raise RequestRefused("the prompt spells out a special token of the model, which a server that accepts text would not read as text")
    return whole


def _broken(found: "re.Match[str]") -> str:
    return f"{found[0][0]} {found[0][1:]}"


@lru_cache(maxsize=64)
def _any_of(texts: tuple[str, ...]) -> "re.Pattern[str]":
    """Finds one of `texts`, the longest one at a place."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
