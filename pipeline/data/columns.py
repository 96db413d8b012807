"""The columns of an input: `--column` mappings and the names that data sets use enter, the problem in each row leaves.

The first rows decide which columns are taken, and whether numbers as multiple-choice answers are positions. A fault of one row leaves as a
`BadRow`.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.data.requests import ApiError, is_request, read_messages, read_request
from pipeline.errors import BadRow, InputError, did_you_mean
from pipeline.grading.plugins import grader_names
from pipeline.graph.prompts import LETTERS, Message

FIELDS = ("problem", "answer", "problem_id", "options", "grader")
"""Our names of the columns."""
ALIASES = {
    "problem": ("question", "prompt", "input", "query", "messages"),
    "answer": ("final_answer", "target", "solution", "answerKey"),
    "options": ("choices",),
}
"""Columns taken where there is none of our name and none is mapped, the first first; capitals make no difference."""
_POSITION = re.compile(r"\d{1,2}", re.ASCII)


class ProblemOptions(NamedTuple):
    """The options of a problem; `labels` are those of the data set, if it has any."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class Columns:
    """The columns of one input."""

    def __init__(self, mapped: Mapping[str, str], head: Sequence[Mapping[str, Any]], where: str, grader: str | None = None) -> None:
        """`head`: its first rows; `where`: its name; `grader`: of problems that name none. Raises `InputError` for a missing column, and
        for a field that no problem has."""
        self._where, self._grader = where, grader
        there = list(dict.fromkeys(name for row in head for name in row))
        self._requests = "problem" not in mapped and is_request(there)
        known = {name.casefold(): name for name in reversed(there)}
        found = {ours: [known[name.casefold()] for name in (ours, *ALIASES.get(ours, ())) if name.casefold() in known] for ours in FIELDS}
        self._names = {ours: names[0] for ours, names in found.items() if names} | dict(mapped)
        if head:
            self._check(mapped, there)
        self.named = "custom_id" if self._requests else self._names.get("problem_id", "")
        """The column of the problems' ids; empty where the input has none."""
        self._from_0 = self._counts_from_0(head)
        chosen = [f"`{theirs}` as `{ours}`" for ours, theirs in self._names.items() if theirs != ours and ours not in mapped]
        said = ["its rows are requests of an OpenAI batch"] if self._requests else [f"read {', '.join(chosen)}"] if chosen else []
        said += ["numeric answers are positions counted from 0"] if self._from_0 else []
        self.remark = f"{where}: {'; '.join(said)}" if said else ""
        """A sentence about what was chosen; empty where every column has our name."""

    def problem(self, row: int, record: Record) -> Problem | BadRow:
        """The problem in a row, or why there is none."""
        name = None
        try:
            if isinstance(record, Flaw):
                raise record
            grader = self._grader_of(record)
            if self._requests:
                name = given if isinstance(given := record.get("custom_id"), str) else None
                asked = read_request(record)
                return Problem(row, str(name), asked.problem, self._answer(record), (), grader, asked.history, asked.settings)
            *history, last = self._chat(record)
            options = self._options(record) if grader in (None, "letter") else ProblemOptions()
            answer = self._letter(record, options) if options.texts else self._answer(record)
            own = self._text("problem_id", record) or f"(row {row})" if self.named else str(row)
            return Problem(row, own, last.content, answer, options.texts, grader, tuple(history))
        except (Flaw, ApiError) as flaw:
            return BadRow(self._where, row, str(flaw), name)

    def _check(self, mapped: Mapping[str, str], there: Sequence[str]) -> None:
        """Raise `InputError` unless there are all columns that are mapped or needed."""
        for ours, theirs in mapped.items():
            if ours not in FIELDS:
                raise InputError(f"--column {ours}={theirs}", f"a problem has no field `{ours}`; {did_you_mean(ours, FIELDS)}")
            if theirs not in there:
                raise InputError(self._where, f"no column `{theirs}`; {did_you_mean(theirs, there)}")
        if "problem" not in self._names and not self._requests:
            listed = ", ".join(f"`{name}`" for name in there[:20])
            raise InputError(self._where, f"no column `problem`; pass --column problem=NAME, one of {listed}")

    def _value(self, ours: str, record: Mapping[str, Any]) -> Any:
        """The value of one of our columns, if any."""
        return record.get(self._names[ours]) if ours in self._names else None

    def _text(self, ours: str, record: Mapping[str, Any]) -> str | None:
        """The text of one of our columns, an array with commas between its values; None where blank."""
        value = self._value(ours, record)
        texts = [as_text(self._names.get(ours, ""), each) or "" for each in (value if isinstance(value, list) else [value])]
        return ", ".join(texts).strip() or None

    def _answer(self, record: Mapping[str, Any]) -> str | None:
        """The reference answer, of a worked solution what follows `####` (GSM8K)."""
        return (self._text("answer", record) or "").rpartition("####")[2].strip() or None

    def _chat(self, record: Mapping[str, Any]) -> tuple[Message, ...]:
        """The problem, behind the chat before it."""
        name, value = self._names["problem"], self._value("problem", record)
        if isinstance(value, list):
            return read_messages(name, value)
        if not isinstance(value, str | None):
            raise Flaw(f"`{name}` is neither text nor the messages of a chat")
        if not value or not value.strip():
            raise Flaw(f"has no `{name}`")
        return (Message("user", value),)

    def _grader_of(self, record: Mapping[str, Any]) -> str | None:
        value = self._value("grader", record)
        if value and value not in grader_names():
            raise Flaw(f"`{self._names['grader']}` is {value!r}; {did_you_mean(str(value), grader_names())}")
        return value or self._grader

    def _options(self, record: Mapping[str, Any]) -> ProblemOptions:
        return options_of(self._names["options"], self._value("options", record)) if "options" in self._names else ProblemOptions()

    def _letter(self, record: Mapping[str, Any], options: ProblemOptions) -> str | None:
        """The letter of the answer to a multiple-choice problem; None where there is none. Raises `Flaw` where that cannot be known."""
        text = self._text("answer", record)
        if text is None:
            return None
        found = _named(text, options)
        if self._from_0 and _POSITION.fullmatch(text) and text not in options.labels:
            found = {int(text)} & {*range(len(options.texts))}
        if len(found) == 1:
            return LETTERS[found.pop()]
        what = "several options match" if found else f"which is not one of its {len(options.texts)} options"
        raise Flaw(f"`{self._names['answer']}` is {text[:100]!r}: {what}; write the letter")

    def _counts_from_0(self, head: Sequence[Mapping[str, Any]]) -> bool:
        """Whether numbers as answers are positions from 0: one is 0, and not all are in the options themselves."""
        answers = [(answer, str(self._value("options", row))) for row in head if (answer := self._value("answer", row)) is not None]
        elsewhere = any(str(answer).removesuffix(".0") not in options for answer, options in answers)
        return "options" in self._names and elsewhere and any(answer in (0, "0") for answer, _ in answers)


