"""Run folders and problems that a command is given by path or URL: text enters, a path leaves. All of that is decided here.

What a URL names is on this machine until the command ends; what the command wrote there is uploaded then.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from pipeline.cli.commands import Opened
from pipeline.cli.terminal import print_notice
from pipeline.remote.url import is_url, parse_url


class Located(Struct, frozen=True):
    """A run folder on this machine, and the URL that it stands for, if there is one; as text what the user calls it."""

    path: Path
    url: str = ""

    def __str__(self) -> str:
        return self.url or str(self.path)


class LocalPath(click.Path):
    """A path of this machine, for what no command reads from or writes to an object store."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(path_type=Path, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A URL is an error."""
        if is_url(str(value)):
            self.fail(f"{value}: a URL, where only a path of this machine can be used", param, ctx)
        return super().convert(value, param, ctx)


class RunFolder(click.Path):
    """A run folder that a command reads, by path or URL; one that it `writes` is on this machine."""

    def __init__(self, *, writes: bool = False) -> None:
        super().__init__(path_type=Path)
        self._writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _is_to_be_opened(value, ctx):
            return Located(Path(value))
        if self._writes:
            self.fail(f"{value}: a URL, where only a path of this machine can be used", param, ctx)
        folder = _opened(ctx).enter_context(import_module("pipeline.remote.folder").read_folder(value))
        _opened(ctx).urls[str(folder)] = url = str(parse_url(value))
        return Located(folder, url)


class ProblemFile(click.Path):
    """A file of problems by path or URL, or a data set by name."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is None or not isinstance(ctx.obj, Opened):
            return super().convert(value, param, ctx)
        [path] = problems_of(str(value))
        return path


def written_run(text: str, *, new: bool) -> Located:
    """The run folder that a command writes, by path or URL, until the command ends; `new`: there is no run yet. Raises `UsageError`."""
    if not is_url(text):
        return Located(Path(text))
    folder: Path = _opened().enter_context(import_module("pipeline.remote.folder").written_folder(text, new=new))
    _opened().urls[str(folder)] = text.rstrip("/")
    return Located(folder, text.rstrip("/"))


def problems_of(*inputs: str) -> list[Path]:
    """The paths of inputs of a command, until it ends; see `problem_files`."""
    files, fetch = import_module("pipeline.data.inputs").problem_files, import_module("pipeline.remote.inputs").fetch_problems
    paths: list[Path] = _opened().enter_context(files(inputs, fetch, print_notice))
    _opened().urls.update((str(path), name) for path, name in zip(paths, inputs, strict=True) if str(path) != name)
    return paths


def _opened(ctx: click.Context | None = None) -> Opened:
    """What is closed when the command has ended, whether it succeeded or not."""
    opened = (ctx or click.get_current_context()).obj
    assert isinstance(opened, Opened), "only a command that is carried out opens anything"
    return opened


def _is_to_be_opened(value: Any, ctx: click.Context | None) -> bool:
    """True for a URL in a command that is carried out; others are only parsed, for completion or by a test."""
    return isinstance(value, str) and is_url(value) and ctx is not None and isinstance(ctx.obj, Opened)
