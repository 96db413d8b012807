"""How token ids that one engine wrote become text in the prompts of another one, or in its own.

Engines whose ordinary vocabularies agree share ids span by span, and only the special tokens are mapped by their text; for all others the
text of a span is encoded once, as what follows other text. A token that controls a chat is spelled out, so that nothing that a model or a
server wrote begins or ends a turn; the closing reasoning tag at the end of a span stays what it is, the end of the thought.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from pipeline.engine import Tokenizer
from pipeline.graph.prompts import DEFAULT_PROMPTS, Marks
from pipeline.reasoning.prompts import own_marks


class TokenTranslator:
    """Translates spans of ids between the engines of one run, by role."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer], thought: Marks = DEFAULT_PROMPTS.thought) -> None:
        """`thought`: the reasoning tags."""
        self._pairs = {
            (source, target): _Pair(tokenizers[source], tokenizers[target], thought, same=source == target)
            for source in tokenizers
            for target in tokenizers
        }

    def translate(self, source: str, target: str, ids: Sequence[int], text: str) -> Sequence[int]:
        """The ids that the engine `target` has for what the engine `source` wrote as `ids`, whose text is `text`."""
        return self._pairs[source, target].translate(ids, text)


class _Pair:
    """Translates what one tokenizer's engine wrote for another tokenizer's, or the same one's."""

    def __init__(self, source: Tokenizer, target: Tokenizer, thought: Marks, *, same: bool) -> None:
        own = own_marks(source.special_ids, thought)
        self._source, self._target = source, target
        self._mark, self._end = own.close, own_marks(target.special_ids, thought).close
        self._shared = same or source.vocabulary == target.vocabulary
        self._close = source.special_ids.get(own.close) if own.open in source.special_ids else None
        self._texts = {id_: text for text, id_ in source.special_ids.items()}
        moved = (id_ for text, id_ in source.special_ids.items() if target.special_ids.get(text) != id_)
        # An id that the source's tokenizer does not know, as a model has it that was made for more tokens, may control the target's chats.
        self._changed = source.control_ids.union(target.control_ids, moved)
        """Ids that do not stay as they are."""
        self._known = cache(self._ids_of)

    def translate(self, ids: Sequence[int], text: str) -> Sequence[int]:
        if self._shared and self._changed.isdisjoint(ids):
            return ids
        closes = bool(ids) and ids[-1] == self._close
        end = self._end if closes else ""
        if not self._shared:
            return self._target.encode_parts(["", text.removesuffix(self._mark) if closes else text, end])
        said = [id_ for token in (ids[:-1] if closes else ids) for id_ in self._known(token)]
        return said + self._target.encode(end)

    def _ids_of(self, token: int) -> list[int]:
        """The target's ids for one token."""
        if token not in self._changed:
            return [token]
        text = self._texts.get(token)
        own = None if text is None or token in self._source.control_ids else self._target.special_ids.get(text)
        return self._target.encode_parts(["", self._source.decode([token]) if text is None else text]) if own is None else [own]
