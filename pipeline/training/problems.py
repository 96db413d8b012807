"""Problems by their text: the split that a problem is in, and whether it is one of a test set.

A split goes by the text alone, whatever the problem's id and however its white space and capitals are: the same problem is in the same
split in every run. A row of training data holds a problem as part of a prompt, with the words of a graph and a chat template around it. So
a problem's words are looked for within the text's, whatever white space, capitals and punctuation other than operators are between them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from pipeline.data.files import Flaw, files_of, rows_of
from pipeline.errors import InputError, UsageError
from pipeline.training.examples import Split

COLUMNS = ("problem", "question")
"""Where the problem of a row is looked for; GSM8K as published has the second."""
WINDOW = 8
"""A problem is found by this many consecutive words. A shorter one could match by chance: it must be all that is on its
lines, after a colon or after a token in angle brackets."""
_BREAK = re.compile(r"\n|:\s|<[^<>\s]{1,40}>")
_WORD = re.compile(r"\w+|[-+*/^=<>]")

Words = tuple[str, ...]


def fingerprint(problem: str) -> int:
    """64 bits of a problem's text."""
    said = " ".join(problem.split()).casefold()
    return int.from_bytes(blake2b(said.encode(errors="replace"), digest_size=8).digest())


def problem_hash(problem: str) -> str:
    """The fingerprint of a problem's text as 16 hexadecimal digits."""
    return f"{fingerprint(problem):016x}"


def split_of(problem: str, validation: float) -> Split:
    """The split of a problem where about the share `validation` (0 to 1) of all problems is for validation."""
    return "validation" if fingerprint(problem) < validation * 2**64 else "train"


class HeldOutProblems:
    """The problems of some test sets."""

    def __init__(self, test_sets: Mapping[str, Sequence[Path]]) -> None:
        """`test_sets`: the files of each, by its name. Raises `InputError` for a file that holds no problems."""
        self._long: defaultdict[Words, list[tuple[Words, str]]] = defaultdict(list)
        self._short: defaultdict[Words, list[tuple[list[Words], str]]] = defaultdict(list)
        """By the first of their pieces."""
        for name, paths in test_sets.items():
            for path in (file for each in paths for file in files_of(each)):
                for problem in _problems(name, path):
                    if len(said := words(problem)) >= WINDOW:
                        self._long[said[:WINDOW]].append((said, name))
                    elif short := pieces(problem):
                        self._short[short[0]].append((short, name))

    def found_in(self, text: str) -> str | None:
        """The name of a test set with a problem that occurs in `text`; None without one."""
        if self._long:
            said = words(text)
            for place in range(len(said) - WINDOW + 1):
                for problem, name in self._long.get(said[place : place + WINDOW], ()):
                    if said[place : place + len(problem)] == problem:
                        return name
        said_alone = pieces(text) if self._short else []
        for place, piece in enumerate(said_alone):
            for short, name in self._short.get(piece, ()):
                if said_alone[place : place + len(short)] == short:
                    return name
        return None

    def check(self, where: str, problems: Iterable[tuple[str, str]]) -> None:
        """Raise `UsageError` where any of the `problems` at `where`, each an id and a text, is in a test set."""
        for problem_id, text in problems if self._long or self._short else ():
            if (name := self.found_in(text)) is not None:
                what = f"its problem {problem_id!r} is in the test set {name}"
                raise UsageError(f"{where}: {what}; train on other problems, or name another test set")


def words(text: str) -> Words:
    """The words, numbers and operators of a text, without capitals."""
    return tuple(_WORD.findall(text.casefold()))


def pieces(text: str) -> list[Words]:
    """The words of each part of a text that stands alone."""
    return [said for part in _BREAK.split(text) if (said := words(part))]


def _problems(name: str, path: Path) -> Iterable[str]:
    """The problems in a file of the test set `name`."""
    count = 0
    for record in rows_of(path):
        said = None if isinstance(record, Flaw) else next((record[column] for column in COLUMNS if column in record), None)
        if isinstance(said, str):
            count += 1
            yield said
    if not count:
        raise InputError(name, f"is named as a test set but has no problems in a column `{COLUMNS[0]}` or `{COLUMNS[1]}`")
