"""Text as token ids where only marked places become control tokens: what a tokenizer would make of it if it did not know their texts.

A copy of the tokenizer is made in which every control token has another text, which nobody can write because it is drawn at random; the
template's parts are translated to these texts. So normalizers, merges and prefix spaces act as they always do.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any


class Marked:
    """A copy of a tokenizer of the library `tokenizers` whose control tokens have secret texts."""

    def __init__(self, backend: Any, control: Mapping[str, int]) -> None:
        """`control`: the texts of the control tokens and their ids. Raises what the library does where it cannot make the copy."""
        salt = secrets.token_hex(16)
        self._names = {text: f"{salt}{number:08d}" for number, text in enumerate(control)}
        self._copy = type(backend).from_str(json.dumps(_renamed(json.loads(backend.to_str()), self._names)))
        added = {token.content: id_ for id_, token in backend.get_added_tokens_decoder().items()}
        self._ids = {self._copy.token_to_id(self._names.get(text, text)): id_ for text, id_ in (added | dict(control)).items()}
        self._texts = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))

    def encode(self, parts: Sequence[str]) -> list[int]:
        marked = (part if number % 2 else self._texts.sub(lambda found: self._names[found[0]], part) for number, part in enumerate(parts))
        ids = self._copy.encode("".join(marked), add_special_tokens=False).ids
        return [self._ids.get(id_, id_) for id_ in ids]


def _renamed(described: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The description of a tokenizer (its tokenizer.json) with the tokens `names` renamed, in its vocabulary too where they are there."""
    for token in described["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = described["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pieces and their scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    elif held := names.keys() & vocabulary.keys():
        model["vocab"] = {names.get(text, text): id_ for text, id_ in vocabulary.items()}
        if "merges" in model:
            model["merges"] = [merge for merge in model["merges"] if held.isdisjoint(_texts_of(merge))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return described


def _texts_of(merge: str | Sequence[str]) -> set[str]:
    """The two texts of a merge and the text that they become."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return {left, right, left + right}
