"""The report of an unexpected error: a message, and a file with its traceback for whoever fixes it."""

import traceback
from tempfile import NamedTemporaryFile

from pipeline.redaction import redact


def sentence_of(error: BaseException) -> str:
    """A message for the user about an unexpected error, whose traceback is kept in a new file, without secrets."""
    lines = [*str(error).strip().splitlines(), ""]
    what = f"unexpected {type(error).__name__}{': ' if lines[0] else ''}{lines[0]}"
    return f"{what}; this is a bug in pipeline: please report it with {_kept(error)}"


def _kept(error: BaseException) -> str:
    try:
        with NamedTemporaryFile(
            "w", prefix="pipeline-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(redact("".join(traceback.format_exception(error))))
    except OSError:
        return "the traceback that --debug shows"
    return f"{file.name} (or the traceback that --debug shows)"
