"""Chat templates rendered as transformers renders them: messages enter, the prompt as text leaves.

A template is a program that comes with a model. It runs in the sandbox of jinja2, which keeps it from files and from Python, and ends when
it computes for too long, uses too much memory or writes too much.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any

from pipeline.errors import GraphError

LIMIT_S = 2.0
"""Most seconds for one prompt; templates take less than a millisecond."""
MAX_MEMORY_BYTES = 1 << 30
"""The address space by which this process may grow meanwhile, on systems that have such a limit (Linux)."""
MAX_CHARACTERS = 1 << 22
"""Longest prompt that is taken from a template, in characters."""
_ONE_AT_A_TIME = Lock()


class ChatTemplate:
    """The chat template of one model."""

    def __init__(self, model: str, source: str, variables: Mapping[str, Any]) -> None:
        """`source` is the template in Jinja; `variables` are what it may use in addition to the messages, such as `bos_token`."""
        self._model, self._source, self._variables = model, source, dict(variables)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt of `messages`, ending where the assistant starts to write. Raises `GraphError` where the template fails, or takes
        more time or memory than it may."""
        try:
            with _limited_memory():
                template = _compiled(self._source)  # which computes what is constant
                with _limited_time():
                    text: str = template.render(
                        messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._variables
                    )
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"it writes {len(text):,} characters")
        except MemoryError:
            flaw = "it uses too much memory"
        except Exception as error:  # a template fails in any way
            flaw = " ".join(str(error).split()) or type(error).__name__
        else:
            return text
        raise GraphError(f"{self._model}: its chat template fails", flaw)


@cache
def _compiled(source: str) -> Any:
    return _environment().from_string(source)


@cache
def _environment() -> Any:
    """The environment in which transformers renders chat templates."""
    from jinja2 import TemplateError, ext, nodes
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """The tag `generation`, which marks what a model is trained on; it changes nothing here."""

        tags = {"generation"}  # noqa: RUF012 - as in jinja2

        def parse(self, parser: Parser) -> list[nodes.Node]:
            """The statements inside the tag."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    made.filters["tojson"] = _to_json  # jinja2's own escapes it for HTML
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@contextmanager
def _limited_time() -> Iterator[None]:
    """Raises `TimeoutError` at the next line of what runs in its body once that took too long: any thread hears a trace function, and only
    the first one a signal."""
    deadline = time.monotonic() + LIMIT_S

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it runs for more than {LIMIT_S:g} s")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Raises `MemoryError` where this process takes too much memory: a single operation may ask for any amount."""
    with _ONE_AT_A_TIME:
        before = resource.getrlimit(resource.RLIMIT_AS)
        try:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        except OSError:
            taken = None
        limits = [each for each in before if each != resource.RLIM_INFINITY]
        if taken is not None:
            resource.setrlimit(resource.RLIMIT_AS, (min([taken + MAX_MEMORY_BYTES, *limits]), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
