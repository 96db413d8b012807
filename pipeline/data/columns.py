"""The columns of an input: `--column` mappings and the names that data sets use enter, the problem in each row leaves.

The first rows decide which columns are taken, and what numbers as multiple-choice answers count. A fault of one row leaves as a `BadRow`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.data.requests import ApiError, custom_id_of, is_request, read_messages, read_request
from pipeline.errors import BadRow, InputError, did_you_mean
from pipeline.grading.answers import Kind
from pipeline.grading.plugins import GRADER_KINDS, grader_names
from pipeline.graph.prompts import LETTERS, Message

FIELDS = ("problem", "answer", "problem_id", "options", "grader")
"""Our names of the columns."""
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
ALIASES = {
    "problem": ("question", "prompt", "input", "query", "messages"),
    "answer": ("final_answer", "target", "solution", "answerKey", "Correct Answer"),
    "options": ("choices",),
}
"""Columns taken where there is none of our name and none is mapped, the first first; capitals make no difference."""
MAX_PROBLEM, MAX_ANSWER, MAX_ID = 1_000_000, 100_000, 1000
"""Maximum number of characters of a problem, of a reference answer or an option, and of an id."""
FROM_0, FROM_1, SAID = "positions counted from 0", "positions counted from 1", "the text of an option"
"""What numbers as answers may be."""


class ProblemOptions(NamedTuple):
    """The options of a problem; `labels` are those of the data set, if it has any."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class Columns:
    """The columns of one input."""

    def __init__(self, mapped: Mapping[str, str], head: Sequence[Mapping[str, Any]], where: str, grader: Kind | None = None) -> None:
        """`head`: its first rows; `where`: its name; `grader`: of problems that name none. Raises `InputError` for a missing column, and
        for a field that no problem has."""
        for ours, theirs in mapped.items():
            if ours not in FIELDS:
                remedy = f"did you mean --column {theirs}={ours!r}?" if theirs in FIELDS else did_you_mean(ours, FIELDS)
                raise InputError(f"--column {ours}={theirs}", f"a problem has no field `{ours}`; {remedy}")
        self._where, self._grader, self._mapped = where, grader, mapped
        there = list(dict.fromkeys(name for row in head for name in row))
        known = {name.casefold(): name for name in reversed(there)}
        self._requests = "problem" not in mapped and is_request(there)
        self._names = dict(mapped)
        for ours in FIELDS:
            found = next((known[alias.casefold()] for alias in (ours, *ALIASES.get(ours, ())) if alias.casefold() in known), None)
            if ours not in mapped and found is not None:
                self._names[ours] = found
        if "options" not in self._names and all(name in known.values() for name in WRONG):
            self._names["options"] = ",".join((self._names["answer"], *WRONG))
        if head:
            self._check(there)
        self.named = "custom_id" if self._requests else self._names.get("problem_id", "")
        """The column of the problems' ids; empty where the input has none."""
        self._ways = self._ways_to_count(head) if "options" in self._names else frozenset[str]()

    @property
    def remark(self) -> str:
        """A sentence about what was chosen; empty where every column has our name."""
        if self._requests:
            return f"{self._where}: its rows are requests of an OpenAI batch"
        chosen = [f"`{theirs}` as `{ours}`" for ours, theirs in self._names.items() if theirs != ours and ours not in self._mapped]
        said = [f"read {', '.join(chosen)}"] if chosen else []
        said += [f"numeric answers are {min(self._ways)}"] if len(self._ways) == 1 else []
        return f"{self._where}: {'; '.join(said)}" if said else ""

    def problem(self, row: int, record: Record) -> Problem | BadRow:
        """The problem in a row, or why there is none."""
        name = None
        try:
            if isinstance(record, Flaw):
                raise record
            grader = self._grader_of(record)
            if self._requests:
                name = custom_id_of(record)
                asked = read_request(record)
                return Problem(row, str(name), asked.problem, self._answer(record), (), grader, asked.history, asked.settings)
            history, text = self._problem(record)
            has_options = "options" in self._names and grader in (None, "letter")
            options, answer = self._choice(text, record) if has_options else ((), None)
            if options is None:
                options, grader = (), "letter"  # the text shows them
            return Problem(row, self._id(row, record), text, answer or self._answer(record), options, grader, history)
        except (Flaw, ApiError) as flaw:
            return BadRow(self._where, row, str(flaw), name)

    def _check(self, there: Sequence[str]) -> None:
        """Raise `InputError` unless there are all columns that are needed."""
        parts = [(ours, part) for ours, theirs in self._names.items() for part in _parts(theirs, there)]
        missing = [(ours, part) for ours, part in parts if part not in there and str((_keys(part) or [""])[0]) not in there]
        if "problem" not in self._names and not self._requests:
            missing.append(("problem", "problem"))
        if missing:
            ours, theirs = missing[0]
            remedy = did_you_mean(theirs, there) if ours in self._mapped else f"pass --column {ours}=NAME"
            if "answer" not in self._names:
                remedy += "; --column answer=NAME as well, if one holds the right answers"
            listed = ", ".join(f"`{name}`" for name in there[:20]) + (", ..." if len(there) > 20 else "")
            raise InputError(self._where, f"no column `{theirs}`; it has {listed}; {remedy}")

    def _value(self, ours: str, record: Mapping[str, Any]) -> Any:
        """The value of one of our columns; None where there is none."""
        name = self._names.get(ours)
        return None if name is None else record[name] if name in record else _at(name, record)

    def _id(self, row: int, record: Mapping[str, Any]) -> str:
        if "problem_id" not in self._names:
            return str(row)
        text = as_text(self._names["problem_id"], self._value("problem_id", record))
        return _bounded("problem_id", text, MAX_ID) if text and text.strip() else f"(row {row})"

    def _problem(self, record: Mapping[str, Any]) -> tuple[tuple[Message, ...], str]:
        """The chat before the problem and its text."""
        name, value = self._names["problem"], self._value("problem", record)
        if (not isinstance(value, str) or value.startswith("[{")) and (chat := _chat(name, value)) is not None:
            return chat[:-1], chat[-1].content
        if isinstance(value, str) and value.strip():
            return (), _bounded(name, value, MAX_PROBLEM)
        what = "is empty" if isinstance(value, str) else f"is {kind_of(value)}, expected text or the messages of a chat"
        raise Flaw(f"has no `{name}`" if value is None else f"`{name}` {what}")

    def _answer(self, record: Mapping[str, Any]) -> str | None:
        value = self._value("answer", record)
        if value is None:
            return None
        name = self._names["answer"]
        if not isinstance(value, str):
            value = ", ".join(as_text(name, each) or "" for each in (value if isinstance(value, list) else [value]))
        return _bounded(name, value, MAX_ANSWER).rpartition("####")[2].strip() or None

    def _grader_of(self, record: Mapping[str, Any]) -> Kind | None:
        value = self._value("grader", record)
        if not value:
            return self._grader
        if value not in (known := (*GRADER_KINDS, *grader_names())):
            raise Flaw(f"`{self._names['grader']}` is {value!r}, expected {', '.join(known[:-1])} or {known[-1]}")
        return str(value)

    def _choice(self, problem: str, record: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, str | None]:
        """The options of a row, None where the problem shows them, and the letter of its answer; neither where it is no multiple choice."""
        options = self._options(record)
        if not options.texts:
            return (), None
        name, answer = self._names.get("answer", "answer"), self._value("answer", record)
        if name in self._names["options"].split(","):  # the right one always comes first, which must not show
            texts = tuple(sorted(options.texts, key=lambda text: hashlib.blake2b(f"0\0{problem}\0{text}".encode()).digest()))
            return texts, LETTERS[texts.index(str(as_text(name, answer)).strip())]
        letter = letter_of(name, answer, options, self._ways)
        return None if shown_in(problem, options.texts) else options.texts, letter

    def _options(self, record: Mapping[str, Any]) -> ProblemOptions:
        name = self._names["options"]
        parts = _parts(name, record)
        options = options_of(name, self._value("options", record) if len(parts) == 1 else [_at(part, record) for part in parts])
        for text in options.texts:
            _bounded("options", text, MAX_ANSWER)
        return options

    def _ways_to_count(self, head: Iterable[Mapping[str, Any]]) -> frozenset[str]:
        """What the numbers of all answers may be; rows that none fits do not count."""
        left = frozenset((FROM_0, FROM_1, SAID))
        numbers = False
        for record in head:
            try:
                options, answer = self._options(record), self._value("answer", record)
            except Flaw:
                continue
            if options.texts and (number := _number(answer, options)) is not None and (here := _places(number, options)):
                left, numbers = left & here.keys(), True
        return left if numbers else frozenset()


