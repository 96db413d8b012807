"""Recipes: where a published data set comes from, how its rows become problems, and how many rows with which digest to expect.

A YAML file enters, a `Recipe` leaves; one of its published rows enters a `RowReader`, one `CanonicalRow` leaves. No data are
read or written here. What is wrong with a row is a `Flaw`: a clause that also says what would be right.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pipeline.bundled import find_file
from pipeline.data.options import shuffled
from pipeline.data.rows import Flaw, as_text, keys_of, value_at
from pipeline.errors import GraphError, did_you_mean
from pipeline.grading.stated import boxed
from pipeline.graph.load import load_struct
from pipeline.graph.prompts import LETTERS
from pipeline.graph.spec import NAME_PATTERN

COLUMNS = ("problem_id", "problem", "answer", "options", "source", "grader")
"""The columns of a prepared file, in order; those of the recipe's `keep` follow."""
HASHES = "####"
"""The marker before the final answer of a worked solution, as GSM8K writes it."""

_DIGEST = re.compile(r"[0-9a-f]{32}")

Rows = Annotated[int, Meta(ge=1, le=1_000_000_000_000)]
Row = Mapping[str, Any]


BuiltIn = Literal["math", "numeric", "letter"]
"""The kinds of grading that need no other package: `grading.answers.KINDS`."""


