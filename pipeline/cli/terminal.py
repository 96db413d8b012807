"""What a command prints: results on stdout, notices and errors on stderr and in the log file, all without control characters."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType

import click

from pipeline.errors import Interrupted, PipelineError, UsageError, reason
from pipeline.files import one_line, sanitize


class CommandOutput(AbstractContextManager["CommandOutput"]):
    """What a command prints beside its results, the `obj` of its context. As a context manager it closes the log file."""

    def __init__(
        self, *, quiet: bool = False, verbose: bool = False, log_file: Path | None = None, urls: dict[str, str] | None = None
    ) -> None:
        """`quiet`: only errors; `verbose`: also what the processes of engines print; `log_file` gets everything, each line with its time;
        `urls`: the URLs that local paths stand for. Raises `UsageError` where the log file cannot be written."""
        self.quiet, self.verbose, self.log_file = quiet, verbose, log_file
        self.urls = {} if urls is None else urls
        try:
            self._file = None if log_file is None else log_file.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"--log-file {log_file}: not writable: {reason(error)}") from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, PipelineError) and not isinstance(error, Interrupted):
            self.log(f"error: {error}")
        self._close()

    def notice(self, text: str) -> None:
        """Print one line on stderr, unless the command is quiet."""
        self.log(text)
        if not self.quiet:
            self._print(text)

    def error(self, text: str) -> None:
        """Print `error: TEXT` on stderr, also where the command is quiet."""
        self.log(f"error: {text}")
        self._print(f"error: {text}")

    def log(self, text: str) -> None:
        """Write one line into the log file, if there is one. If it cannot be written any more, as on a full disk, the command continues."""
        try:
            if self._file is not None:
                print(datetime.now().astimezone().isoformat(timespec="seconds"), self._line(text), file=self._file, flush=True)
        except OSError as error:
            self._close()
            self.error(f"--log-file {self.log_file}: no longer written: {reason(error)}")

    def prints(self, what: str, show: Callable[[], None]) -> bool:
        """Call `show`, which prints `what`; False where stdout cannot be written, which an error says: all of it is in files, too.

        A reader that has gone (`| head`) wanted no more, and is no error.
        """
        try:
            show()
        except OSError as error:
            discard_stdout()
            if not isinstance(error, BrokenPipeError):
                self.error(f"{what} could not be printed: {reason(error)}")
                return False
        return True

    def _print(self, text: str) -> None:
        with suppress(OSError):  # nobody can be told
            print(self._line(text), file=sys.stderr, flush=True)

    def _line(self, text: str) -> str:
        for path, url in self.urls.items():
            text = text.replace(path, url)
        return one_line(text)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # the failed write was reported already
                file.close()


def output() -> CommandOutput:
    """The output of the command that runs in this thread."""
    context = click.get_current_context(silent=True)
    return context.obj if context is not None and isinstance(context.obj, CommandOutput) else CommandOutput()


def print_notice(text: str) -> None:
    """Print one line on stderr, unless the command is quiet."""
    output().notice(text)


def print_line(text: str) -> None:
    """Print one line on stdout."""
    print(one_line(text), flush=True)


def print_page(page: str | bytes) -> None:
    """Print text of several lines on stdout, control characters as `\\uXXXX`, which leaves JSON the same JSON."""
    text = page if isinstance(page, str) else page.decode()
    print(sanitize(text), end="" if text.endswith("\n") else "\n", flush=True)


def print_json(pieces: Iterable[str]) -> None:
    """Print JSON in pieces as `print_page` does; where a piece is ASCII, JSON leaves it one control character."""
    sys.stdout.writelines(piece if piece.isascii() and "\x7f" not in piece else sanitize(piece) for piece in pieces)
    sys.stdout.flush()


def discard_stdout() -> None:
    """Let stdout lead nowhere from now on, with all that could not be written to it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
