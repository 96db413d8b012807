"""Splits by problem, and test sets that no training data may touch: texts of problems enter, the split of each leaves.

Both go by the text of a problem alone, whatever its id and however its white space and capitals are: the same problem is in the same
split in every run, and is found in a test set under any name.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from pipeline.data.many_files import open_files
from pipeline.data.problems import Problem
from pipeline.errors import UsageError
from pipeline.training.examples import Split


def fingerprint(problem: str) -> int:
    """64 bits of a problem's text."""
    said = " ".join(problem.split()).casefold()
    return int.from_bytes(blake2b(said.encode(errors="replace"), digest_size=8).digest())


def split_of(problem: str, validation: float) -> Split:
    """The split of a problem where about the share `validation` (0 to 1) of all problems is for validation."""
    return "validation" if fingerprint(problem) < validation * 2**64 else "train"


class HeldOut:
    """The problems of test sets, from which nothing may be learnt."""

    def __init__(self, test_sets: Mapping[str, Sequence[Path]]) -> None:
        """`test_sets`: the files of each, by its name. Raises `InputError` where one holds no problems or cannot be read."""
        self._sets: dict[str, set[int]] = {}
        for name, paths in test_sets.items():
            problems = open_files(paths)
            problems.check()
            self._sets[name] = {fingerprint(item.problem) for item in problems.unchanged() if isinstance(item, Problem)}

    def check(self, where: str, problems: Iterable[tuple[str, str]]) -> None:
        """Raise `UsageError` where any of the `problems` at `where`, each an id and a text, is in a test set."""
        if not self._sets:
            return
        known = [(name, fingerprint(text)) for name, text in problems]
        for test_set, held in self._sets.items():
            found = [name for name, digest in known if digest in held]
            if found:
                count = f"{len(found):,} of its {len(known):,} problems"
                what = f"{count} are in the test set {test_set}, the first is {found[0]!r}"
                raise UsageError(f"{where}: {what}; train on other problems, or name another test set")
