"""From one published row to one problem: a row and its recipe enter, a `CanonicalRow` leaves. Nothing is read or written.

What is wrong with a row is a `Flaw`: a clause that also says what would be right.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.data.problems import as_text, kind_of
from pipeline.data.recipe import LETTERS, Choices, Recipe, keys_of
from pipeline.data.rows import Flaw
from pipeline.errors import did_you_mean
from pipeline.grading.answers import Kind, extract_answer

Row = Mapping[str, Any]
HASHES = "####"


class CanonicalRow(Struct, frozen=True):
    """One row of a prepared file."""

    problem_id: str
    problem: str
    """As a model is to see it, options included; a graph adds its instruction."""
    answer: str
    options: tuple[str, ...]
    """Of a multiple-choice problem, A first; else empty."""
    source: str
    grader: Kind
    kept: dict[str, str | None]
    """What else the recipe keeps."""


class Reader:
    """Reads rows as one recipe says."""

    def __init__(self, recipe: Recipe, names: Mapping[str, None]) -> None:
        """`names` are the columns of the file, where rows hold only those that the recipe reads; it may grow meanwhile."""
        self.recipe, self._names = recipe, names
        self._keys = {path: keys_of(path) for _, path in recipe.paths()}

    def wanted(self, row: Row) -> bool:
        """Whether the recipe's `only` lets this row in."""
        return all(self._keys[path][0] not in row or self._value(path, row) in accepted for path, accepted in self.recipe.only.items())

    def read(self, number: int, row: Row) -> CanonicalRow:
        """The problem in row `number`, from 1; raises `Flaw`."""
        recipe = self.recipe
        problem = self._text(recipe.problem, row).removeprefix(recipe.problem_prefix.strip()).strip()
        options: tuple[str, ...] = ()
        if recipe.choices is not None:
            problem, answer, options = self._choose(recipe.choices, problem, row)
        else:
            problem, answer = self._answer(recipe.answer or "answer", problem, row)
        if not problem:
            raise Flaw(f"`{recipe.problem}` holds no problem, only what the recipe cuts off it")
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
        """Problem and answer; the one may stand at the end of the other."""
        value = self._value(path, row)
        parts = value if isinstance(value, list) else [value]
        text = ", ".join(filter(None, ((as_text(path, part) or "").strip() for part in parts)))
        if not text:
            for mark in self.recipe.answer_marks:
                before, _, after = problem.rpartition(mark)
                if before.strip() and after.strip():
                    return before.strip(), after.strip()
            raise Flaw(f"`{path}` is empty; every problem needs the answer that is right")
        return problem, self._gold(path, text)

    def _gold(self, path: str, text: str) -> str:
        if self.recipe.gold == "as_is":
            return text
        if self.recipe.gold == "boxed":
            gold, expected = extract_answer(text), "\\boxed{ANSWER}"
        else:
            gold, expected = text.rpartition(HASHES)[2].strip() if HASHES in text else None, f"{HASHES} ANSWER"
        if not gold:
            raise Flaw(f"`{path}` holds no `{expected}`; the recipe takes the answer from there")
        return gold

    def _choose(self, choices: Choices, question: str, row: Row) -> tuple[str, str, tuple[str, ...]]:
        right = self._text(choices.right, row)
        wrong = [self._text(path, row) for path in choices.wrong]
        if right in wrong:
            raise Flaw(f"`{choices.wrong[wrong.index(right)]}` is the same as `{choices.right}`; only one option may be right")
        options = shuffled([right, *wrong], question, choices.seed)
        return with_options(question, options), LETTERS[options.index(right)], options

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
        """What stands at `path`; raises `Flaw` where the row does not go there."""
        value: Any = row
        for key in self._keys[path]:
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
                raise Flaw(f"has no `{path}`; {self._instead(key, value, value is row)}")
            value = value[key]
        return value

    def _instead(self, name: str, place: Row, is_row: bool) -> str:
        """What is there where `name` is not, as a clause."""
        if not is_row or not self._names:
            return did_you_mean(name, place)
        return "other rows have it" if name in self._names else did_you_mean(name, self._names)


def shuffled(options: Iterable[str], question: str, seed: int) -> tuple[str, ...]:
    """The options in an order that depends on seed, question and texts alone, not on the order they come in."""
    return tuple(sorted(options, key=lambda option: hashlib.blake2b("\0".join((str(seed), question, option)).encode()).digest()))


def with_options(question: str, options: Sequence[str]) -> str:
    """The question, its options as the papers print them, and what to answer: graphs then ask for it in a box."""
    lines = [f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    letters = f"{', '.join(LETTERS[: len(lines) - 1])} or {LETTERS[len(lines) - 1]}"
    return "\n".join([question, "", *lines, "", f"One option is right. The final answer is its letter alone: {letters}."])


def canonical_digest(rows: Iterable[CanonicalRow]) -> str:
    """blake2b, 16 bytes in hexadecimal, over all problems and answers in order, each pair as a line of JSON."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(msgspec.json.encode((row.problem, row.answer)) + b"\n")
    return digest.hexdigest()
