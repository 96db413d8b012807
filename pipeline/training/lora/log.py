"""What a training tells as it goes: rows enter, `log.jsonl` and lines for the user leave; and the rows of a file that is there already.

A row is written when it comes. Those after the checkpoint from which a training continues are removed first, as they will be written again.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from pipeline.errors import InputError, RunError, boundary
from pipeline.files import new_file

FILE = "log.jsonl"
LINE_EVERY_S = 10.0
"""Seconds between two lines about steps; every validation has one."""
Tell: TypeAlias = Callable[[str], object]
"""Gets a line for the user."""


class StepRow(Struct, frozen=True, kw_only=True, tag="step", tag_field="kind"):
    """The steps since the last row."""

    step: int
    """Steps so far."""
    epoch: float
    """How often all examples were learnt from so far."""
    loss: float
    """Mean of the losses of these steps."""
    learning_rate: float
    """That of the last of them."""
    grad_norm: float
    """The length of the gradient in the last of them, before it was shortened."""
    time_unix_ns: int = 0


class ValidationRow(Struct, frozen=True, kw_only=True, tag="validation", tag_field="kind", omit_defaults=True):
    """One validation; that at step 0 is of the untouched model."""

    step: int
    epoch: float
    loss: float
    """Of a choice the mean of its examples, of replies that of their tokens."""
    perplexity: float | None = None
    """Of replies: the exponential of the loss."""
    accuracy: float | None = None
    """Of choices: the share of the examples whose likeliest option is right."""
    chance: float | None = None
    """The accuracy of an option drawn at random."""
    mass: float | None = None
    """Mean probability of all options together."""
    class_1_accuracy: float | None = None
    """SCoT 4.4: of the examples for which some option other than the one that rejects all is right, those for which one such is chosen."""
    class_1_chance: float | None = None
    class_1_examples: float | None = None
    class_2_accuracy: float | None = None
    """SCoT 4.4: of the examples for which no other option is right, those for which all are rejected."""
    class_2_chance: float | None = None
    class_2_examples: float | None = None
    time_unix_ns: int = 0


Row: TypeAlias = StepRow | ValidationRow


class Log:
    """The log of one training in progress."""

    def __init__(
        self,
        path: Path,
        tell: Tell,
        from_step: int = 0,
        now: Callable[[], float] = time.monotonic,
        show: Callable[[], object] | None = None,
    ) -> None:
        """`from_step`: the step to continue from; `now` is the clock, in seconds; `show` is called after each validation."""
        self._path, self._tell, self._now, self._show = path, tell, now, show
        self._begun, self._first, self._told = now(), from_step, -math.inf
        kept = [row for row in read_log(path) if row.step <= from_step] if from_step else []
        with new_file(path) as draft:
            draft.write_bytes(msgspec.json.Encoder().encode_lines(kept))

    def write(self, row: Row, steps: int) -> None:
        """Write a row of a training of `steps` steps; raises `RunError` where its loss is not a number."""
        if not math.isfinite(row.loss):
            if row.step == 0:
                what = f"the loss of the untouched model is {row.loss}"
                raise RunError(f"{what}; check its weights, or set precision: float32, and start again")
            raise RunError(f"the loss is {row.loss} at step {row.step}; lower learning_rate, or raise warmup, and start again")
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        now = self._now()
        if isinstance(row, ValidationRow):
            self._tell(validation_line(row, steps))
            if self._show is not None:
                self._show()
            if row.step == self._first:  # what came before the first step says nothing about the others
                self._begun = self._now()
        elif now - self._told >= LINE_EVERY_S or row.step >= steps:
            self._told = now
            done = row.step - self._first
            self._tell(step_line(row, steps, (now - self._begun) / done * (steps - row.step) if done else None))


def read_log(path: Path) -> list[Row]:
    """The rows of a log; none where there is no such file. A last line that a kill cut short is left out. Raises `InputError`."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    with boundary(InputError, str(path), foreign=(msgspec.DecodeError, UnicodeDecodeError)):
        return [msgspec.json.decode(line, type=Row) for line in lines[:-1]]


def step_line(row: StepRow, steps: int, eta_s: float | None) -> str:
    """One line about steps; `eta_s` are the seconds that are left, where they are known."""
    left = "-" if eta_s is None else duration(eta_s)
    return f"step {row.step:,}/{steps:,} · epoch {row.epoch:.2f} · loss {row.loss:.4g} · learning rate {row.learning_rate:.3g} · ETA {left}"


def validation_line(row: ValidationRow, steps: int) -> str:
    """One line about a validation."""
    parts = [f"step {row.step:,}/{steps:,}", f"validation loss {row.loss:.4g}"]
    if row.perplexity is not None:
        parts.append(f"perplexity {row.perplexity:.4g}")
    if row.class_1_accuracy is not None and row.class_1_chance is not None:
        parts.append(f"class 1 {row.class_1_accuracy:.1%} (chance {row.class_1_chance:.1%}, n {row.class_1_examples:.0f})")
    if row.class_2_accuracy is not None and row.class_2_chance is not None:
        parts.append(f"class 2 {row.class_2_accuracy:.1%} (chance {row.class_2_chance:.1%}, n {row.class_2_examples:.0f})")
    if row.accuracy is not None and row.chance is not None and row.mass is not None:
        parts += [f"accuracy {row.accuracy:.1%} (chance {row.chance:.1%})", f"mass {row.mass:.3f}"]
    return " · ".join(parts)


def validations(rows: Sequence[Row]) -> list[ValidationRow]:
    """The validations among `rows`."""
    return [row for row in rows if isinstance(row, ValidationRow)]


def duration(seconds: float) -> str:
    """A time as `1:02:03` or `2:03`, in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
