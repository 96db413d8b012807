"""The `Tokenizer` contract over a Hugging Face model; the only module that loads a tokenizer of transformers."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.engines.checkpoint import unusual_file
from pipeline.errors import GraphError, boundary


def count_through_stop(ids: Sequence[int], stop: str, decode: Callable[[Sequence[int]], str]) -> int:
    """How many of `ids` it takes to complete the text `stop`; token-level speculation may have sampled more."""
    count = len(ids)
    while count > 1 and stop in decode(ids[: count - 1]):
        count -= 1
    return count


class HFTokenizer:
    """The `Tokenizer` of a model on Hugging Face's hub or in a folder, with the chat template published with it."""

    def __init__(self, model: str, *, trust_remote_code: bool = False) -> None:
        """`model` is a folder or a hub name; raises `GraphError` when its tokenizer cannot be loaded."""
        if (flaw := unusual_file(Path(model).expanduser())) is not None:
            raise GraphError(model, flaw)
        with boundary(GraphError, model, foreign=(OSError, ValueError)):
            self._hf: Any = _loaded(model, trust_remote_code)
        self._model = model
        self._backend: Any = self._hf.backend_tokenizer
        added = self._hf.get_added_vocab()
        self.special_ids: dict[str, int] = dict(added)
        self.eos_ids = frozenset({self._hf.eos_token_id} - {None})

    @cached_property
    def vocabulary(self) -> str:
        """See `Tokenizer.vocabulary`."""
        ordinary = sorted(item for item in self._hf.get_vocab().items() if item[0] not in self.special_ids)
        return hashlib.blake2b(repr(ordinary).encode(), digest_size=16).hexdigest()

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """See `Tokenizer.render`. Raises `GraphError` where the model has no template, as a reward model may, or the template fails,
        which it may do in any way: transformers runs it in a sandbox of Jinja."""
        if not self._hf.chat_template:
            raise GraphError(self._model, "its tokenizer has no chat template; use an instruction or reasoning model")
        with boundary(GraphError, f"{self._model}: its chat template fails", foreign=Exception):
            return str(self._hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))


def _loaded(model: str, trust_remote_code: bool) -> Any:
    """The tokenizer of transformers; raises `OSError` or `ValueError`, because a damaged file makes transformers fail in any way."""
    try:
        return _load(model, trust_remote_code)
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"its tokenizer cannot be read ({type(error).__name__}: {error})") from error


def _load(model: str, trust_remote_code: bool) -> Any:
    """The tokenizer in `tokenizer.json` where there is one: `AutoTokenizer`, used otherwise, imports torch, which takes seconds."""
    from transformers import PreTrainedTokenizerFast

    if not trust_remote_code:
        with suppress(OSError, ValueError):
            return PreTrainedTokenizerFast.from_pretrained(model)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
