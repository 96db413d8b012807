"""A model's chat template: messages enter, the text of a prompt leaves. Jinja renders it as `apply_chat_template` of transformers
does.

It is foreign code, which runs in a sandbox, and what it takes and writes is bounded.
"""

import json
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psutil
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 22
"""Longest prompt that is taken from a template, in characters."""
TEMPLATE_BYTES = 512 << 20
"""Most memory that a template may add to this process when it is tried, however it does: an operator, a filter, a loop."""
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation\b")
"""The tags that a training puts around what an assistant wrote. A prompt needs their contents alone."""


class ChatTemplate:
    """A template that has been tried on one message."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        """`variables` are given to it besides the messages. Raises any `Exception` where the template fails.

        The memory is bounded here alone: a bound on the process would fail other threads in mid-run.
        """
        with _bounded_memory():
            self._template = _environment().from_string(_GENERATION.sub(lambda tag: f"{tag[1]}{tag[2] or ''}with", source))
            self._variables = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
            self.render([{"role": "user", "content": "1 + 1"}])

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text that ends where the assistant starts to write. Raises any `Exception` where the template fails or writes too much."""
        text = self._template.render(self._variables, messages=list(messages))
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it writes {len(text):,} characters")
        return text


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja with what templates may use."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **how: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **how})

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment


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
