"""What a row of an input is: values by column, or a flaw; where in it a value is, and its text. Every format of `formats` gives its rows
as a `Source`."""

import lzma
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import numpy as np

from pipeline.errors import InputError

MAX_ROW_BYTES = 16 << 20
"""Most bytes of a row; a longer one is a `Flaw`."""
MAX_COLUMNS = 10_000
"""Most columns of a file; one with more is refused."""
DAMAGE = (OSError, EOFError, lzma.LZMAError)
"""The errors that a damaged file raises while it is read."""


class Flaw(Exception):
    """What is wrong with one row; the text is a clause."""


Record = Mapping[str, Any] | Flaw
"""One row: values by column, or what is wrong with it."""


class Source(Protocol):
    """An open file of rows, in one format."""

    @property
    def names(self) -> Mapping[str, None]:
        """The names of the columns, in order; of JSON lines those met so far."""

    @property
    def remark(self) -> str:
        """A clause about what was chosen in reading it, known after its first row; else empty."""

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        """Every row with its number, from 1: those of the `wanted` columns that it has, None: all of them, or a `Flaw`."""


def distinct(path: Path, names: Sequence[str]) -> dict[str, None]:
    """`names` as the ordered keys of a dictionary; raises `InputError` where there are too many or two are the same."""
    if len(names) > MAX_COLUMNS:
        raise InputError(str(path), f"has {len(names):,} columns, more than {MAX_COLUMNS:,}")
    twice = [f"`{name}`" for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(str(path), f"has the column {', '.join(twice[:5])} twice")
    return dict.fromkeys(names)


MAX_DIGITS = 4000
"""Most digits of an integer: Python converts none of more than 4,300 to text."""
Keys = tuple[str | int, ...]
"""The place of a value in a row: the column, then names within objects and indices within arrays."""
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*")


def keys_of(path: str) -> Keys:
    """The keys of a path: `final_answer[0]` is `("final_answer", 0)`; raises `ValueError` for what is no path."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a path; expected a column, then .NAME or [INDEX] for nested values, such as `final_answer[0]`")
    return tuple(int(place) if place else name for place, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path))


def value_at(path: str, keys: Keys, row: Mapping[str, Any], instead: Callable[[str, Mapping[str, Any]], str]) -> Any:
    """The value at a place of a row; raises `Flaw` where there is none, with what `instead` says of a name and the object without it."""
    value: Any = row
    for key in keys:
        if isinstance(key, int):
            if not isinstance(value, list):
                raise Flaw(f"`{path}`: expected an array before `[{key}]`, got {kind_of(value)}")
            if key >= len(value):
                raise Flaw(f"`{path}`: the array holds {len(value)} values")
            value = value[key]
            continue
        if not isinstance(value, Mapping):
            raise Flaw(f"`{path}`: expected an object with `{key}`, got {kind_of(value)}")
        if key not in value:
            raise Flaw(f"has no `{path}`; {instead(key, value)}")
        value = value[key]
    return value


def as_text(name: str, value: Any) -> str | None:
    """The `value` of the column `name` as text, 27.0 as `27`; None where it is null or NaN. Raises `Flaw` for other types."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            if abs(value) >= 10**MAX_DIGITS:
                raise Flaw(f"`{name}` is a number of more than {MAX_DIGITS:,} digits; write it as text")
            return str(value)
        case float() | Decimal():
            return _number(name, Decimal(repr(value)) if isinstance(value, float) else value)
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case bytes():
            with suppress(UnicodeDecodeError):
                if "".join((text := value.decode()).split()).isprintable():
                    return text
            raise Flaw(f"`{name}` is binary, expected text or a number")
    raise Flaw(f"`{name}` is {kind_of(value)}, expected text or a number")


def _number(name: str, value: Decimal) -> str | None:
    if value.is_nan():
        return None
    if value.is_infinite():
        raise Flaw(f"`{name}` is infinite, expected text or a number")
    if abs(value.adjusted()) > MAX_DIGITS:
        raise Flaw(f"`{name}` is a number of more than {MAX_DIGITS:,} digits; write it as text")
    text = format(value, "f")
    whole, _, fraction = text.partition(".")
    return text if fraction.strip("0") else whole if whole != "-0" else "0"


def kind_of(value: Any) -> str:
    """The type of a value as an error message names it, with its article: `a number`, `an array`."""
    kinds: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "an object"}
    kinds |= {str: "text", type(None): "null", timedelta: "a duration", bytes: "binary"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def shortest(value: Any, kind: Callable[[float], Any]) -> float:
    """The number with the fewest digits that is `value` in the precision of `kind`, of which `value` is: 0.3, not 0.30000001192092896."""
    number = float(value)
    if not math.isfinite(number):
        return number
    with np.errstate(over="ignore"):  # 65504 as 70000 is infinite in half precision
        texts = (f"{number:.{digits}g}" for digits in range(1, 18))
        return next((float(text) for text in texts if float(kind(float(text))) == number), number)


def plain(value: Any) -> Any:
    """The builtin value of a number or array of numpy, pandas, torch or Arrow, and the text of a path; raises `TypeError` for others."""
    if type(value) in (str, int, float, bool, type(None), list, dict):
        return value
    if hasattr(value, "as_py"):
        return value.as_py()
    if (listed := getattr(value, "tolist", None)) is not None and hasattr(value, "dtype"):
        if getattr(value, "ndim", 0):
            return [plain(each) for each in value]
        if isinstance(number := listed(), float):
            return shortest(number, value.new_tensor if hasattr(value, "new_tensor") else value.dtype.type)
        return number
    if callable(listed):
        return listed()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a value is of type `{type(value).__name__}`")
