"""Run folders and problems that a command is given by path, name or URL: text enters, a path leaves. All of that is decided here.

What a URL names is on this machine until the command ends; what the command wrote there is uploaded then.
"""

from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from pipeline.cli.terminal import output
from pipeline.remote.url import is_url, parse_url

T = TypeVar("T")
RUNS = Path("runs")
"""The folder in which a run is found by its name alone."""
NO_URL = "a URL, where only a path of this machine can be used"


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
            self.fail(f"{value}: {NO_URL}", param, ctx)
        return super().convert(value, param, ctx)


class RunFolder(click.Path):
    """A run folder that a command reads: a path, the name of a run in `runs`, or a URL; one that it `writes` is on this machine."""

    def __init__(self, *, writes: bool = False) -> None:
        super().__init__(path_type=Path)
        self._writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(str(value)) or not _is_carried_out(ctx):
            path = Path(value)
            return Located(RUNS / path if not path.exists() and (RUNS / path).exists() else path)
        if self._writes:
            self.fail(f"{value}: {NO_URL}", param, ctx)
        folder = _opened(import_module("pipeline.remote.folder").read_folder(str(value)))
        return _known_as(folder, str(parse_url(str(value))))


class ProblemFile(click.Path):
    """A file of problems by path or URL, or a data set by name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return problems_of(str(value))[0] if _is_carried_out(ctx) else Path(value)


def written_run(text: str, *, new: bool) -> Located:
    """The run folder that a command writes, by path or URL, until the command ends; `new`: there is no run yet. Raises `UsageError`."""
    if not is_url(text):
        found: Located = RunFolder().convert(text, None, None) if not new else Located(Path(text))
        return found
    return _known_as(_opened(import_module("pipeline.remote.folder").written_folder(text, new=new)), text.rstrip("/"))


def runs_in(folder: Path) -> list[Path]:
    """The run in the folder, or else the runs in it, as in that of a sweep, latest first; raises `InputError` where there is none."""
    there = import_module("pipeline.store.folder")
    found: list[Path] = [] if (folder / there.FILE).exists() else import_module("pipeline.analysis.progress").run_folders(folder, depth=2)
    if not found:
        there.check_run(folder)
    return found or [folder]


def problems_of(*inputs: str) -> list[Path]:
    """The paths of inputs of a command, until it ends; see `problem_files`."""
    files, fetch = import_module("pipeline.data.inputs").problem_files, import_module("pipeline.remote.inputs").fetch_problems
    paths: list[Path] = _opened(files(inputs, fetch, output().notice))
    output().urls.update((str(path), name) for path, name in zip(paths, inputs, strict=True) if str(path) != name)
    return paths


def _is_carried_out(ctx: click.Context | None) -> bool:
    """Whether a command is; others are only parsed, for completion or by a test."""
    return ctx is not None and ctx.obj is not None


def _known_as(folder: Path, url: str) -> Located:
    """The folder, called by its URL in all that the command prints."""
    output().urls[str(folder)] = url
    return Located(folder, url)


def _opened(manager: AbstractContextManager[T]) -> T:
    """What the manager gives; it is closed when the command has ended, whether it succeeded or not."""
    return click.get_current_context().find_root().with_resource(manager)
