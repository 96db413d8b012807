"""The standard streams of a command, made so that printing never decides how the command ends.

A stream that was closed when the program started leads nowhere; text for a reader that has gone (`| head`) is dropped; characters
that a stream cannot encode are written as `\\uXXXX`. Only an stdout that cannot be written for another reason, such as a full disk, raises
`OSError`.
"""

import codecs
import io
import os
import sys
from typing import Any, TextIO

STDOUT, STDERR = 1, 2
_VISIBLE = "pipeline.visible"
"""The name of the error handler `visible`, for `open`."""


def guard_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams as this module describes them, unless the caller has put its own in their place.

    To be called once, before anything is opened.
    """
    for number in (0, STDOUT, STDERR):  # ascending: the lowest free number is the one that is given out
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error(_VISIBLE, visible)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _guarded(sys.stdout, STDOUT, BrokenPipeError)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _guarded(sys.stderr, STDERR, OSError)


def discard_stdout() -> None:
    """Let stdout lead nowhere from now on, with all that could not be written to it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)


def visible(error: UnicodeError) -> tuple[str, int]:
    """An error handler for `codecs`: characters that cannot be encoded as JSON escapes, so that JSON stays the same JSON."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2)), error.end


class _Lossy(io.FileIO):
    """An open file in which a write that fails with an error of the type `dropped` succeeds, and is lost."""

    def __init__(self, number: int, dropped: type[OSError]) -> None:
        super().__init__(number, "wb", closefd=False)
        self._dropped = dropped

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except self._dropped:
            return memoryview(content).nbytes


def _guarded(stream: TextIO | None, number: int, dropped: type[OSError]) -> TextIO:
    """A stream to the open file `number`, with the encoding of `stream`, which is None where that was closed."""
    file = io.BufferedWriter(_Lossy(number, dropped))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(file, encoding=encoding, errors=_VISIBLE, line_buffering=number == STDERR or file.isatty())
