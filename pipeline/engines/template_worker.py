"""The worker process of `chat_template`: reads `[template, messages, variables]`, a JSON array a line, and replies `[text, error]`.

Started as `python -m pipeline.engines.template_worker FD LIMIT_S MEMORY_BYTES CHARACTERS`; FD is its end of the socket. A template is a
program that came with a model. It runs in the sandbox that transformers runs it in, which keeps it from files and from Python; this
process has a limit on its memory, and is killed by the system itself when a template computes for longer than LIMIT_S. It ends when
the other side closes the socket.
"""

import json
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, ext, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.worker_process import leave_signals, limit_memory


class Generation(ext.Extension):
    """The tag `generation`, which marks what a model is trained on; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 - as in jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """The environment in which transformers renders chat templates."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as it is, where jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    """What a template calls to refuse a conversation."""
    raise TemplateError(message)


def main() -> None:
    """Entry point of the process: limit its resources and render until the socket is closed."""
    leave_signals()
    channel = socket.socket(fileno=int(sys.argv[1]))
    limit_s, memory, most = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    limit_memory(memory)
    serve(limit_s, most, channel.makefile("r", encoding="utf-8"), lambda said: channel.sendall(said.encode()))


def serve(limit_s: float, most: int, questions: Iterable[str], say: Callable[[str], Any]) -> None:
    """Answer every one of `questions` through `say`; one that computes for more than `limit_s` seconds ends the process."""
    compiled = lru_cache(environment().from_string)
    for line in questions:
        source, messages, variables = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # the default action of its signal ends the process
        try:
            said = answer(compiled(source), messages, variables, most)
        except Exception as error:  # a template fails in any way
            said = None, f"{error}" or type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        say(json.dumps(said) + "\n")


def answer(template: Any, messages: Sequence[dict[str, str]], variables: dict[str, Any], most: int) -> tuple[str | None, str | None]:
    """What the template renders, or why that cannot be used."""
    try:
        text = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True, **variables)
    except MemoryError:
        return None, "it uses too much memory"
    return (text, None) if len(text) <= most else (None, f"it writes {len(text):,} characters")


if __name__ == "__main__":
    main()
