"""Lines for the user: on stderr, and with `--log-file` in a file, each with its time. No secret is in them, and no control character."""

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec import Struct

from pipeline.cli.commands import option
from pipeline.cli.terminal.places import with_urls
from pipeline.errors import UsageError, reason
from pipeline.redaction import redact
from pipeline.text import one_line


class NoticeOptions(Struct, frozen=True):
    """What a command is to print on stderr."""

    quiet: bool = False
    """Only errors."""
    verbose: bool = False
    """Also what the processes of engines print."""
    timestamps: bool = False
    """Every line with its time, and no display that changes."""
    log_file: Path | None = None


class Notices:
    """Where lines go: to stderr as the options say, and all to `file`, if there is one."""

    def __init__(self, options: NoticeOptions | None = None, file: TextIO | None = None) -> None:
        self.options, self._file = options or NoticeOptions(), file

    def say(self, text: str, *, error: bool = False, file_only: bool = False) -> None:
        """Print one line; `file_only`: to the file alone."""
        line = one_line(redact(with_urls(text)))
        stamped = f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}"
        self._keep(stamped)
        if not file_only and (error or not self.options.quiet):
            print(stamped if self.options.timestamps else line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file; nothing goes there any more."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what it could not write was said when it could not
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


def options() -> NoticeOptions:
    """What the command was asked to print."""
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


def notice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes long the options `--quiet`, `--verbose`, `--timestamps` and `--log-file`."""

    @option("-q", "--quiet", is_flag=True, help="Print only errors and results.", heading="Display")
    @option("-v", "--verbose", is_flag=True, help="Also print the logs of the engines' processes.", heading="Display")
    @option("--timestamps", is_flag=True, help="Plain lines with the time instead of a live display.", heading="Display")
    @option(
        "--log-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Append messages, progress and engine logs to FILE.",
        heading="Display",
    )
    @wraps(command)
    def noticed(*args: Any, quiet: bool, verbose: bool, timestamps: bool, log_file: Path | None, **others: Any) -> Any:
        if quiet and verbose:
            raise UsageError("--quiet and --verbose: give one of them")
        notices_as(NoticeOptions(quiet=quiet, verbose=verbose, timestamps=timestamps, log_file=log_file))
        return command(*args, **others)

    return noticed
