"""The file of a report: a page enters, the file is whole or as it was. A file that is no page of ours is never replaced."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UsageError, reason
from pipeline.files import new_file
from pipeline.report.page import is_page
from pipeline.trace.read import check_folder

NAME = "report.html"
_START = 4096


def place_for(runs: Sequence[Path], output: Path | None) -> Path:
    """Where the report of `runs` goes: `output`, or else into the run's folder, or for several runs into the working folder.

    Raises `UsageError` where it cannot go there, and `InputError` where a run is no folder, before anything is read or drawn.
    """
    for run in runs:
        check_folder(run)
    path = output or (runs[0] / NAME if len(runs) == 1 else Path(NAME))
    if path.is_dir():
        raise UsageError(f"--output {path}: is a folder; name a file, such as {path / NAME}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {path.absolute().parent}")
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = is_page(file.read(_START))
    except FileNotFoundError:
        return path
    except OSError as error:
        raise _unwritable(path, error) from error
    if not ours:
        raise UsageError(f"{path}: is there already and no report; name another file with --output")
    return path


def write(path: Path, text: str) -> None:
    """Put `text` in the place of what `path` was; raises `UsageError` where that cannot be done."""
    try:
        with new_file(path) as draft:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written: {reason(error)}; name another file with --output")
