"""The problems of an input file, streamed: records of `rows` enter, `Problem`s leave, one at a time and in file order.

The file is never in memory as a whole and never written. A fault of the file raises `InputError`; a fault of one row
leaves as a `BadRow` in its place, so that the others go on.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.data.part import ALL, Part, RowSample
from pipeline.data.rows import DAMAGE, Flaw, Record, Source, open_source
from pipeline.errors import BadRow, InputChanged, InputError, boundary, did_you_mean, reason
from pipeline.grading.answers import KINDS, Kind
from pipeline.grading.plugins import grader_names
from pipeline.graph.prompts import Message, Prompts

COLUMNS = ("problem", "answer", "problem_id", "options", "grader")
"""Our names of the columns. Only `problem` must be in a file, and every column that `--column` maps."""

MOST_PROBLEM = 1_000_000
"""Most characters of a problem: more than the context of any model holds."""
MOST_ANSWER = 100_000
"""Most characters of a reference answer, a worked solution included: it is written into the trace once a sample."""
MOST_ID = 1000
"""Most characters of a `problem_id`, which is in every row of the trace."""
MOST_OPTIONS = 100
"""Most options of a multiple-choice problem."""
MOST_DIGITS = 4000
"""Most digits of an integer: Python converts none of more than 4,300 to text."""


class Problem(Struct, frozen=True):
    """One problem to solve, from one input row."""

    row: int
    """The number of its record in the file, from 1; neither blank lines nor the header of a CSV file are records."""
    problem_id: str
    """Its name in the run, unique in the file; the row number where the row has none."""
    problem: str
    """The text that the models are asked about."""
    answer: str | None
    """The reference answer as text; of a worked solution that ends in `#### ANSWER` (GSM8K) only what follows the mark."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice problem in the order of their letters; else empty."""
    grader: Kind | None = None
    """How the answer is to be graded; None where the row does not say, and the caller chooses."""
    history: tuple[Message, ...] = ()
    """The chat before the problem, whose last message of the user it is: a message of the system, turns of user and assistant."""

    def told(self, prompts: Prompts) -> str:
        """The problem as one text, with its options and what was said before it."""
        text = prompts.with_options(self.problem, self.options)
        if not self.history:
            return text
        return "\n\n".join(f"{message.role}: {message.content}" for message in (*self.history, Message("user", text)))


class Fingerprint(Struct, frozen=True):
    """What identifies an input file: a run is resumed only over the same one."""

    sha256: str
    """SHA-256 of the file's bytes, hexadecimal."""
    rows: int
    """Rows that were asked for, bad ones included."""
    bad_rows: int
    """Those of them that hold no problem."""


