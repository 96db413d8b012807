"""The `Tokenizer` contract over a Hugging Face model; the only module that loads a tokenizer of transformers."""

import hashlib
import json
import re
import resource
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from pipeline.engines.hub import check_hub
from pipeline.errors import GraphError, RequestRefused, boundary, reason
from pipeline.system.worker_process import without_collections

MAX_CHARACTERS = 1 << 22
"""Longest prompt that is taken from a template, in characters."""
TEMPLATE_BYTES = 512 << 20
"""Most memory that a template may add to this process when it is tried, however it does: an operator, a filter, a loop."""
_BEFORE = ("\n", "0")
"""Texts of which a tokenizer that puts a space before a text makes one token with few others; where it does with the first, it does not
with the second."""
_MARKUP = re.compile(r"[<>\[\]|#~@^=*_]")
"""A character that markup has and words have not."""


def count_through_stop(ids: Sequence[int], stop: str, decode: Callable[[Sequence[int]], str]) -> int:
    """How many of `ids` it takes to complete the text `stop`; token-level speculation may have sampled more."""
    count = len(ids)
    while count > 1 and stop in decode(ids[: count - 1]):
        count -= 1
    return count


class HFTokenizer:
    """The `Tokenizer` of a model on Hugging Face's hub or in a folder, with the chat template published with it."""

    def __init__(
        self, model: str, *, trust_remote_code: bool = False, template_arguments: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`model` is a folder or a hub name; raises `GraphError` when its tokenizer cannot be loaded.

        `template_arguments` are passed to its chat template in addition to the messages, such as `enable_thinking`.
        """
        with boundary(GraphError, model, foreign=(OSError, ValueError)):
            check_hub(model)
            self._hf: Any = _loaded(model, trust_remote_code)
            self._hf.chat_template = self._hf.chat_template or _template_of_a_processor(model)
        self._model, self._template_arguments = model, template_arguments
        self._backend: Any = self._hf.backend_tokenizer
        added = self._hf.get_added_vocab()
        self.special_ids: dict[str, int] = dict(added)
        self.eos_ids = frozenset({self._hf.eos_token_id} - {None})

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest token id; a model may have more."""
        return 1 + int(max(self._hf.get_vocab().values()))

    def hides(self, id_: int) -> bool:
        """True if a server that leaves special tokens out of its texts would not show this one."""
        return not self._backend.decode([id_], skip_special_tokens=True)

    @cached_property
    def vocabulary(self) -> str:
        ordinary = sorted(item for item in self._hf.get_vocab().items() if item[0] not in self.special_ids)
        return hashlib.blake2b(repr(ordinary).encode(), digest_size=16).hexdigest()

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokenizers hold words, digits and white space among their added tokens, too. Control tokens are those that are marked as special,
        that are written as a tag (`<think>` is not marked in the tokenizers of R1 and Qwen3), or that are markup of the chat template."""
        template = str(self._hf.chat_template or "")
        marked = {id_ for id_, token in self._backend.get_added_tokens_decoder().items() if token.special and token.content}
        return frozenset(
            id_ for text, id_ in self.special_ids.items() if id_ in marked or _is_tag(text) or (_MARKUP.search(text) and text in template)
        )

    def encode(self, text: str) -> list[int]:
        """Raises `RequestRefused` where the tokenizer fails on the text."""
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        except BaseException as error:
            self._refuse(error)
            raise

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Raises `RequestRefused` where the tokenizer fails on the text.

        Without a template's part in front others' text follows other text: no space is put before it, as SentencePiece does.
        """
        try:
            for text, before in self._before_texts if parts and not parts[0] else ():
                ids = self._encoded(["", text + "".join(parts[1:2]), *parts[2:]])
                if ids[: len(before)] == before:
                    return ids[len(before) :]
            return self._encoded(parts)
        except BaseException as error:
            self._refuse(error)
            raise

    def _encoded(self, parts: Sequence[str]) -> list[int]:
        encoding = self._backend.encode("".join(parts), add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self.control_ids.isdisjoint(ids) or self._controls_are_ours(encoding, parts):
            return ids
        return self._marked.encode(parts)

    @cached_property
    def _before_texts(self) -> list[tuple[str, list[int]]]:
        """Texts that may stand before one that follows other text, and their ids; none where the tokenizer puts no space before a text."""
        found = []
        for text in _BEFORE:
            before, both, alone = (self._backend.encode(each, add_special_tokens=False).ids for each in (text, f"{text}a", "a"))
            if both[: len(before)] == before and both[len(before) :] != alone:
                found.append((text, before))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Raises `RequestRefused` where the tokenizer fails on the ids."""
        try:
            before, length = self._before
            return self._text([*before, *ids])[length:]
        except BaseException as error:
            self._refuse(error)
            raise

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Raises `GraphError` where the model has no template, as a reward model may, or the template fails, which it may do in any way, or
        writes too much."""
        try:
            text = self._written(messages, self._template)
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"it writes {len(text):,} characters")
        except GraphError:
            raise
        except Exception as error:  # a template fails in any way
            flaw = " ".join(str(error).split()) or type(error).__name__
        else:
            return text
        raise GraphError(f"{self._model}: its chat template fails", flaw)

    def _written(self, messages: Sequence[dict[str, str]], template: str) -> str:
        settings = {"chat_template": template, "tokenize": False, "add_generation_prompt": True, **self._template_arguments}
        return str(self._hf.apply_chat_template(list(messages), **settings))

    @cached_property
    def _before(self) -> tuple[list[int], int]:
        """Ids that are decoded before others, and the length of their text: SentencePiece takes the first space from every text, and a part
        of a text has the space that it begins with. None for all other tokenizers."""
        ids = self._backend.encode("a", add_special_tokens=False).ids
        text = self._text(ids)
        return ([], 0) if self._text([*ids, *ids]) == text * 2 else (ids, len(text))

    def _text(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False))

    @cached_property
    def _template(self) -> str:
        """The source of the template, which is tried once: a bound on the memory of the process would fail other threads in mid-run."""
        if not self._hf.chat_template:
            raise GraphError(self._model, "its tokenizer has no chat template; use an instruction or reasoning model")
        source = str(self._hf.get_chat_template())
        for name in self._template_arguments:
            if not re.search(rf"\b{re.escape(name)}\b", source):
                raise GraphError(self._model, f"its chat template does not use `{name}`, set in chat_template_kwargs; leave it out")
        with _bounded_memory():
            self._written([{"role": "user", "content": "1 + 1"}], source)
        return source

    @cached_property
    def _marked(self) -> "Marked":
        return Marked(self._backend, {text: id_ for text, id_ in self.special_ids.items() if id_ in self.control_ids})

    def _controls_are_ours(self, encoding: Any, parts: Sequence[str]) -> bool:
        """True if every control token stands within one of the template's `parts`; it may include white space around it."""
        text, ours, end = "".join(parts), [], 0
        for number, part in enumerate(parts):
            start, end = end, end + len(part)
            if part and not number % 2:
                ours.append((start, end))
        for place in (place for place, id_ in enumerate(encoding.ids) if id_ in self.control_ids):
            start, end = encoding.token_to_chars(place)
            said = text[start:end]
            start, end = end - len(said.lstrip()), start + len(said.rstrip())
            if not any(first <= start and end <= last for first, last in ours):
                return False
        return True

    def _refuse(self, error: BaseException) -> None:
        """Raise `RequestRefused` for a failure of the tokenizer. A panic of its Rust code, such as that of a regex that runs over, is no
        `Exception`."""
        if isinstance(error, Exception) or _is_panic(error):
            raise RequestRefused(f"the tokenizer of {self._model} fails: {reason(error)}") from error


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let this process have no more than `TEMPLATE_BYTES` more; raises `ValueError` where that is too little."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + TEMPLATE_BYTES, before[1]))
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"it takes more than {TEMPLATE_BYTES >> 20} MiB") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _is_tag(text: str) -> bool:
    return text[:1] + text[-1:] in ("<>", "[]") and any(map(str.isalpha, text))


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def _loaded(model: str, trust_remote_code: bool) -> Any:
    """The tokenizer of transformers; raises `OSError` or `ValueError`, because a damaged file makes transformers fail in any way."""
    try:
        return _load(model, trust_remote_code)
    except (OSError, ValueError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise ValueError(f"its tokenizer cannot be read ({type(error).__name__}: {error})") from error


def _template_of_a_processor(model: str) -> str | None:
    """The chat template in `chat_template.json`, where older models that take more than text have it; None without one."""
    with without_collections():
        from transformers.utils import cached_file

    path = cached_file(
        model, "chat_template.json", _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    found = None if path is None else json.loads(Path(path).read_bytes())
    return str(found["chat_template"]) if isinstance(found, dict) and "chat_template" in found else None


def _load(model: str, trust_remote_code: bool) -> Any:
    """The tokenizer in `tokenizer.json` where there is one: `AutoTokenizer`, used otherwise, imports torch, which takes seconds."""
    with without_collections():
        from transformers import PreTrainedTokenizerFast

    if not trust_remote_code:
        with suppress(OSError, ValueError):
            return PreTrainedTokenizerFast.from_pretrained(model)
    with without_collections():
        from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)


class Marked:
    """A copy of a tokenizer of the library `tokenizers` in which only marked places become control tokens, for texts that spell some out.

    Every control token has another text there, which nobody can write because it is drawn at random; the template's parts are translated to
    these texts. So normalizers, merges and prefix spaces act as they always do.
    """

    def __init__(self, backend: Any, control: Mapping[str, int]) -> None:
        """`control`: the texts of the control tokens and their ids. Raises what the library does where it cannot make the copy."""
        salt = secrets.token_hex(16)
        self._names = {text: f"{salt}{number:08d}" for number, text in enumerate(control)}
        self._copy = type(backend).from_str(json.dumps(_renamed(json.loads(backend.to_str()), self._names)))
        added = {token.content: id_ for id_, token in backend.get_added_tokens_decoder().items()}
        self._ids = {self._copy.token_to_id(self._names.get(text, text)): id_ for text, id_ in (added | dict(control)).items()}
        self._texts = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))

    def encode(self, parts: Sequence[str]) -> list[int]:
        """The ids of `parts` (`Tokenizer.encode_parts`)."""
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
