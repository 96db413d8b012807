"""The problems of an input file, streamed: records of `rows` enter, `Problem`s leave, one at a time and in file order.

The file is never in memory as a whole and never written. A fault of the file raises `InputError`; a fault of one row
leaves as a `BadRow` in its place, so that the others continue.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.data.chat import chat_of
from pipeline.data.columns import Columns, Fields
from pipeline.data.formats import open_source
from pipeline.data.options import ProblemOptions, letter_of, options_of, shown_in, shuffled, ways_to_count, whole_number
from pipeline.data.part import ALL, RowSample, RowSet
from pipeline.data.requests.batch import custom_id_of, is_request, read_request
from pipeline.data.requests.chat import ChainSettings
from pipeline.data.requests.errors import ApiError
from pipeline.data.rows import DAMAGE, Flaw, Record, Source, as_text, kind_of
from pipeline.errors import BadRow, InputChanged, InputError, boundary, reason
from pipeline.grading.answers import Kind
from pipeline.graph.plugins import GRADER_KINDS, grader_names
from pipeline.graph.prompts import LETTERS, Message, Prompts

MAX_PROBLEM = 1_000_000
"""Most characters of a problem: more than the context of any model holds."""
MAX_ANSWER = 100_000
"""Most characters of a reference answer, a worked solution included: it is written into the trace once a sample."""
MAX_ID = 1000
"""Most characters of a `problem_id`, which is in every row of the trace."""
MAX_TOLD = 5
"""So many flaws of a file are told at most."""


class Problem(Struct, frozen=True):
    """One problem to solve, from one input row."""

    row: int
    """The number of its record in the file, from 1; neither blank lines nor the header of a CSV file are records."""
    problem_id: str
    """Its name in the run, unique in the file; the row number where the file has none, `(row 7)` where this row alone has none."""
    problem: str
    """The text that the models are asked about."""
    answer: str | None
    """The reference answer as text; of a worked solution that ends in `#### ANSWER` (GSM8K) only what follows the marker."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice problem that `problem` does not show, in the order of their letters; else empty. Then the answer
    is a letter."""
    grader: Kind | None = None
    """How the answer is to be graded; None where the row does not say, and the caller chooses."""
    history: tuple[Message, ...] = ()
    """The chat before the problem, whose last message of the user it is: a message of the system, turns of user and assistant."""
    settings: ChainSettings = ChainSettings()
    """What it says of its own chains."""

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
    own_rows: int = 0
    """Those of them that say how many samples they want."""
    own_samples: int = 0
    """How many these want together."""
    own_most: int = 0
    """The most that one of them wants."""

    def chains(self, samples: int) -> int:
        """The number of chains where all other problems have that many samples."""
        return (self.rows - self.own_rows) * samples + self.own_samples


class Problems:
    """The problems of one file, in file order. Can be iterated any number of times; each iteration reads the file anew.

    After `check`, `unchanged` gives the same items again or raises: 8 bytes a row are held to tell.
    """

    def __init__(self, path: Path, columns: Mapping[str, str], part: RowSet) -> None:
        self.path, self._part, self._columns = path, part, Columns(columns)
        self.remarks: tuple[str, ...] = ()
        """Sentences about what was chosen in reading the file, and what is wrong with rows; known after `check`."""
        self.origin: tuple[str, ...] = ()
        """Notices about which files are used; the first of the remarks."""
        self.grader: Kind | None = None
        """How answers to problems are graded that do not say it."""
        self.graders: frozenset[Kind] = frozenset()
        """The graders that problems name; known after `check`."""
        self._chosen: dict[str, str] = {}
        """Clauses about columns that are used without being mapped, and other choices made."""
        self._ways: frozenset[str] | None = None
        self._taken: set[str] = set()
        self._doubled: dict[int, tuple[str, int]] = {}
        """The rows of requests whose `custom_id` an earlier row has, with it and that row; known after `check`."""
        self._drawn: frozenset[int] | None = None
        """The numbers of the rows of a sample, after its first row was asked for."""
        self._items_before, self._sha256_before = array("q"), ""
        self._version_before: tuple[int, ...] = ()

    def check(self) -> Fingerprint:
        """Read all rows once; raise `InputError` for any fault of the file as a whole: format, columns, repeated ids."""
        before, source, seen = self._version(), *self._read()
        if self._requests and (twice := duplicates(self._ids, np.frombuffer(seen.hashes, np.int64), None)):
            self._doubled = {again: (name, row) for name, row, again in twice}
            source, seen = self._read()
        self._check_columns(source.names)
        if seen.bad and seen.bad == seen.rows and self._part.shard is None and not self._requests:
            raise InputError(str(self.path), f"no row holds a problem; {seen.flaws}")
        if not seen.rows and self._part.shard is None:
            raise InputError(str(self.path), "holds no rows")
        if twice := duplicates(self._ids, np.frombuffer(seen.hashes, np.int64)):
            raise self._taken_twice(twice, seen)
        sha256 = self._sha256()
        if self._version() != before:
            raise InputError(str(self.path), "is still being written; start the run when it is complete")
        self._taken = seen.taken if seen.bad or seen.nameless else set()
        self._items_before, self._version_before, self._sha256_before = seen.items, before, sha256
        self.graders = frozenset(seen.graders)
        self.remarks = (*self.origin, *(f"{self.path}: {clause}" for clause in self._clauses(source, seen)))
        return Fingerprint(sha256, seen.rows, seen.bad, seen.own_rows, seen.own_samples, seen.own_most)

    def _read(self) -> tuple[Source, "_Seen"]:
        """The file, read once, and what was seen of its rows."""
        source, seen = self._open(), _Seen()
        for item in self._items(source):
            seen.add(item)
        return source, seen

    @property
    def _requests(self) -> bool:
        """Whether lines of an OpenAI batch were met."""
        return "requests" in self._chosen

    def _taken_twice(self, twice: Sequence[tuple[str, int, int]], seen: "_Seen") -> InputError:
        """The error of ids that occur twice, which tells the other flaws of the file too."""
        first, *others = (f"row {again}: problem_id {name!r} is taken by row {row} already" for name, row, again in twice)
        place, _, what = first.partition(": ")
        return InputError(f"{self.path}, {place}", "; ".join([what, *others, *([seen.flaws] if seen.bad else [])]))

    def _clauses(self, source: Source, seen: "_Seen") -> Iterator[str]:
        """What was chosen, and what is wrong with rows, in a clause each."""
        if source.remark:
            yield source.remark
        yield from self._chosen.values()
        if seen.nameless:
            count, first = seen.nameless, seen.first_nameless
            rows, called = (
                ("1 row has", "it is called") if count == 1 else (f"{count:,} rows have", "they are named by their row numbers, such as")
            )
            yield f"{rows} no `{self._columns.name('problem_id')}`: {called} (row {first})"
        if seen.bad:
            what = "are refused" if self._requests else "hold no problem and will fail"
            yield f"{seen.bad:,} of {seen.rows:,} rows {what}: {seen.flaws}"

    def unchanged(self) -> Iterator[Problem | BadRow]:
        """The items that `check` read, read anew; raises `InputChanged` in place of the first that is another one."""
        rows = len(self._items_before)
        try:
            items = iter(self)
            for place, before in enumerate(self._items_before):
                item = next(items, None)
                if item is None:
                    raise InputChanged(str(self.path), f"it had {rows:,} rows and now has {place:,}")
                if _hash(item) != before:
                    raise InputChanged(str(self.path), f"row {item.row} differs")
                yield item
            if next(items, None) is not None:
                raise InputChanged(str(self.path), f"it had {rows:,} rows and now has more")
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
            raise InputChanged(str(self.path), "its rows are the same, but its bytes differ")

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
            for row, record in self._asked_for(source, self._columns.wanted):
                item = self._item(row, record)
                if shard is None or shard.holds(self._shown(item)):
                    yield item
        except DAMAGE as error:
            raise InputError(f"{self.path}, after row {row}", reason(error)) from error

    def _shown(self, item: Problem | BadRow) -> str:
        """By what the shard of an item is decided: its name in the file, where it has one."""
        if item.row in self._doubled:
            return self._doubled[item.row][0]
        return f"(row {item.row})" if _nameless(item) else item.problem_id

    def _asked_for(self, source: Source, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        records = source.records(wanted)
        if self._part.sample is None:
            yield from islice(records, self._part.limit)
            return
        if self._drawn is None:
            self._drawn = self._draw(self._part.sample)
        yield from (each for each in records if each[0] in self._drawn)

    def _draw(self, sample: RowSample) -> frozenset[int]:
        count = sum(1 for _ in self._open().records((self._columns.name("problem"),)))
        if sample.rows > count:
            raise InputError(str(self.path), f"a sample of {sample.rows:,} rows was requested, but it has {count:,}")
        return sample.drawn(count)

    def _item(self, row: int, record: Record) -> Problem | BadRow:
        try:
            if isinstance(record, Flaw):
                raise record
            if "problem" not in self._columns.mapped and is_request(record):
                return self._request(row, record)
            fields = self._columns.of(record)
            history, text = self._problem(fields)
            grader = self._grader(fields)
            options, answer = self._choice(text, fields) if grader in (None, "letter") else ((), None)
            if options is None:
                options, grader = (), "letter"  # the text shows them
            return Problem(row, self._id(row, fields), text, answer or self._answer(fields), options, grader, history)
        except Flaw as flaw:
            return BadRow(str(self.path), row, str(flaw), self._row_name(row))

    def _request(self, row: int, record: Mapping[str, Any]) -> Problem | BadRow:
        """The problem in a line of an OpenAI batch, or why that is refused. Raises `Flaw`."""
        self._chosen["requests"] = "its rows are requests of an OpenAI batch"
        if row in self._doubled:
            name, first = self._doubled[row]
            return BadRow(str(self.path), row, f"`custom_id` {name!r} is taken by row {first} already", self._row_name(row))
        name = custom_id_of(record) or self._row_name(row)
        try:
            asked = read_request(record)
        except ApiError as error:
            return BadRow(str(self.path), row, error.message, name)
        fields = self._columns.of(record)
        grader, answer = self._grader(fields), self._answer(fields)
        return Problem(row, name, asked.problem, answer, grader=grader, history=asked.history, settings=asked.settings)

    def _row_name(self, row: int) -> str:
        """The name in the run of a row that has none: `(row 7)`, with a suffix if another problem of the file has that name."""
        name = f"(row {row})"
        while name in self._taken:
            name += "*"
        return name

    def _value(self, ours: str, fields: Fields) -> tuple[str, Any]:
        """The name in the row of one of our columns and its value; the value None where it has no such column."""
        found, own = fields.names[ours], self._columns.name(ours)
        if not found:
            return own, None
        name = found[0]
        if name != own:
            self._chosen[ours] = f"its column `{name}` is used as `{ours}`"
        return name, fields.record[name] if name in fields.record else self._columns.value(name, fields.record)

    def _id(self, row: int, fields: Fields) -> str:
        if not fields.names["problem_id"] and "problem_id" not in self._columns.mapped:
            return str(row)
        name, value = self._value("problem_id", fields)
        if isinstance(value, float) and abs(value) >= 2**53:
            what = "and floats of that size cannot represent every integer; write ids as integers or text"
            raise Flaw(f"`{name}` is the float {value!r}, {what}")
        text = as_text(name, value)
        return _bounded(name, text, MAX_ID) if text and text.strip() else self._row_name(row)

    def _problem(self, fields: Fields) -> tuple[tuple[Message, ...], str]:
        """The chat before the problem and its text."""
        name, value = self._value("problem", fields)
        chat = chat_of(name, value)
        if chat is not None:
            _bounded(name, "".join(message.content for message in chat), MAX_PROBLEM)
            return chat[:-1], chat[-1].content
        if value is not None and not isinstance(value, str):
            raise Flaw(f"`{name}` is {kind_of(value)}, expected text or the messages of a chat")
        if value is None or not value.strip():
            raise Flaw(f"`{name}` is empty" if fields.names["problem"] else f"has no `{name}`")
        return (), _bounded(name, value, MAX_PROBLEM)

    def _answer(self, fields: Fields) -> str | None:
        name, value = self._value("answer", fields)
        if isinstance(value, list):
            value = ", ".join(as_text(name, each) or "" for each in value)
        text = _bounded(name, as_text(name, value) or "", MAX_ANSWER).rpartition("####")[2].strip()
        return text or None

    def _choice(self, problem: str, fields: Fields) -> tuple[tuple[str, ...] | None, str | None]:
        """The options of a row, None where the problem shows them, and the letter of its answer; neither where it is no multiple choice."""
        options = self._options(fields)
        if not options.texts:
            return (), None
        name, answer = self._value("answer", fields)
        if name in fields.names["options"]:  # of which the right one is always the same, which must not show
            texts = shuffled(options.texts, problem, 0)
            return texts, LETTERS[texts.index(str(as_text(name, answer)).strip())]
        letter = letter_of(name, answer, options, self._counted() if whole_number(answer, options) is not None else None)
        return None if shown_in(problem, options.texts) else options.texts, letter

    def _options(self, fields: Fields) -> ProblemOptions:
        names = fields.names["options"]
        if not names:
            return ProblemOptions()
        if len(names) == 1:
            name, value = self._value("options", fields)
        else:
            name, value = ", ".join(names), [self._columns.value(each, fields.record) for each in names]
            self._chosen["options"] = f"its columns {', '.join(f'`{each}`' for each in names)} are used as the options"
        options = options_of(name, value)
        for text in options.texts:
            _bounded("options", text, MAX_ANSWER)
        return options

    def _counted(self) -> frozenset[str]:
        """How numbers as answers may count options, by all rows of the file, which is read once more for that."""
        if self._ways is None:
            self._ways = ways_to_count(self._choices())
            if len(self._ways) == 1:
                self._chosen["numbers"] = f"numeric answers are read as {min(self._ways)}"
        return self._ways

    def _choices(self) -> Iterator[tuple[Any, ProblemOptions]]:
        for _, record in self._open().records(self._columns.wanted):
            with suppress(Flaw):
                if not isinstance(record, Flaw):
                    fields = self._columns.of(record)
                    yield self._value("answer", fields)[1], self._options(fields)

    def _grader(self, fields: Fields) -> Kind | None:
        theirs, value = self._value("grader", fields)
        if not value:
            return self.grader
        *known, last = *GRADER_KINDS, *grader_names()
        if value not in (*known, last):
            raise Flaw(f"`{theirs}` is {value!r}, expected {', '.join(known)} or {last}")
        return str(value)

    def _check_columns(self, names: Iterable[str]) -> None:
        if what := self._columns.missing(names):
            raise InputError(str(self.path), what)

    def _ids(self) -> Iterator[tuple[int, str]]:
        return ((item.row, item.problem_id) for item in self if not _nameless(item))

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


class _Seen:
    """What was seen of the rows of a file while it was read once."""

    def __init__(self) -> None:
        self.rows = self.bad = self.nameless = self.first_nameless = 0
        self.own_rows = self.own_samples = self.own_most = 0
        self.hashes, self.items = array("q"), array("q")
        self.taken: set[str] = set()
        """Ids that rows without one might have been called by."""
        self.graders: set[Kind] = set()
        self._first_bad: list[BadRow] = []

    def add(self, item: Problem | BadRow) -> None:
        """One more item."""
        self.rows += 1
        self.items.append(_hash(item))
        if isinstance(item, BadRow):
            self.bad += 1
            self._first_bad = [*self._first_bad, item][:MAX_TOLD]
        else:
            self._add_problem(item)
        if not _nameless(item):
            self.hashes.append(hash(item.problem_id))
            if item.problem_id.startswith("(row "):
                self.taken.add(item.problem_id)

    def _add_problem(self, item: Problem) -> None:
        if item.grader is not None:
            self.graders.add(item.grader)
        if (samples := item.settings.samples) is not None:
            self.own_rows += 1
            self.own_samples += samples
            self.own_most = max(self.own_most, samples)
        if _nameless(item):
            self.nameless += 1
            self.first_nameless = self.first_nameless or item.row

    @property
    def flaws(self) -> str:
        """What is wrong with bad rows, the first of them."""
        told = [f"row {item.row}: {item.what}" for item in self._first_bad]
        more = self.bad - len(told)
        return "; ".join([*told, *([f"and {more:,} more"] if more else [])])


def duplicates(
    ids: Callable[[], Iterable[tuple[int, str]]], hashes: "np.ndarray[Any, np.dtype[np.int64]]", most: int | None = MAX_TOLD
) -> list[tuple[str, int, int]]:
    """The first `most` ids that occur twice, or all, each with its two rows. `hashes` are the 64-bit hashes of all ids.

    The `ids` themselves are read again only when a hash repeats, and only those whose hash repeats are kept in memory.
    """
    ordered = np.sort(hashes)
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    rows: dict[str, int] = {}
    again = (
        (problem_id, rows[problem_id], row)
        for row, problem_id in (ids() if repeated else ())
        if hash(problem_id) in repeated and rows.setdefault(problem_id, row) != row
    )
    return list(islice(again, most))


def _nameless(item: Problem | BadRow) -> bool:
    """Whether an item is called by its row, as `Problems._row_name` does; one that is called so by the file is none the worse for it."""
    name = item.problem_id
    return name.startswith("(row ") and name.rstrip("*") == f"(row {item.row})"


def _hash(item: Problem | BadRow) -> int:
    """Tells items apart, within this process."""
    if isinstance(item, BadRow):
        return hash((item.row, item.what))
    return hash(structs.replace(item, problem_id="") if _nameless(item) else item)


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise Flaw(f"`{name}` has {len(text):,} characters, more than {most:,}")
    return text


def open_problems(path: Path | str, columns: Mapping[str, str] | None = None, part: RowSet = ALL) -> Problems:
    """The problems in the rows of `part` of the file at `path`; `columns` maps our names of columns to the file's.

    Raises `InputError` for an unknown name among `columns`; the file is not touched before `check` or the first row.
    """
    return Problems(Path(path), columns or {}, part)
