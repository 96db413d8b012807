"""Test sets are told from what they are called: the name of an input enters, the reason why it is a test set leaves."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.bundled import bundled_files
from pipeline.data.many_files import files_of, split_of


def why_a_test_set(path: Path, name: str = "") -> str | None:
    """Why the problems at `path` are a test set, as a clause; None where nothing says so.

    A name says so, that of the file, of its folder, or the `name` that the user gave; and a file that `pipeline prepare` made from a recipe
    of a published test set.
    """
    for file in files_of(path):
        named = split_of(file.stem) or file.parent.name.lower()
        if named == "test" or split_of(Path(name).stem) == "test":
            return "its name says so"
        if (recipe := _recipe(file)) is not None:
            return f"`pipeline prepare {recipe}` made it, a data set that results are reported on"
    return None


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