def _parts(name: str, there: Iterable[str]) -> list[str]:
    """The columns in a mapping, of options perhaps several with commas between."""
    return [name] if name in there or "," not in name else name.split(",")


def _keys(path: str) -> list[str | int]:
    """The keys of a path: `final_answer[0]` is a column and an index."""
    return [int(place) if place else name for place, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path)]


def _at(path: str, record: Mapping[str, Any]) -> Any:
    """The value at a path of a row, None where the row has no such column; raises `Flaw` for a path that leads nowhere."""
    if path in record:
        return record[path]
    first, *keys = _keys(path)
    value: Any = record.get(str(first))
    for key in keys if value is not None else ():
        expected = "an array" if isinstance(key, int) else "an object"
        if kind_of(value) != expected:
            raise Flaw(f"`{path}`: expected {expected} around `{key}`, got {kind_of(value)}")
        try:
            value = value[key]
        except IndexError:
            raise Flaw(f"`{path}`: the array holds {len(value)} values") from None
        except KeyError:
            raise Flaw(f"has no `{path}`; {did_you_mean(str(key), value)}") from None
    return value


def _chat(name: str, value: Any) -> tuple[Message, ...] | None:
    """The messages in a column, an array of objects with `role` and `content` or one as JSON; None for anything else. Raises `Flaw`."""
    if isinstance(value, str) and '"role"' in value:
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) and "role" in each for each in value):
        return None
    if value[-1]["role"] == "assistant":
        remedy = f"end the chat with the user's, or map it: --column problem='{name}[{len(value) - 2}].content'"
        raise Flaw(f"`{name}` ends with an assistant message; {remedy}")
    return read_messages(name, value)


