"""The graphs, engines files, reward models and recipes that come with this package, by name.

A name or a path enters, a path leaves. In a checkout the files are the repository's own `graphs/` and `datasets/`, in a
wheel they lie in the package. Nothing is read here.
"""

import os
from pathlib import Path
from typing import Literal

from pipeline.errors import UsageError, did_you_mean

Kind = Literal["graph", "engines file", "reward model", "data set"]

_PACKAGE = Path(__file__).parent
_ROOT = _PACKAGE if (_PACKAGE / "graphs").is_dir() else _PACKAGE.parent
FOLDERS: dict[Kind, Path] = {
    "graph": _ROOT / "graphs",
    "engines file": _ROOT / "graphs" / "engines",
    "reward model": _ROOT / "graphs" / "rewards",
    "data set": _ROOT / "datasets",
}


def bundled_files(*kinds: Kind) -> dict[str, Path]:
    """The bundled files of these kinds by name; where two kinds share a name the earlier one has it."""
    return {path.stem: path for kind in reversed(kinds) for path in sorted(FOLDERS[kind].glob("*.yaml"))}


def find_file(name: Path | str, *kinds: Kind, beside: Path = Path()) -> Path:
    """The file that `name` means: a path as it stands, else the bundled file of one of `kinds` that is called so.

    A path holds a separator, ends in `.yaml`, or names a file that exists: where a file and a bundled file have one name, the
    former is meant. Relative paths count from the folder `beside`. Raises `UsageError` for a name that is not known; whether
    a path leads to a file is not checked.
    """
    text, path = str(name), beside / name
    if text.endswith((".yaml", ".yml")) or os.sep in text or (os.path.exists(path) and not os.path.isdir(path)):
        return path
    known = bundled_files(*kinds)
    if text in known:
        return known[text]
    if os.path.isdir(path):
        return path  # reading it says what is wrong
    raise UsageError(f"no {' or '.join(kinds)} is named `{text}` and there is no such file; {did_you_mean(text, known)}")
