"""The run folder of one session: options enter; the folder leaves, held by this process until the session ends, with the run in it.

It is held before anything else about the run is checked, so that two processes never start a run in one folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from pipeline.errors import InputError
from pipeline.files import is_draft
from pipeline.session.options import RunOptions, check_resume
from pipeline.store.folder import BEFORE_A_RUN, LOCK, hold, hold_default, hold_output
from pipeline.store.run_file import FILE, RunFile

RUNS = Path("runs")
"""Where run folders are made that the user does not name."""


class Claim(Struct, frozen=True, kw_only=True):
    """The place of a run, which is this process's alone."""

    folder: Path | None = None
    """The run folder; None for a run that writes nothing to disk."""
    old: RunFile | None = None
    """The `run.json` of the run to resume; None for a new run."""
    nothing_to_do: bool = False
    """The run is to be resumed and is finished already; then the folder is not held."""


@contextmanager
def claimed(options: RunOptions, name: str, *, on_disk: bool = True) -> Iterator[Claim]:
    """Hold the folder of `options` until the end, or a new one called after the plan's `name` and the time.

    Without `on_disk` a run that has no `output` gets no folder. Raises `UsageError` where options do not fit together or to the
    folder, or where another process is at work in it.
    """
    check_resume(options)
    if options.output is None:
        if not on_disk:
            yield Claim()
            return
        with hold_default(RUNS, name) as folder:
            yield Claim(folder=folder)
        return
    if options.resume and (options.output / FILE).is_file() and (old := old_run(options.output)) and is_over(old, options):
        yield Claim(folder=options.output, old=old, nothing_to_do=True)
        return
    _remove_drafts(options.output)
    with hold_output(options.output, FILE, resume=options.resume):
        is_there = (options.output / FILE).is_file()
        yield Claim(folder=options.output, old=old_run(options.output) if is_there else None)


def _remove_drafts(folder: Path) -> None:
    """Remove the drafts in `folder` where a process was killed before its run had begun, so that one can begin there.

    Raises `UsageError` where another process is at work in it.
    """

    def drafts() -> list[Path]:
        found = list(folder.iterdir()) if (folder / LOCK).is_file() else []
        left = [path for path in found if is_draft(path)]
        return left if {path.name for path in found} - {path.name for path in left} <= BEFORE_A_RUN else []

    with suppress(OSError):
        if drafts():
            with hold(folder):
                for draft in drafts():
                    draft.unlink(missing_ok=True)


def old_run(folder: Path) -> RunFile | None:
    """The `run.json` of the run to resume in `folder`; None where the process was killed while its engines were being opened, so that there
    is nothing to resume from. Raises `InputError`."""
    old = RunFile.read(folder)
    if old.status == "starting":
        return None
    if not old.sessions:
        raise InputError(str(folder / FILE), "was written by an earlier version, whose runs cannot be resumed; start a new run")
    return old


def is_over(old: RunFile, options: RunOptions) -> bool:
    """Whether the run `old` is finished, with every chain of its input, and `options` ask for no more."""
    if old.status != "finished" or old.input.part != options.part or (options.retry_failed and old.totals.chains_failed):
        return False
    return old.totals.chains >= old.input.rows * old.samples