class Problems:
    """The problems of one file, in file order. Can be iterated any number of times; each iteration reads the file anew.

    After `check`, `unchanged` gives the same items again or raises: 8 bytes a row are held to tell.
    """

    def __init__(self, path: Path, columns: Mapping[str, str], part: Part) -> None:
        for ours in columns.keys() - set(COLUMNS):
            swapped = columns[ours] in COLUMNS
            remedy = f"did you mean --column {columns[ours]}={ours!r}?" if swapped else did_you_mean(ours, COLUMNS)
            raise InputError(f"--column {ours}={columns[ours]}", f"a problem has no field `{ours}`; {remedy}")
        self.path, self._part, self._mapped = path, part, columns
        self._theirs = {ours: columns.get(ours, ours) for ours in COLUMNS}
        self._taken: set[str] = set()
        self._drawn: frozenset[int] | None = None
        """The numbers of the rows of a sample, after its first row was asked for."""
        self._items_before, self._sha256_before = array("q"), ""
        self._version_before: tuple[int, ...] = ()

    def check(self) -> Fingerprint:
        """Read all rows once; raise `InputError` for any fault of the file as a whole: format, columns, repeated ids."""
        before, source = self._version(), self._open()
        rows = bad = 0
        first_bad: BadRow | None = None
        hashes, items, taken = array("q"), array("q"), set[str]()
        for rows, item in enumerate(self._items(source), 1):  # noqa: B007
            items.append(_hash(item))
            if isinstance(item, BadRow):
                bad, first_bad = bad + 1, first_bad or item
                continue
            hashes.append(hash(item.problem_id))
            if item.problem_id.startswith("(row "):
                taken.add(item.problem_id)
        self._check_columns(source.names)
        if first_bad and bad == rows and self._part.shard is None:
            raise InputError(str(self.path), f"no row holds a problem; row {first_bad.row}: {first_bad.what}")
        if not rows:
            shard = self._part.shard
            raise InputError(str(self.path), "holds no rows" if shard is None else f"none of its problems is in shard {shard}")
        twice = first_duplicate(self._ids, np.frombuffer(hashes, np.int64))
        if twice:
            problem_id, row, again = twice
            raise InputError(f"{self.path}, row {again}", f"problem_id {problem_id!r} is taken by row {row} already")
        sha256 = self._sha256()
        if self._version() != before:
            raise InputError(str(self.path), "is being written; start the run when it is complete")
        self._taken = taken if bad else set()
        self._items_before, self._version_before, self._sha256_before = items, before, sha256
        return Fingerprint(sha256, rows, bad)

    def unchanged(self) -> Iterator[Problem | BadRow]:
        """The items that `check` read, read anew; raises `InputChanged` in place of the first that is another one."""
        rows = len(self._items_before)
        try:
            items = iter(self)
            for place, before in enumerate(self._items_before):
                item = next(items, None)
                if item is None:
                    raise InputChanged(str(self.path), f"it had {rows:,} rows and has {place:,}")
                if _hash(item) != before:
                    raise InputChanged(str(self.path), f"row {item.row} is another one")
                yield item
            if next(items, None) is not None:
                raise InputChanged(str(self.path), f"it had {rows:,} rows and has more")
        except InputError as error:
            raise InputChanged(str(self.path), error.what) from error

    def with_records(self) -> Iterator[tuple[Problem | BadRow, Record]]:
        """The items of `unchanged`, each with its whole row: the values of all columns of the file, or what is wrong with one of them.

        The file is read twice, so that a column which no problem needs cannot spoil one.
        """
        records = self._asked_for(self._open(), None)
        for item in self.unchanged():
            yield item, next(record for row, record in records if row == item.row)

    def check_unchanged(self) -> None:
        """Raise `InputChanged` where the file is not what it was at `check`: its rows first, then its bytes."""
        if self._version() == self._version_before:
            return
        for _ in self.unchanged():
            pass  # it raises for what it misses
        if self._sha256() != self._sha256_before:
            raise InputChanged(str(self.path), "its rows are the same, and its bytes are not")

    def __iter__(self) -> Iterator[Problem | BadRow]:
        return self._items(self._open())

    def _open(self) -> Source:
        source = open_source(self.path)
        if source.names:
            self._check_columns(source.names)
        return source

    def _items(self, source: Source) -> Iterator[Problem | BadRow]:
        row, shard = 0, self._part.shard
        try:
            for row, record in self._asked_for(source, tuple(self._theirs.values())):
                item = self._item(row, record)
                if shard is None or shard.holds(f"(row {row})" if isinstance(item, BadRow) else item.problem_id):
                    yield item
        except DAMAGE as error:
            raise InputError(f"{self.path}, after row {row}", reason(error)) from error

    def _asked_for(self, source: Source, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        records = source.records(wanted)
        if self._part.sample is None:
            yield from islice(records, self._part.limit)
            return
        if self._drawn is None:
            self._drawn = self._draw(self._part.sample)
        yield from (each for each in records if each[0] in self._drawn)

    def _draw(self, sample: RowSample) -> frozenset[int]:
        count = sum(1 for _ in self._open().records((self._theirs["problem"],)))
        if sample.rows > count:
            raise InputError(str(self.path), f"a sample of {sample.rows:,} rows was asked for, and it has {count:,}")
        return sample.drawn(count)

    def _item(self, row: int, record: Record) -> Problem | BadRow:
        try:
            if isinstance(record, Flaw):
                raise record
            return Problem(
                row, self._id(row, record), self._problem(record), self._answer(record), self._options(record), self._grader(record)
            )
        except Flaw as flaw:
            return BadRow(str(self.path), row, str(flaw), self._bad_row_id(row))

    def _bad_row_id(self, row: int) -> str:
        """The name in the run of a row that holds no problem: `(row 7)`, with a mark where a problem of the file has that name."""
        name = f"(row {row})"
        while name in self._taken:
            name += "*"
        return name

    def _id(self, row: int, record: Mapping[str, Any]) -> str:
        theirs = self._theirs["problem_id"]
        if theirs not in record and "problem_id" not in self._mapped:
            return str(row)
        text = as_text(theirs, record.get(theirs))
        if text is None or not text.strip():
            raise Flaw(f"`{theirs}` is empty")
        return _bounded(theirs, text, MOST_ID)

    def _problem(self, record: Mapping[str, Any]) -> str:
        theirs = self._theirs["problem"]
        text = record.get(theirs)
        if text is not None and not isinstance(text, str):
            raise Flaw(f"`{theirs}` is {kind_of(text)}, expected text")
        if text is None or not text.strip():
            raise Flaw(f"`{theirs}` is empty" if theirs in record else f"has no `{theirs}`")
        return _bounded(theirs, text, MOST_PROBLEM)

    def _answer(self, record: Mapping[str, Any]) -> str | None:
        theirs = self._theirs["answer"]
        value = record.get(theirs)
        if isinstance(value, list):
            value = ", ".join(as_text(theirs, each) or "" for each in value)
        text = _bounded(theirs, as_text(theirs, value) or "", MOST_ANSWER).rpartition("####")[2].strip()
        return text or None

    def _options(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """The options of a row; empty where the column holds no array of texts or numbers, as data sets write options in many ways."""
        value = record.get(self._theirs["options"])
        if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
            return ()
        if len(value) > MOST_OPTIONS:
            raise Flaw(f"`options` has {len(value):,} texts, more than {MOST_OPTIONS}")
        return tuple(_bounded("options", as_text("options", each) or "", MOST_ANSWER) for each in value)

    def _grader(self, record: Mapping[str, Any]) -> Kind | None:
        theirs = self._theirs["grader"]
        value = record.get(theirs) or None
        if value is None:
            return None
        *known, last = *KINDS, *grader_names()
        if value not in (*known, last):
            raise Flaw(f"`{theirs}` is {value!r}, expected {', '.join(known)} or {last}")
        return str(value)

    def _check_columns(self, names: Iterable[str]) -> None:
        known = list(names)
        for ours, theirs in self._theirs.items():
            if theirs in known or not known or (ours not in self._mapped and ours != "problem"):
                continue
            there = ", ".join(f"`{name}`" for name in known[:20]) + (", ..." if len(known) > 20 else "")
            remedy = did_you_mean(theirs, known) if ours in self._mapped else f"pass --column {ours}=NAME"
            raise InputError(str(self.path), f"no column `{theirs}`; it has {there}" + (f"; {remedy}" if remedy[:5] != "known" else ""))

    def _ids(self) -> Iterator[tuple[int, str]]:
        return ((item.row, item.problem_id) for item in self if isinstance(item, Problem))

    def _version(self) -> tuple[int, ...]:
        """What differs after the file was written, or another one took its name; empty where it cannot be seen."""
        try:
            about = self.path.stat()
        except OSError:
            return ()
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    def _sha256(self) -> str:
        with boundary(InputError, str(self.path), foreign=OSError), self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def open_problems(path: Path | str, columns: Mapping[str, str] | None = None, part: Part = ALL) -> Problems:
    """The problems in the rows of `part` of the file at `path`; `columns` maps our names of columns to the file's.

    Raises `InputError` for an unknown name among `columns`; the file is not touched before `check` or the first row.
    """
    return Problems(Path(path), columns or {}, part)


def first_duplicate(
    ids: Callable[[], Iterable[tuple[int, str]]], hashes: "np.ndarray[Any, np.dtype[np.int64]]"
) -> tuple[str, int, int] | None:
    """The first id that occurs twice, and its two rows; None where all ids differ. `hashes` are the 64-bit hashes of all ids.

    The `ids` themselves are read again only when a hash repeats, and only those whose hash repeats are kept in memory.
    """
    ordered = np.sort(hashes)
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    rows: dict[str, int] = {}
    for row, problem_id in ids() if repeated else ():
        if hash(problem_id) in repeated and rows.setdefault(problem_id, row) != row:
            return problem_id, rows[problem_id], row
    return None


def _hash(item: Problem | BadRow) -> int:
    """Tells items apart, within this process."""
    return hash((item.row, item.what)) if isinstance(item, BadRow) else hash(item)


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise Flaw(f"`{name}` has {len(text):,} characters, more than {most:,}")
    return text


def as_text(name: str, value: Any) -> str | None:
    """The `value` of the column `name` as text, 27.0 as `27`; None where it is null or NaN. Raises `Flaw` for other types."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            if abs(value) >= 10**MOST_DIGITS:
                raise Flaw(f"`{name}` is a number of more than {MOST_DIGITS:,} digits; write it as text")
            return str(value)
        case float() | Decimal():
            number = float(value)
            if number != number:
                return None
            return str(int(number)) if abs(number) < 2**53 and value == int(number) else str(value)
    raise Flaw(f"`{name}` is {kind_of(value)}, expected text or a number")


def kind_of(value: Any) -> str:
    """The type of a JSON value as an error message names it, with its article: `a number`, `an array`."""
    kinds: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")
