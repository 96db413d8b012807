"""What a recipe of `datasets/` may say: a YAML file enters, a `Recipe` leaves. No data is read here.

A recipe says where a published data set comes from, how its rows become problems, and what is there when all is well.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipeline.bundled import find_file
from pipeline.errors import GraphError
from pipeline.grading.answers import Kind
from pipeline.graph.loader import load_struct
from pipeline.graph.spec import NAME_PATTERN

COLUMNS = ("problem_id", "problem", "answer", "options", "source", "grader")
"""Of a prepared file, in order; what a recipe keeps besides follows."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*")
_DIGEST = re.compile(r"[0-9a-f]{32}")

Keys = tuple[str | int, ...]
"""Where a value is in a row: the column, then names within objects and places within arrays."""


class Hub(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A data set on the hub, as `datasets.load_dataset` takes it."""

    id: str
    config: str | None = None
    split: str
    revision: str | None = None
    rows: int | None = None
    """Where the hub's edition is known to hold another number of rows than the recipe's; its digest is then not known."""


class Choices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a multiple-choice problem: they are put in an order that depends on `seed`, problem and options alone."""

    right: str
    """Path of the right option."""
    wrong: Annotated[tuple[str, ...], Meta(min_length=1, max_length=len(LETTERS) - 1)]
    seed: int = 0


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From rows as published to problems. Columns are given as paths: `answer`, `final_answer[0]`, `meta.answer`."""

    name: str
    """The file's name without `.yaml`; problem ids begin with it."""
    title: str
    license: str
    citation: str
    notes: str = ""
    """What one should know about the data."""
    hub: Hub | None = None
    file: str | None = None
    """Of bundled data: where they are, from the recipe on."""

    problem: str
    problem_prefix: str = ""
    """Cut off where a problem begins with it: a graph has an instruction of its own."""
    problem_id: str | None = None
    """The row's number, from 1, where a data set has no ids."""
    answer: str | None = None
    """An array is joined with commas. Null for multiple choice."""
    gold: Literal["as_is", "after_hashes", "boxed"] = "as_is"
    """Where the reference is in `answer`: all of it, what follows its last `####` (GSM8K), or its last `\\boxed{}`."""
    answer_marks: tuple[str, ...] = ()
    """Where `answer` is empty and the problem goes on behind one of these marks, that is the answer, and is cut off it."""
    choices: Choices | None = None
    grader: Kind
    source: str | None = None
    """Path of what says where a row is from; the title where there is none."""
    keep: dict[str, str] = {}
    """More columns of text: our name and its path. What a row does not have is null."""
    only: dict[str, tuple[str | int | bool | None, ...]] = {}
    """Rows with another value in one of these columns are left out; a column that a row does not have leaves nothing out."""

    rows: Annotated[int, Meta(ge=1)] | None = None
    """How many there are, once those that `only` leaves out are gone."""
    digest: str | None = None
    """Of all problems and answers in order: what `canonical_digest` says; null where it is not known."""

    def paths(self) -> Iterator[tuple[str, str]]:
        """Each key that names a place in a row, with the path there."""
        given = {"problem": self.problem, "problem_id": self.problem_id, "answer": self.answer, "source": self.source}
        yield from ((key, path) for key, path in given.items() if path is not None)
        if self.choices is not None:
            yield "choices.right", self.choices.right
            yield from ((f"choices.wrong[{place}]", path) for place, path in enumerate(self.choices.wrong))
        yield from ((f"keep.{ours}", path) for ours, path in self.keep.items())
        yield from ((f"only.{path}", path) for path in self.only)

    def columns(self) -> tuple[str, ...]:
        """The columns of a published row that are read."""
        return tuple(dict.fromkeys(str(keys_of(path)[0]) for _, path in self.paths()))


def keys_of(path: str) -> Keys:
    """`final_answer[0]` as a column and a place; raises `ValueError` for what is no path."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no path; expected a column, then .NAME or [PLACE] for what is inside, such as `final_answer[0]`")
    return tuple(int(place) if place else name for place, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path))


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or in the YAML file at that path; raises `UsageError`."""
    return load_recipe(find_file(name, "data set"))


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file; raises `GraphError` for whatever in it is wrong, with its place."""
    recipe = load_struct(path, Recipe)
    for key, what in _flaws(recipe, path.stem):
        raise GraphError(f"{path}: $.{key}", what)
    return recipe


def _flaws(recipe: Recipe, stem: str) -> Iterator[tuple[str, str]]:
    """What is wrong although every key has the right type: the key, and what would be right."""
    if recipe.name != stem or not re.fullmatch(NAME_PATTERN, recipe.name):
        yield "name", f"expected `{stem}`, as the file is named, in small letters, digits, - and _, got {recipe.name!r}"
    if (recipe.answer is None) == (recipe.choices is None):
        yield "answer", "expected either `answer` or `choices`, got " + ("neither" if recipe.answer is None else "both")
    if recipe.choices is not None and recipe.grader != "letter":
        yield "grader", f"expected `letter`, as there are `choices`, got {recipe.grader!r}"
    if recipe.digest is not None and not _DIGEST.fullmatch(recipe.digest):
        yield "digest", f"expected 32 hexadecimal digits, got {recipe.digest!r}"
    for ours in recipe.keep:
        if ours in COLUMNS or not re.fullmatch(NAME_PATTERN, ours):
            yield f"keep.{ours}", "expected a name in small letters, digits, - and _ that is not a column already"
    for key, path in recipe.paths():
        try:
            keys_of(path)
        except ValueError as error:
            yield key, str(error)
