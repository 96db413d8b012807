"""Where in a row our columns are: `--column` mappings and the names that data sets use enter, the values of a row leave."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.data.requests.batch import KEYS, is_request
from pipeline.data.rows import Keys, keys_of, value_at
from pipeline.errors import InputError, did_you_mean

COLUMNS = ("problem", "answer", "problem_id", "options", "grader")
"""Our names of the columns. Only `problem` must be in a file, and every column that `--column` maps."""
MAX_SHAPES = 1000
"""So many sets of columns that rows have are remembered at most."""
GPQA = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "options": (("choices",), GPQA),
    "answer": (("answerKey",), GPQA[:1]),
}
"""Columns that are taken where a row has none of our name and none is mapped: those of MMLU, ARC and GPQA."""


class Fields(NamedTuple):
    """A row, and by our names what its columns are called: one, of options also several, none where it has no such column."""

    names: Mapping[str, tuple[str, ...]]
    record: Mapping[str, Any]


class Columns:
    """Our columns in the rows of one input."""

    def __init__(self, mapped: Mapping[str, str]) -> None:
        """Raises `InputError` for an unknown field or an invalid path."""
        for ours, theirs in mapped.items():
            if ours not in COLUMNS:
                remedy = f"did you mean --column {theirs}={ours!r}?" if theirs in COLUMNS else did_you_mean(ours, COLUMNS)
                raise InputError(f"--column {ours}={theirs}", f"a problem has no field `{ours}`; {remedy}")
        self.mapped = dict(mapped)
        self._names: dict[str, tuple[str, ...]] = {ours: (ours,) for ours in COLUMNS}
        """One name per field; for options in several columns, the names joined by commas, and each by itself."""
        for ours, theirs in mapped.items():
            self._names[ours] = (theirs, *(theirs.split(",") if ours == "options" and "," in theirs else ()))
        also = [names for each in ALSO.values() for names in each]
        self._shapes: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
        self._keys = {name: _keys(name) for names in (*self._names.values(), *also) for name in names}

    @property
    def wanted(self) -> tuple[str, ...]:
        """All columns of a file that may be needed."""
        tops = (str(keys[0]) for keys in self._keys.values())
        return tuple(dict.fromkeys([*self._keys, *tops, *(() if "problem" in self.mapped else KEYS)]))

    def name(self, ours: str) -> str:
        """What a column is called in messages."""
        return str(self._names[ours][0])

    def of(self, record: Mapping[str, Any]) -> Fields:
        """The fields of a row. Rows with the same columns are looked at once."""
        shape = tuple(record)
        known = self._shapes.get(shape)
        if known is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            known = self._shapes[shape] = {ours: self._found(ours, record) for ours in COLUMNS}
        return Fields(known, record)

    def _found(self, ours: str, record: Mapping[str, Any]) -> tuple[str, ...]:
        whole, *parts = self._names[ours]
        if self._has(whole, record):
            return (whole,)
        if parts:
            return tuple(name for name in parts if self._has(name, record))
        if ours in self.mapped:
            return ()
        return next((names for names in ALSO.get(ours, ()) if all(name in record for name in names)), ())

    def value(self, name: str, record: Mapping[str, Any]) -> Any:
        """The value in a row by one of the names that `Fields` has; raises `Flaw` for a path that leads nowhere."""
        if name in record:
            return record[name]
        keys = self._keys[name]
        if record[str(keys[0])] is None:
            return None
        return value_at(name, keys, record, did_you_mean)

    def missing(self, known: Iterable[str]) -> str:
        """What a file with the columns `known` lacks, and what would be right; empty where it lacks nothing."""
        there = list(known)
        if not there:
            return ""
        lacking = list(self._lacking(dict.fromkeys(there)))
        if not lacking:
            return ""
        remedies = [f"pass --column {ours}=NAME" if ours not in self.mapped else did_you_mean(name, there) for ours, name in lacking]
        if "answer" not in self.mapped and not any(set(names) <= set(there) for names in (("answer",), *ALSO["answer"])):
            remedies.append("--column answer=NAME as well, if one holds the right answers")
        names = " or ".join(f"`{name}`" for _, name in lacking)
        listed = ", ".join(f"`{name}`" for name in there[:20]) + (", ..." if len(there) > 20 else "")
        return "; ".join([f"no column {names}", f"it has {listed}", *(each for each in remedies if not each.startswith("known"))])

    def _lacking(self, known: Mapping[str, None]) -> Iterator[tuple[str, str]]:
        for ours in COLUMNS:
            if ours not in self.mapped and (ours != "problem" or is_request(known)):
                continue
            whole, *parts = self._names[ours]
            if not self._has(whole, known):
                yield from ((ours, name) for name in parts or [whole] if not self._has(name, known))

    def _has(self, name: str, record: Mapping[str, Any]) -> bool:
        return name in record or (len(self._keys[name]) > 1 and self._keys[name][0] in record)


def _keys(name: str) -> Keys:
    """The keys of a path; of what is none, such as a column with a bracket in its name, the name itself."""
    try:
        return keys_of(name)
    except ValueError:
        return (name,)