class Hub(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A data set on the Hugging Face hub, by the arguments of `datasets.load_dataset`."""

    id: str
    config: str | None = None
    split: str
    revision: str | None = None
    rows: Rows | None = None
    """The number of rows on the hub, where it is another one than the recipe's; its digest is then not known."""


class OptionPaths(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the options of a multiple-choice problem are; `shuffled` puts them in an order that depends on `seed`, problem and options."""

    right: str
    """Path of the right option in a row."""
    wrong: Annotated[tuple[str, ...], Meta(min_length=1, max_length=len(LETTERS) - 1)]
    """Paths of the wrong options."""
    seed: int = 0


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How published rows become problems. Values in a row are named by paths: `answer`, `final_answer[0]`, `meta.answer`."""

    name: str
    """The file's name without `.yaml`; problem ids begin with it."""
    title: str
    """Title of the data set."""
    license: str
    """Its license."""
    citation: str
    """How to cite it."""
    notes: str = ""
    """What to know about the data."""
    hub: Hub | None = None
    """Where it is on the hub; null: nowhere."""
    file: str | None = None
    """Path of the bundled data file, relative to the recipe; null: the data are not bundled."""

    problem: str
    """Path of the problem's text."""
    problem_prefix: str = ""
    """Text that is removed from the beginning of every problem that has it, because a graph has its own instruction."""
    problem_id: str | None = None
    """Path of the id; null: the data set has none, and rows are numbered from 1."""
    answer: str | None = None
    """Path of the reference answer (an array is joined with commas); null for multiple choice."""
    gold: Literal["as_is", "after_hashes", "boxed"] = "as_is"
    """What of `answer` is the reference: all of it, what follows its last `####` (GSM8K), or its last `\\boxed{}`."""
    answer_marks: tuple[str, ...] = ()
    """Marks after which the answer follows in the problem's text if `answer` is empty; it is then removed from the problem."""
    choices: OptionPaths | None = None
    """The options of multiple-choice problems; null: none."""
    grader: BuiltIn
    """How answers are compared."""
    source: str | None = None
    """Path of the name of a row's source; null: the title of the recipe."""
    keep: dict[str, str] = {}
    """Additional columns of text to keep: paths by new name; null in rows without it."""
    only: dict[str, tuple[str | int | bool | None, ...]] = {}
    """Accepted values by path: rows with other values are left out, rows without the column are kept."""

    first: Rows | None = None
    """How many rows to take, from the first on, not counting those left out by `only`; null: all."""

    rows: Rows | None = None
    """Expected number of rows, not counting those left out by `only` and `first`; null: unknown."""
    digest: str | None = None
    """Expected digest of the prepared rows; null: unknown."""

    def paths(self) -> Iterator[tuple[str, str]]:
        """Every key of this recipe that holds a path, with that path."""
        given = {"problem": self.problem, "problem_id": self.problem_id, "answer": self.answer, "source": self.source}
        yield from ((key, path) for key, path in given.items() if path is not None)
        if self.choices is not None:
            yield "choices.right", self.choices.right
            yield from ((f"choices.wrong[{place}]", path) for place, path in enumerate(self.choices.wrong))
        yield from ((f"keep.{ours}", path) for ours, path in self.keep.items())
        yield from ((f"only.{path}", path) for path in self.only)

    def columns(self) -> tuple[str, ...]:
        """The columns of a published file that the recipe reads."""
        return tuple(dict.fromkeys(str(keys_of(path)[0]) for _, path in self.paths()))


def find_recipe(name: str) -> Recipe:
    """The bundled recipe named `name`, or the one in the YAML file at that path; raises `UsageError`."""
    return load_recipe(find_file(name, "data set"))


def load_recipe(path: Path) -> Recipe:
    """The recipe in the file at `path`; raises `GraphError` that says what in it is wrong and where."""
    recipe = load_struct(path, Recipe)
    for key, what in _flaws(recipe, path.stem):
        raise GraphError(f"{path}: $.{key}", what)
    return recipe


def _flaws(recipe: Recipe, stem: str) -> Iterator[tuple[str, str]]:
    """What is wrong although every key has the right type: the key, and what would be right."""
    if recipe.name != stem or not re.fullmatch(NAME_PATTERN, recipe.name):
        yield "name", f"expected `{stem}`, as the file is named, in lower-case letters, digits, - and _, got {recipe.name!r}"
    if (recipe.answer is None) == (recipe.choices is None):
        yield "answer", "expected either `answer` or `choices`, got " + ("neither" if recipe.answer is None else "both")
    if recipe.choices is not None and recipe.grader != "letter":
        yield "grader", f"expected `letter`, as there are `choices`, got {recipe.grader!r}"
    if recipe.digest is not None and not _DIGEST.fullmatch(recipe.digest):
        yield "digest", f"expected 32 hexadecimal digits, got {recipe.digest!r}"
    for ours in recipe.keep:
        if ours in COLUMNS or not re.fullmatch(NAME_PATTERN, ours):
            yield f"keep.{ours}", "expected a name in lower-case letters, digits, - and _ that is not a column already"
    for key, path in recipe.paths():
        try:
            keys_of(path)
        except ValueError as error:
            yield key, str(error)


class CanonicalRow(Struct, frozen=True):
    """One problem, as a row of a prepared file holds it."""

    problem_id: str
    problem: str
    """The text that a model is asked about; a graph adds the options and its instruction."""
    answer: str
    """The reference answer."""
    options: tuple[str, ...]
    """The options of a multiple-choice problem, A first; else empty."""
    source: str
    grader: BuiltIn
    kept: dict[str, str | None]
    """The columns of the recipe's `keep`, by their new names."""


class RowReader:
    """Turns published rows into problems by one recipe."""

    def __init__(self, recipe: Recipe, names: Mapping[str, None]) -> None:
        """`names` are the columns of the file, where rows hold only those that the recipe reads; it may grow meanwhile."""
        self.recipe, self._names = recipe, names
        self._keys = {path: keys_of(path) for _, path in recipe.paths()}

    def wanted(self, row: Row) -> bool:
        """Whether the recipe's `only` accepts this row."""
        return all(self._keys[path][0] not in row or self._value(path, row) in accepted for path, accepted in self.recipe.only.items())

    def read(self, number: int, row: Row) -> CanonicalRow:
        """The problem in `row`, the `number`th of the file, from 1; raises `Flaw` where it holds none."""
        recipe = self.recipe
        problem = self._text(recipe.problem, row).removeprefix(recipe.problem_prefix.strip()).strip()
        options: tuple[str, ...] = ()
        if recipe.choices is not None:
            answer, options = self._choose(recipe.choices, problem, row)
        else:
            problem, answer = self._answer(recipe.answer or "answer", problem, row)
        if not problem:
            raise Flaw(f"`{recipe.problem}` holds no problem, only what the recipe removes")
        return CanonicalRow(
            problem_id=self._id(number, row),
            problem=problem,
            answer=answer,
            options=options,
            source=self._optional(recipe.source, row) or recipe.title,
            grader=recipe.grader,
            kept={ours: self._optional(path, row) for ours, path in recipe.keep.items()},
        )

    def _id(self, number: int, row: Row) -> str:
        path, name = self.recipe.problem_id, self.recipe.name
        own = str(number) if path is None else self._text(path, row)
        return own if own.startswith(f"{name}-") else f"{name}-{own}"

    def _answer(self, path: str, problem: str, row: Row) -> tuple[str, str]:
        """Problem and answer of a row; the answer may be at the end of the problem's text, after one of `answer_marks`."""
        value = self._value(path, row)
        parts = value if isinstance(value, list) else [value]
        text = ", ".join(filter(None, ((as_text(path, part) or "").strip() for part in parts)))
        if not text:
            for mark in self.recipe.answer_marks:
                before, _, after = problem.rpartition(mark)
                if before.strip() and after.strip():
                    return before.strip(), after.strip()
            raise Flaw(f"`{path}` is empty; every problem needs its correct answer")
        return problem, self._gold(path, text)

    def _gold(self, path: str, text: str) -> str:
        if self.recipe.gold == "as_is":
            return text
        if self.recipe.gold == "boxed":
            gold, expected = boxed(text), "\\boxed{ANSWER}"
        else:
            gold, expected = text.rpartition(HASHES)[2].strip() if HASHES in text else None, f"{HASHES} ANSWER"
        if not gold:
            raise Flaw(f"`{path}` holds no `{expected}`; the recipe takes the answer from there")
        return gold

    def _choose(self, choices: OptionPaths, question: str, row: Row) -> tuple[str, tuple[str, ...]]:
        right = self._text(choices.right, row)
        wrong = [self._text(path, row) for path in choices.wrong]
        if right in wrong:
            raise Flaw(f"`{choices.wrong[wrong.index(right)]}` is the same as `{choices.right}`; only one option may be correct")
        options = shuffled([right, *wrong], question, choices.seed)
        return LETTERS[options.index(right)], options

    def _text(self, path: str, row: Row) -> str:
        text = (as_text(path, self._value(path, row)) or "").strip()
        if not text:
            raise Flaw(f"`{path}` is empty; expected text")
        return text

    def _optional(self, path: str | None, row: Row) -> str | None:
        """The text at `path`, None where there is none."""
        if path is None or self._keys[path][0] not in row:
            return None
        return as_text(path, self._value(path, row)) or None

    def _value(self, path: str, row: Row) -> Any:
        """The value at `path`; raises `Flaw` where the row has none there."""
        return value_at(path, self._keys[path], row, lambda name, place: self._instead(name, place, place is row))

    def _instead(self, name: str, place: Row, is_row: bool) -> str:
        """A clause that says what the row or the file has in place of `name`."""
        if not is_row or not self._names:
            return did_you_mean(name, place)
        return "other rows have it" if name in self._names else did_you_mean(name, self._names)


def canonical_digest(rows: Iterable[CanonicalRow]) -> str:
    """blake2b, 16 bytes in hexadecimal, over all problems and answers in order, each pair as a line of JSON."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(msgspec.json.encode((row.problem, row.answer)) + b"\n")
    return digest.hexdigest()