def as_text(name: str, value: Any) -> str | None:
    """The `value` of the column `name` as text, 27.0 as `27`; None where it is null or NaN. Raises `Flaw` for other types."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
            if number.is_nan():
                return None
            if number.is_infinite() or abs(number.adjusted()) > 4000:
                raise Flaw(f"`{name}` is a number that is out of range; write it as text")
            text = format(number, "f")
            whole, _, fraction = text.partition(".")
            return text if fraction.strip("0") else "0" if whole == "-0" else whole
        case date() | time():
            return value.isoformat()
    raise Flaw(f"`{name}` is {kind_of(value)}, expected text or a number")


def kind_of(value: Any) -> str:
    """The type of a value as an error message names it, with its article: `a number`, `an array`."""
    kinds: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", list: "an array", dict: "an object"}
    kinds |= {str: "text", type(None): "null", bytes: "binary"}
    return kinds.get(type(value), f"of type `{type(value).__name__}`")


def options_of(name: str, value: Any) -> ProblemOptions:
    """The options in a column: an array of texts or numbers, or of objects with `text` and `label`; an object of arrays `text` and `label`
    (ARC), or of texts by letter (MedQA); such a thing as JSON. None where it is null or empty; raises `Flaw` for anything else."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise Flaw(f"`{name}` is text but not JSON ({error}), expected an array of options") from None
    if value is None or value == "" or value == [] or value == {}:
        return ProblemOptions()
    texts, labels = _texts_and_labels(name, value)
    if len(texts) > len(LETTERS):
        raise Flaw(f"`{name}` has {len(texts):,} texts, more than the {len(LETTERS)} that have a letter")
    said, named = (tuple((as_text(name, each) or "").strip() for each in column) for column in (texts, labels))
    if not all(said):
        raise Flaw(f"option {LETTERS[said.index('')]} of `{name}` is empty")
    if len(set(named)) < len(named) or (named and len(named) != len(said)):
        raise Flaw(f"`{name}` has {len(said)} texts and the labels {', '.join(named)}, expected one label per text")
    own = [re.match(rf"\(?{letter}[).:]\s*(?=\S)", text) for letter, text in zip(LETTERS, said, strict=False)]
    if all(own):  # `A)21` is 21 (AQuA)
        said = tuple(text[match.end() :] for text, match in zip(said, own, strict=True) if match)
    return ProblemOptions(said, named)


