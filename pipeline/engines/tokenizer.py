"""The `Tokenizer` contract over the files of a Hugging Face model: `tokenizer.json`, its settings and its chat template, which is foreign
code and runs in a sandbox. No code that comes with a model runs here.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from pipeline.engines.hub import check_hub
from pipeline.errors import GraphError, RequestRefused, boundary, reason

T = TypeVar("T")
_MARKUP = re.compile(r"[<>\[\]|#~@^=*_]")
"""A character that markup has and words have not."""
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation\b")
"""The tags that a training puts around what an assistant wrote in a template. A prompt needs their contents alone."""


def ids_to_stop(
    ids: Sequence[int], finish: str, stop: object, stop_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> tuple[tuple[int, ...], int, str | int | None]:
    """Of what vLLM wrote, with its finish and stop reasons: the ids to keep, how many were sampled for them, and the stop that ended them,
    None for an end of sequence or a limit. An end of sequence was sampled, though it is not kept; what token-level speculation wrote
    beyond a stop string was not."""
    count = len(ids)
    if finish == "length":
        return tuple(ids), count, None
    if isinstance(stop, str):
        while count > 1 and stop in decode(ids[: count - 1]):
            count -= 1
        return tuple(ids[:count]), count, stop
    if ids and ids[-1] in stop_ids:
        return tuple(ids), count, ids[-1]
    return tuple(ids[:-1]), count, None


class HFTokenizer:
    """The `Tokenizer` of a model on Hugging Face's hub or in a folder, with the chat template published with it."""

    def __init__(self, model: str, template_arguments: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`model` is a folder or a hub name; raises `GraphError` when its tokenizer cannot be loaded.

        `template_arguments` are passed to its chat template in addition to the messages, such as `enable_thinking`.
        """
        with boundary(GraphError, f"{model}: its tokenizer cannot be read", foreign=Exception):
            self._backend, self._source, self._named = _read(model)
        self._model, self._arguments = model, template_arguments
        added = self._backend.get_added_tokens_decoder()
        self.special_ids: dict[str, int] = {token.content: id_ for id_, token in added.items()}
        end = self._backend.token_to_id(self._named.get("eos_token", ""))
        self.eos_ids = frozenset(() if end is None else (end,))
        self._special = {id_ for id_, token in added.items() if token.special and token.content}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest token id; a model may have more."""
        return 1 + max(self._backend.get_vocab().values())

    @cached_property
    def vocabulary(self) -> str:
        ordinary = sorted(item for item in self._backend.get_vocab().items() if item[0] not in self.special_ids)
        return hashlib.blake2b(repr(ordinary).encode(), digest_size=16).hexdigest()

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokenizers hold words, digits and white space among their added tokens, too. Control tokens are those that are marked as special,
        that are written as a tag (`<think>` is not marked in the tokenizers of R1 and Qwen3), or that are markup of the chat template."""
        tags = {id_ for text, id_ in self.special_ids.items() if text[:1] + text[-1:] in ("<>", "[]") and any(map(str.isalpha, text))}
        markup = {id_ for text, id_ in self.special_ids.items() if _MARKUP.search(text) and text in self._source}
        return frozenset(self._special | tags | markup)

    def encode(self, text: str) -> list[int]:
        """Raises `RequestRefused` where the tokenizer fails on the text."""
        return self._called(self._backend.encode, text, add_special_tokens=False).ids

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Raises `RequestRefused` where the tokenizer fails on the text."""
        return self._encoded("".join(parts), b"".join(bytes([number % 2]) * len(part) for number, part in enumerate(parts)))

    def decode(self, ids: Sequence[int]) -> str:
        """Raises `RequestRefused` where the tokenizer fails on the ids."""
        return self._called(self._backend.decode, list(ids), skip_special_tokens=False)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Raises `GraphError` where the model has no template, as a reward model may, or the template fails."""
        if not self._source:
            raise GraphError(self._model, "its tokenizer has no chat template; use an instruction or reasoning model")
        for name in self._arguments:
            if not re.search(rf"\b{re.escape(name)}\b", self._source):
                raise GraphError(self._model, f"its chat template does not use `{name}`, set in chat_template_kwargs; leave it out")
        with boundary(GraphError, f"{self._model}: its chat template fails", foreign=Exception):
            return self._template.render({**self._named, **self._arguments, "messages": list(messages)})

    @cached_property
    def _template(self) -> Template:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
        environment.globals |= {"tools": None, "documents": None, "add_generation_prompt": True}
        return environment.from_string(_GENERATION.sub(lambda tag: f"{tag[1]}{tag[2] or ''}with", self._source))

    def _encoded(self, text: str, others: bytes) -> list[int]:
        """The ids of `text`, whose characters marked in `others` are not the template's. Where others spelled out a control token it is cut
        behind that token's first character, and the pieces are encoded one by one. White space around a control token may be others'."""
        encoding, cuts = self._called(self._backend.encode, text, add_special_tokens=False), [0]
        for place in [place for place, id_ in enumerate(encoding.ids) if id_ in self.control_ids]:
            start, end = encoding.token_to_chars(place) or (0, 0)
            said = text[start:end]
            start, end = end - len(said.lstrip()), start + len(said.rstrip())
            if any(others[start:end]):
                if end - start == 1:
                    raise RequestRefused(f"the text holds the character {said.strip()!r}, a control token of {self._model}")
                cuts.append(start + 1)
        if len(cuts) == 1:
            return encoding.ids
        pieces = pairwise([*cuts, len(text)])
        return [id_ for start, end in pieces for id_ in self._encoded(text[start:end], others[start:end])]

    def _called(self, call: Callable[..., T], given: object, **how: bool) -> T:
        """What the library makes of something; raises `RequestRefused` where it fails, or its Rust code panics, as at a regex that runs
        over."""
        try:
            return call(given, **how)
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise RequestRefused(f"the tokenizer of {self._model} fails: {reason(error)}") from error
            raise


def _tojson(value: Any, **how: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **how})


def _raise(message: str) -> None:
    raise TemplateError(message)


def _read(model: str) -> tuple[Backend, str, dict[str, str]]:
    """The tokenizer in a folder or on the hub, the source of its chat template, empty where there is none, and texts of tokens by their
    names, such as `eos_token`. Raises any `Exception`."""
    folder = Path(model)
    if not folder.is_dir():
        check_hub(model)
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, allow_patterns=["*.json", "*.jinja"]))
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError("no tokenizer.json; write one: AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers")
    backend, settings = Backend.from_file(str(folder / "tokenizer.json")), _object_in(folder / "tokenizer_config.json")
    backend.no_truncation()
    backend.no_padding()
    if "added_tokens_decoder" not in settings:
        settings |= _object_in(folder / "special_tokens_map.json")
    given = {name: value.get("content") if isinstance(value, dict) else value for name, value in settings.items()}
    named = {name: text for name, text in given.items() if name.endswith("_token") and isinstance(text, str)}
    backend.add_tokens([AddedToken(**fields) for fields in settings.get("added_tokens_decoder", {}).values()])
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([AddedToken(text, special=True) for text in named.values() if text not in known])
    template = settings.get("chat_template")
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text(encoding="utf-8")
    if isinstance(template, list):  # several by name
        template = {each["name"]: each["template"] for each in template}.get("default")
    return backend, template or "", named


def _object_in(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_bytes())) if file.is_file() else {}
