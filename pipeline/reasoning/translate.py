"""How token ids that one engine wrote become those of another.

Engines whose ordinary vocabularies agree share ids span by span, and only the special tokens are mapped by their
text; for all others the text of a span is encoded once.
"""

from collections.abc import Mapping, Sequence

from pipeline.engine import Tokenizer


class TokenTranslator:
    """Translates spans of ids between the engines of one run, by role."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer]) -> None:
        self._tokenizers = tokenizers
        self._special_maps = {
            (source, target): _special_map(tokenizers[source], tokenizers[target])
            for source in tokenizers
            for target in tokenizers
            if source != target
        }

    def translate(self, source: str, target: str, ids: Sequence[int], text: str) -> Sequence[int]:
        """The ids that the engine `target` has for what the engine `source` wrote as `ids`, whose text is `text`."""
        if source == target:
            return ids
        special = self._special_maps[source, target]
        if special is None:
            return self._tokenizers[target].encode(text)
        if not special or special.keys().isdisjoint(ids):
            return ids
        out: list[int] = []
        for token in ids:
            out += special.get(token, (token,))
        return out


def _special_map(source: Tokenizer, target: Tokenizer) -> dict[int, tuple[int, ...]] | None:
    """The target's ids for each special token of the source that has another id there; None when the ordinary vocabularies
    differ."""
    if source.vocabulary != target.vocabulary:
        return None
    return {
        id_: (target.special_ids[text],) if text in target.special_ids else tuple(target.encode(text))
        for text, id_ in source.special_ids.items()
        if target.special_ids.get(text) != id_
    }