def _texts_and_labels(name: str, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        return value["text"], value.get("label") or ()
    if isinstance(value, dict) and all(isinstance(key, str) and len(key) <= 2 for key in value):
        kept = {key: text for key, text in value.items() if text is not None}  # Arrow gives every row the letters of the longest
        return list(kept.values()), list(kept)
    if isinstance(value, list) and all(isinstance(each, dict) and "text" in each for each in value):
        return [each["text"] for each in value], [each["label"] for each in value if each.get("label") is not None]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return value, ()
    raise Flaw(f"`{name}` is {kind_of(value)} without options; expected an array of texts, or of objects with `text` and `label`")


def shown_in(problem: str, texts: Sequence[str]) -> bool:
    """Whether a problem's text shows its options already, each after its letter."""
    place = 0
    for letter, text in zip(LETTERS, texts, strict=False):
        found = re.compile(rf"(?<!\w){letter}\W{{1,6}}?\s*{re.escape(text)}").search(problem, place)
        if found is None:
            return False
        place = found.end()
    return bool(texts)


def _number(answer: Any, options: ProblemOptions) -> int | None:
    """The answer as a number that may count options; None where it is another one, or a label of the data set's own."""
    text = str(answer).strip() if isinstance(answer, int | float | str) and not isinstance(answer, bool) else ""
    found = re.fullmatch(r"(\d{1,9})(?:\.0)?", text)
    return int(found[1]) if found and found[1] not in options.labels else None


def _places(number: int, options: ProblemOptions) -> dict[str, int]:
    """Which option a number is, by each way to count that has one there."""
    by_place = {way: place for way, place in {FROM_0: number, FROM_1: number - 1}.items() if 0 <= place < len(options.texts)}
    equal = [place for place, text in enumerate(options.texts) if text in (str(number), f"{number}.0")]
    return by_place | ({SAID: equal[0]} if len(equal) == 1 else {})


def letter_of(name: str, answer: Any, options: ProblemOptions, ways: Iterable[str] = ()) -> str | None:
    """The letter of an answer; None where there is none. `ways`: how numbers in this column may count. Raises `Flaw` where it is none of
    the options, or cannot be known which."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    text = (as_text(name, answer) or "").strip()
    if not text:
        return None
    number = _number(answer, options)
    places = _places(number, options) if number is not None else {}
    found = set(_named(text, options)) if number is None else {place for way, place in places.items() if way in ways}
    if len(found) == 1:
        return LETTERS[found.pop()]
    if found or places:
        doubt = "several options match" if number is None else f"it may be {', '.join(places)}, and the first rows do not tell"
        raise Flaw(f"`{name}` is {text!r}: {doubt}; write the letter")
    last = options.labels[-1] if options.labels else LETTERS[len(options.texts) - 1]
    what = f"which is not one of its {len(options.texts)} options; expected a letter up to {last}, or the text of an option"
    raise Flaw(f"`{name}` is {text[:100]!r}, {what}")


def _named(text: str, options: ProblemOptions) -> Iterator[int]:
    """The places that a text may mean: that of a label of the data set's own, or else of a letter or of options that say the same."""
    both = re.fullmatch(r"\(?([A-Z])[).:]\s*(\S.*)", text)
    if both and options.texts[LETTERS.index(both[1]) :][:1] == (both[2],):
        yield LETTERS.index(both[1])
        return
    bare = re.sub(r"^[(\[*$]*(\w{1,2})[)\].:*$]*$", r"\1", text)
    labels = [label.casefold() for label in options.labels]
    if bare.casefold() in labels:
        yield labels.index(bare.casefold())
        return
    if len(bare) == 1 and not labels and 0 <= (letter := LETTERS.find(bare.upper())) < len(options.texts):
        yield letter
    same = [place for place, each in enumerate(options.texts) if each == text]
    yield from same or [place for place, each in enumerate(options.texts) if each.casefold() == text.casefold()]


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise Flaw(f"`{name}` has {len(text):,} characters, more than {most:,}")
    return text
