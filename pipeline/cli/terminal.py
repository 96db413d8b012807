"""What a command prints: results on stdout, notices and errors on stderr and in the log file, without control characters."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from pipeline.errors import UsageError, reason
from pipeline.text import one_line, sanitize


class NoticeOptions(Struct, frozen=True):
    """How much a command prints on stderr."""

    quiet: bool = False
    """Only errors."""
    verbose: bool = False
    """Also what the processes of engines print."""
    log_file: Path | None = None


class Notices:
    """Where lines go: to stderr as the options say, and all to `file`, if there is one."""

    def __init__(self, options: NoticeOptions | None = None, file: TextIO | None = None) -> None:
        self.options, self._file = options or NoticeOptions(), file

    def say(self, text: str, *, error: bool = False, file_only: bool = False) -> None:
        """Print one line; `file_only`: to the file alone."""
        line = one_line(text)
        self._keep(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}")
        if not file_only and (error or not self.options.quiet):
            with suppress(OSError):  # nobody can be told
                print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file; nothing goes there any more."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # the failed write was reported already
                file.close()

    def _keep(self, line: str) -> None:
        """Write a line into the file; one that cannot be written any more, as on a full disk, is closed, and the command continues."""
        if self._file is None:
            return
        try:
            print(line, file=self._file, flush=True)
        except OSError as error:
            self.close()
            self.say(f"--log-file {self.options.log_file}: no longer written: {reason(error)}", error=True)


_PLAIN = Notices()
_now = _PLAIN


def print_notice(text: str) -> None:
    """Print one line on stderr, unless the command is quiet."""
    _now.say(text)


def print_error(text: str) -> None:
    """Print `error: TEXT` on stderr, also where the command is quiet."""
    _now.say(f"error: {text}", error=True)


def log(text: str) -> None:
    """Write one line into the log file, if there is one."""
    _now.say(text, file_only=True)


def notice_settings() -> NoticeOptions:
    """How much the command was asked to print on stderr."""
    return _now.options


def notices_as(chosen: NoticeOptions) -> None:
    """Print as these options say, until `notices_end`; raises `UsageError` where the log file cannot be written."""
    global _now
    try:
        file = None if chosen.log_file is None else chosen.log_file.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"--log-file {chosen.log_file}: not writable: {reason(error)}") from error
    _now = Notices(chosen, file)


def notices_end() -> None:
    """Close the log file, and print as without options again."""
    global _now
    _now.close()
    _now = _PLAIN


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


def printed(what: str, show: Callable[[], None]) -> bool:
    """Call `show`, which prints `what`, and return False where stdout cannot be written, which an error says: all of it is in files, too.

    A reader that has gone (`| head`) wanted no more, and is no error.
    """
    try:
        show()
    except OSError as error:
        discard_stdout()
        if isinstance(error, BrokenPipeError):
            return True
        print_error(f"{what} could not be printed: {reason(error)}")
        return False
    return True


def discard_stdout() -> None:
    """Let stdout lead nowhere from now on, with all that could not be written to it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
