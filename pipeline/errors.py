"""Every error that this package raises, and `boundary`, which turns errors of other packages into them.

PipelineError
├── UsageError            the graph, the options or the input are wrong; nothing was started (exit code 2)
│   ├── GraphError        a graph or engines file
│   ├── InputError        a problems file
│   ├── StoreError        an object store cannot be used
│   └── MissingExtra      an optional package is not installed
├── RunError              the run stopped early; what is finished is on disk (exit code 1)
│   ├── EngineDead        an engine's process or server is gone
│   ├── ReplicaLost       a replica is gone; others may continue
│   ├── RunFolderError    the run folder cannot be written
│   ├── OutOfMemory       this process ran out of memory
│   └── Unfinished        a run of the Python API stopped early; it holds what was finished
└── ChainError            one chain failed; it is recorded as such and the others continue (exit code 3)
    ├── BadRow            an input row that holds no problem
    ├── Withdrawn         whoever asked for the chain no longer wants it
    ├── NeverGenerated    a replayed chain needs text that its recorded run does not hold
    ├── EngineUnavailable an engine is temporarily unavailable
    │   └── BadCompletion     an engine's reply is not a valid answer to its request
    └── RequestRefused    an engine refused one request
        └── ContextOverflow   the prompt leaves no room for an output
"""

import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any


def install_command(extra: str) -> str:
    """The command that installs an optional extra of this package, whose name on the index is not its import name."""
    return f'pip install "speculative-pipeline[{extra}]"'


class PipelineError(Exception):
    """Base of all errors of this package; its text is one message for the user. It can be pickled whatever its `__init__` takes."""

    def __init__(self, *parts: str) -> None:
        """`parts` say where and what, and are joined by colons."""
        super().__init__(": ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__


class UsageError(PipelineError):
    """What the user gave is wrong; nothing was started."""


class PlacedError(UsageError):
    """What the user gave is wrong at `where`, for the reason `what`, which names the remedy."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where, self.what = where, what


class GraphError(PlacedError):
    """A graph or engines file is wrong: `where` is the file, with the line and the path in it."""


class InputError(PlacedError):
    """A problems file as a whole cannot be used: `where` is the file, with the row where one is known."""


class StoreError(PlacedError):
    """An object store cannot be used: `where` is its URL."""


class MissingExtra(UsageError):
    """`what` was asked for and needs `package`, which comes with the optional `extra` of this package. `result` is what there is without
    it."""

    def __init__(self, what: str, package: str, extra: str, result: Any = None) -> None:
        super().__init__(f"{what} needs the package `{package}`, which is not installed: {install_command(extra)}")
        self.result = result


def require(what: str, extra: str, *packages: str) -> None:
    """Raise `MissingExtra` for the first of these packages of an optional `extra` that cannot be found; `what` needs them. Loads none."""
    for package in packages:
        if (found := find_spec(package)) is None or found.origin is None:  # a folder `datasets` may pass for the package
            raise MissingExtra(what, package.replace("_", "-"), extra)


class RunError(PipelineError):
    """The run had to stop before its end."""


class EngineDead(RunError):
    """The engine of `role` is gone, for the reason `exit_reason`."""

    def __init__(self, role: str, exit_reason: str) -> None:
        super().__init__(f"engine {role!r} died: {exit_reason}")
        self.role, self.exit_reason = role, exit_reason


class ReplicaLost(RunError):
    """A replica is gone."""


class RunFolderError(RunError):
    """The run folder cannot be created or written."""


class OutOfMemory(RunError):
    """This process has used all the memory that it may use."""

    def __init__(self) -> None:
        super().__init__("out of memory; free some, raise the limit (`ulimit -v`, or the container's), or use a smaller batch size")


class Unfinished(RunError):
    """A run of the Python API stopped early, for the reason `error`; `result` is a `pipeline.Result` of what was finished."""

    def __init__(self, error: PipelineError, result: Any) -> None:
        super().__init__(str(error))
        self.error, self.result = error, result


class Interrupted(PipelineError):
    """The user asked the run to stop."""

    def __init__(self) -> None:
        super().__init__("interrupted")


class ChainError(PipelineError):
    """One chain cannot continue; the others can."""


class BadRow(ChainError):
    """Row `row` (counted from 1) of `where` holds no problem to solve; in the run it is called `problem_id`."""

    def __init__(self, where: str, row: int, what: str, problem_id: str | None = None) -> None:
        super().__init__(f"{where}, row {row}: {what}")
        self.where, self.row, self.what = where, row, what
        self.problem_id = problem_id or f"(row {row})"


class Withdrawn(ChainError):
    """Whoever asked for the chain no longer wants it."""


class NeverGenerated(ChainError):
    """A recorded run holds no answer to a request, for the reason `why`. The message names no chain, so that equal failures can be
    grouped."""

    def __init__(self, why: str) -> None:
        super().__init__(f"needs text that was never generated: {why}")


class EngineUnavailable(ChainError):
    """The engine of `role` is temporarily unavailable: the same request may be sent again, if the engine said so not
    before `retry_after_s` seconds have passed."""

    def __init__(self, role: str, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"engine {role!r} {what}")
        self.role, self.what, self.retry_after_s = role, what, retry_after_s


class BadCompletion(EngineUnavailable):
    """The engine of `role` replied with something that is not an answer to the request, for the reason `flaw`."""

    def __init__(self, role: str, request_id: str, flaw: str) -> None:
        super().__init__(role, f"gave no valid answer to request {request_id!r}: {flaw}")


class RequestRefused(ChainError):
    """An engine refused a request before running it."""


class ContextOverflow(RequestRefused):
    """A prompt of `input_tokens` leaves no room for an output in a context of `max_model_len` tokens."""

    def __init__(self, input_tokens: int, max_model_len: int) -> None:
        super().__init__(f"a prompt of {input_tokens} tokens leaves no room in a context of {max_model_len}")


@contextmanager
def boundary(ours: type[PipelineError], *parts: str, foreign: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn the `foreign` errors raised in the body into `ours(*parts, reason)`, chained to them."""
    try:
        yield
    except foreign as error:
        raise ours(*parts, reason(error)) from error


def reason(error: BaseException) -> str:
    """What went wrong according to an error, in one line; of an `OSError` the system's message without the name of the file."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def with_place(error: BaseException) -> str:
    """The message of an error; if it is not one of this package, with the file and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, PipelineError) or not frames:
        return str(error)
    return f"{error} ({frames[-1].filename}, line {frames[-1].lineno})"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one in a group, says that there was no memory: one of Python, of the system, or of a library it loads."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_out_of_memory, error.exceptions))
    text = str(error)
    return isinstance(error, MemoryError) or "annot allocate memory" in text or "failed to map segment" in text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the `known` names that `name` was most likely meant to be; None when none is near."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=0.65)), None)


MAX_NAMES = 10
"""Names that an error lists."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause that names the one of the `known` names that `name` was meant to be, or else all of them, or the nearest of many."""
    known = sorted(set(known))
    if near := nearest(name, known):
        return f"did you mean `{near}`?"
    if len(known) <= MAX_NAMES:
        return f"known are {', '.join(f'`{each}`' for each in known)}" if known else "none are known here"
    like = get_close_matches(name, known, n=MAX_NAMES, cutoff=0.0)
    return f"{len(known):,} known, such as {', '.join(f'`{each}`' for each in like)}"
