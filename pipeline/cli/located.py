"""Run folders and problems that a command is given by path or URL: text enters, a path leaves. All of that is decided here.

What a URL names is on this machine until the command ends (`terminal.places`); then what was written into it is uploaded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pipeline.cli.terminal.notices import print_notice
from pipeline.cli.terminal.places import call, call_by_path, is_opening, open_until_end
from pipeline.data.obtain import problem_files
from pipeline.errors import RunFolderError
from pipeline.remote.folder import mirrored_folder, written_folder
from pipeline.remote.inputs import fetch_problems
from pipeline.remote.reader import Mirror
from pipeline.remote.url import is_url, parse_url

_mirrors: dict[Path, Mirror] = {}


class RunFolder(click.Path):
    """A run folder that a command reads, by path or URL; what the command writes into it is uploaded at its end."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _is_to_be_opened(value, ctx):
            return super().convert(value, param, ctx)
        folder, mirror = mirrored_folder(value, print_notice)
        if mirror is not None and folder not in _mirrors:
            _mirrors[folder] = mirror
            call(str(folder), str(parse_url(value)))
            open_until_end.enter_context(_closed(folder, mirror))
        return folder


class ProblemFile(click.Path):
    """A file of problems by path or URL."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _is_to_be_opened(value, ctx):
            return super().convert(value, param, ctx)
        [path] = problems_of(value)
        return path


def run_folder(text: str, *, new: bool) -> Path:
    """The run folder that a command writes, by path or URL, until the command ends; `new`: there is no run yet. Raises `UsageError`."""
    if not is_url(text):
        return Path(text)
    return open_until_end.enter_context(_written(text, new))


def problems_of(*inputs: str) -> list[Path]:
    """The paths of inputs of a command, until it ends; see `problem_files`."""
    paths = open_until_end.enter_context(problem_files(inputs, fetch_problems, print_notice))
    for text, path in zip(inputs, paths, strict=True):
        if is_url(text) and not text.startswith("file:"):
            call(str(path), text)
    return paths


def input_urls(inputs: tuple[str, ...]) -> tuple[str, ...]:
    """The URL of each input, empty for those that are files of this machine; nothing where all are."""
    urls = tuple(text if is_url(text) and not text.lower().startswith("file:") else "" for text in inputs)
    return urls if any(urls) else ()


def refresh(folder: Path) -> None:
    """Bring a folder that a URL names up to date; any other is as it is."""
    if (mirror := _mirrors.get(folder)) is not None:
        mirror.refresh()


def _is_to_be_opened(value: Any, ctx: click.Context | None) -> bool:
    """Whether a value is a URL, in a command that is carried out; others are only parsed, for completion or by a test."""
    return isinstance(value, str) and is_url(value) and is_opening() and not (ctx is not None and ctx.resilient_parsing)


@contextmanager
def _written(text: str, new: bool) -> Iterator[Path]:
    """As `written_folder`; where not all could be uploaded the folder is called by its path, as it is what matters then."""
    folder: Path | None = None
    try:
        with written_folder(text, print_notice, new=new) as folder:
            call(str(folder), text.rstrip("/"))
            yield folder
    except RunFolderError:
        call_by_path(str(folder))
        raise


@contextmanager
def _closed(folder: Path, mirror: Mirror) -> Iterator[None]:
    """Close the mirror at the end."""
    try:
        yield
    finally:
        del _mirrors[folder]
        try:
            mirror.close()
        except RunFolderError:
            call_by_path(str(folder))
            raise
