"""Folders and files that the user has named by URLs: what was opened for a command, and their names in what is printed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from pipeline.redaction import redact
from pipeline.remote.url import is_url

open_until_end = ExitStack()
"""What is closed when the command has ended, whether it succeeded or not."""
_carried_out = False
_urls: dict[str, str] = {}


@contextmanager
def opening() -> Iterator[None]:
    """A body that carries a command out: only there anything is opened. What is open is closed at its end."""
    global _carried_out
    _carried_out = True
    try:
        with open_until_end:
            yield
    finally:
        _carried_out = False


def is_opening() -> bool:
    """Whether a command is being carried out: its words may also be parsed for their own sake."""
    return _carried_out


class LocalPath(click.Path):
    """A path of this machine, for what no command reads from or writes to an object store."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(path_type=Path, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A URL is an error."""
        if is_url(str(value)):
            self.fail(f"{redact(str(value))}: a URL, where only a path of this machine can be used", param, ctx)
        return super().convert(value, param, ctx)


def call(path: str, url: str) -> None:
    """From now on `path`, and what is below it, is called by its URL in what is printed."""
    _urls[path] = url


def call_by_path(path: str) -> None:
    """From now on `path` is called by its own name."""
    _urls.pop(path, None)


def with_urls(text: str) -> str:
    """`text` with URLs in place of the paths that have one."""
    for path, url in _urls.items():
        text = text.replace(path, url)
    return text


def forget_urls() -> None:
    """Call every path by its own name."""
    _urls.clear()
