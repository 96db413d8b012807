"""The graphs, engines files, reward models and training files that come with this package, by name.

A name or a path enters, a path leaves. In a checkout the files are the repository's own `graphs/` and `datasets/`, in a
wheel they lie in the package. Bundled models have the prefix `BUNDLED`. Nothing is read here.
"""

import os
from pathlib import Path
from typing import Literal

from pipeline.errors import UsageError, did_you_mean

FileKind = Literal["graph", "engines file", "prompts file", "preset", "reward model", "training file", "study file"]
"""The kinds of bundled files."""

BUNDLED = "bundled:"
"""The prefix of the names of models and adapters that are in this package."""
_PACKAGE = Path(__file__).parents[1]
_ROOT = _PACKAGE if (_PACKAGE / "graphs").is_dir() else _PACKAGE.parent
FOLDERS: dict[FileKind, Path] = {
    "graph": _ROOT / "graphs",
    "engines file": _ROOT / "graphs" / "engines",
    "prompts file": _ROOT / "graphs" / "prompts",
    "preset": _ROOT / "graphs" / "presets",
    "reward model": _ROOT / "graphs" / "rewards",
    "training file": _ROOT / "graphs" / "training",
    "study file": _ROOT / "graphs" / "studies",
}
ARITH = _ROOT / "datasets" / "arith"
"""The folder of the bundled problems, a Parquet file a split."""


REPLAY = "replay:"
"""Marks a run folder where the name of an engines file is expected: `replay:RUN`."""


def replayed(engines: Path | None) -> Path | None:
    """The run folder in `replay:RUN`, absolute; None for the name of a file."""
    name = str(engines or "")
    return Path(name.removeprefix(REPLAY)).absolute() if name.startswith(REPLAY) else None


def model_name(model: str) -> str:
    """The name of a model, without its folder or owner."""
    return model.removeprefix(BUNDLED).rstrip("/").rpartition("/")[2]


def bundled_files(*kinds: FileKind) -> dict[str, Path]:
    """The bundled files of these kinds by name; where two have one name, the kind given first wins."""
    return {path.stem: path for kind in reversed(kinds) for path in sorted(FOLDERS[kind].glob("*.yaml"))}


def find_file(name: Path | str, *kinds: FileKind, beside: Path = Path()) -> Path:
    """The file that `name` means: a path as it stands, else the bundled file of one of `kinds` that is called so.

    `name` is a path where it holds a separator, ends in `.yaml` or names an existing file, which goes before a bundled file of
    the same name. Relative paths count from the folder `beside`. Raises `UsageError` for a name that is not known; whether
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
