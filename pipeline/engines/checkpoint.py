"""The files of a model's folder, read without loading the model: which hold its weights, and why it could not be served.

A folder enters; the tensors of its safetensors files leave by name, with their shapes, and flaws as clauses. Of weights only the headers
are read.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from safetensors import SafetensorError, safe_open

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.gguf")
"""Where weights are looked for without an index; the files of the first pattern that finds any are the checkpoint."""
_NO_WEIGHTS = ("adapter_model", "training_args", "optimizer", "scheduler")
"""Beginnings of the names of files that match a pattern and are no weights of the model."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "tokenizer_config.json")
_OTHER_CONFIGURATIONS = ("params.json", "adapter_config.json")
"""In place of a `config.json`: Mistral's own format, and that of an adapter that names its base model."""

ANEW = "copy or download it again, or use another model"
"""Advice on a model whose files are damaged or not its own."""

Part = Literal["config", "weights", "tokenizer"]
Tensors = dict[str, tuple[int, ...]]
"""The shape of each tensor, by its name."""


class FileFlaw(Struct, frozen=True):
    """Something wrong with a file of a model, because of which no engine can serve it."""

    part: Part
    what: str
    """The flaw, as a clause."""


class Damaged(Exception):
    """A file of weights is not what its name says; the text is a clause about it."""


def flaws_in(folder: Path) -> Iterator[FileFlaw]:
    """The flaws of the files of the model in `folder`, causes before their consequences."""
    other_format = any((folder / name).is_file() for name in _OTHER_CONFIGURATIONS) or any(folder.glob("*.gguf"))
    if not other_format and not (folder / "config.json").is_file():
        yield FileFlaw("config", "it has no config.json")
    elif not other_format and not read_json(folder / "config.json"):
        yield FileFlaw("config", "its config.json holds no JSON object")
    if (what := _flaw_in_weights(folder)) is not None:
        yield FileFlaw("weights", what)
    if not any((folder / name).is_file() for name in _TOKENIZERS) and not any(folder.glob("*.gguf")):
        yield FileFlaw("tokenizer", f"it has no tokenizer, no {', '.join(_TOKENIZERS[:3])} or the like")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in `folder`: those that its index names, there or not, else those found."""
    for name in _INDEXES:
        if (folder / name).is_file():
            weight_map = read_json(folder / name).get("weight_map")
            named = weight_map.values() if isinstance(weight_map, dict) else ()
            return sorted({folder / each for each in named if isinstance(each, str)})
    for pattern in _PATTERNS:
        if found := sorted(path for path in folder.glob(pattern) if not path.name.startswith(_NO_WEIGHTS)):
            return found
    return []


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file, from its header; raises `Damaged` where the file is missing or not whole."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - `file` is no mapping
    except FileNotFoundError:
        raise Damaged("is missing") from None
    except (SafetensorError, OSError) as error:
        raise Damaged(f"is damaged or cut short ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file or it holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def listed(names: list[str], most: int = 3) -> str:
    """The first of `names`, and how many others there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} others" if len(names) > most else "")


def _flaw_in_weights(folder: Path) -> str | None:
    """The first flaw in the files of the weights, as far as headers and sizes tell."""
    files = weight_files(folder)
    index = next((name for name in _INDEXES if (folder / name).is_file()), None)
    if not files:
        return f"its {index} names no files" if index else "it has no weights, no *.safetensors or *.bin"
    if absent := [path.name for path in files if not path.exists()]:
        return f"{len(absent)} of its {len(files)} weight files are missing: {listed(absent)}"
    for path in files:
        try:
            if path.suffix == ".safetensors":
                read_tensors(path)
            elif not path.stat().st_size:
                return f"its {path.name} is empty"
        except Damaged as flaw:
            return f"its {path.name} {flaw}"
    return None
