"""Problems by their text: which split a problem is in, and which are those of a test set.

A problem is known by a hash of its text, whatever its id and however its white space and capitals are.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from pipeline.data.problems import Problem
from pipeline.data.reading import read_files
from pipeline.training.examples import Split


def problem_hash(problem: str) -> str:
    """64 bits of a problem's text as 16 hexadecimal digits."""
    said = " ".join(problem.split()).casefold()
    return blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()


def split_of(problem: str, validation: float) -> Split:
    """The split of a problem where about the share `validation` (0 to 1) of all problems is for validation."""
    return "validation" if int(problem_hash(problem), 16) < validation * 2**64 else "train"


def read_held_out(test_sets: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """The name of a test set by the hash of each problem that it has; `test_sets` has the files of each. Raises `InputError`."""
    return {
        problem_hash(item.problem): name
        for name, paths in test_sets.items()
        for item, _ in read_files(paths, names=(name,))
        if isinstance(item, Problem)
    }