def as_text(name: str, value: Any) -> str | None:
    """The `value` of the column `name` as text, 27.0 as `27`; None where it is null or NaN. Raises `Flaw`."""
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case int() | float() | Decimal():
            return None if value != value else format(Decimal(str(value)), "f").removesuffix(".0")
    raise Flaw(f"`{name}` is of type `{type(value).__name__}`, expected text or a number")


def options_of(name: str, value: Any) -> ProblemOptions:
    """The options in a column: an array of texts or numbers; an object of arrays `text` and `label` (ARC), or of texts by letter (MedQA);
    such a thing as JSON. None where it is null or empty; raises `Flaw` for anything else."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value or "null")
        except msgspec.DecodeError as error:
            raise Flaw(f"`{name}` is text but not JSON ({error}), expected an array of options") from None
    labels: Sequence[Any] = ()
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        value, labels = value["text"], value.get("label") or ()
    elif isinstance(value, dict):
        named = {label: text for label, text in value.items() if text is not None}  # Arrow gives every row the letters of the longest
        value, labels = list(named.values()), list(named)
    if not isinstance(value, list | None):
        raise Flaw(f"`{name}` is no array of options")
    texts = tuple((as_text(name, each) or "").strip() for each in value or ())
    if not all(texts) or len(texts) > len(LETTERS):
        raise Flaw(f"`{name}` has {len(texts)} texts, expected at most {len(LETTERS)}, none of them empty")
    if labels and len(set(labels)) != len(texts):
        raise Flaw(f"`{name}` has {len(texts)} texts and the labels {', '.join(map(str, labels))}, expected one label per text")
    return ProblemOptions(texts, tuple(map(str, labels)))


def _named(text: str, options: ProblemOptions) -> set[int]:
    """The places that a text may mean: that of a label of the data set's own, or else of a letter or of options that say the same."""
    bare = text.strip("([*$.:)] ").casefold()
    labels = [label.casefold() for label in options.labels or LETTERS[: len(options.texts)]]
    lettered = {labels.index(bare)} if bare in labels else set()
    said = {place for place, each in enumerate(options.texts) if each.casefold() == text.casefold()}
    return lettered if lettered and options.labels else lettered | said
