"""Test sets are told from what they are called and from what is bundled: an input enters, the reason why it is a test set leaves."""

import filecmp
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bundled import FOLDERS, bundled_files
from pipeline.data.many_files import files_of, split_of

_TEST = re.compile(r"(?<![a-z])(?:my)?tests?(?:ing|set|data|mini|split)?(?![a-z])")
"""The word in the name of a test set, and not that in `latest`, `contest` or `testament`."""


def why_a_test_set(path: Path, name: str = "") -> str | None:
    """Why the problems at `path` are a test set, as a clause; None where nothing says so.

    A name says so, that of the file, of its folder, of what a link leads to, or the `name` that the user gave. So does what it holds: what
    `pipeline prepare` made from a recipe of a published test set, or a bundled test set.
    """
    for file in files_of(path):
        if _says_so(file) or _says_so(Path(name)):
            return "its name says so"
        if (real := file.resolve()) != file.absolute() and _says_so(real):
            return f"it is {real}, whose name says so"
        if (recipe := _recipe(file)) is not None:
            return f"`pipeline prepare {recipe}` made it, a data set that results are reported on"
        bundled = FOLDERS["data set"].glob("*/test.parquet")
        if file.is_file() and (same := next((each for each in bundled if filecmp.cmp(file, each, shallow=False)), None)):
            return f"it holds what the bundled {same.parent.name}/{same.name} does"
    return None


def _says_so(file: Path) -> bool:
    """Whether a file is called a test set, or as a bundled recipe of one (`math500`, `MATH-500`), and not as another split."""
    stem, parted = file.stem.lower(), re.compile(r"[^a-z0-9]+")
    if split_of(stem) not in ("", "test"):
        return False
    words = {*parted.split(stem), parted.sub("", stem)}
    known = {parted.sub("", recipe) for recipe in bundled_files("data set")}
    return bool(_TEST.search(stem) or _TEST.fullmatch(file.parent.name.lower()) or words & known)


def _recipe(file: Path) -> str | None:
    """The bundled recipe of which `pipeline prepare` made a file; None where it is of none."""
    known = bundled_files("data set")
    if file.suffix == ".parquet" and file.is_file():
        try:
            about = pq.read_schema(file).metadata or {}
        except (pa.ArrowException, OSError):
            return None  # reading it says what is wrong
        return next((each for each in known if each.encode() == about.get(b"recipe")), None)
    return None
