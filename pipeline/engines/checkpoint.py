"""The files of a model's folder, read without loading the model: what they hold, and what is wrong with them.

A folder enters; the tensors of its safetensors files leave by name, with their shapes, and flaws as clauses. Nothing is opened that
is no ordinary file, and of weights only the headers are read.
"""

import json
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.gguf")
"""Where weights are looked for without an index; the files of the first pattern that finds any are the checkpoint."""
_NO_WEIGHTS = ("adapter_model", "training_args", "optimizer", "scheduler")
"""Beginnings of the names of files that match a pattern and are no weights of the model."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "tokenizer_config.json")
_OTHER_CONFIGURATIONS = ("params.json", "adapter_config.json")
"""In place of a `config.json`: Mistral's own format, and that of an adapter that names its base model."""
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..*)")
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100 << 20
"""The safetensors format allows no longer header."""
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"))

ANEW = "copy or download it again, or use another model"
"""What to do about a model whose files are damaged or not its own."""

Part = Literal["config", "weights", "tokenizer"]
Tensors = dict[str, tuple[int, ...]]
"""The shape of each tensor, by its name."""


class Flaw(Struct, frozen=True):
    """Something wrong with a file of a model, because of which no engine can serve it."""

    part: Part
    what: str
    """The flaw, as a clause."""


class Damaged(Exception):
    """A file of weights is not what its name says; the text is a clause about it."""


def flaws_in(folder: Path) -> Iterator[Flaw]:
    """What is wrong with the files of the model in `folder`, causes before their consequences."""
    if (what := unusual_file(folder)) is not None:
        yield Flaw("config", what)
        return
    if (what := _flaw_in_config(folder)) is not None:
        yield Flaw("config", what)
    if (what := _flaw_in_weights(folder)) is not None:
        yield Flaw("weights", what)
    if not any((folder / name).is_file() for name in _TOKENIZERS) and not [*folder.glob("*.gguf")]:
        yield Flaw("tokenizer", f"it has no tokenizer, no {', '.join(_TOKENIZERS[:3])} or the like")


def unusual_file(folder: Path) -> str | None:
    """A clause about the first entry of `folder` that is a named pipe, a device or a socket; None without one, or without a folder."""
    try:
        found = ((path, _kind(path)) for path in sorted(folder.iterdir())) if folder.is_dir() else iter(())
        return next((f"its {path.name} is {kind}, not a file" for path, kind in found if kind is not None), None)
    except OSError as error:
        return f"its folder cannot be read ({error.strerror})"


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in `folder`: those that its index or the name of a shard tells, there or not, else
    those found."""
    for name in _INDEXES:
        if (folder / name).is_file():
            weight_map = read_json(folder / name).get("weight_map")
            named = weight_map.values() if isinstance(weight_map, dict) else ()
            return sorted({folder / each for each in named if isinstance(each, str)})
    for pattern in _PATTERNS:
        found = [path for path in folder.glob(pattern) if not path.name.startswith(_NO_WEIGHTS)]
        if found:
            return sorted({path for each in found for path in _all_shards(each)})
    return []


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file, from its header; raises `Damaged` where the file is missing or not whole."""
    if (what := _flaw_in_file(path)) is not None:
        raise Damaged(what)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = file.read(length) if length <= _MOST_HEADER_BYTES else b""
        data_bytes = path.stat().st_size - length - _LENGTH_BYTES
    if length <= _MOST_HEADER_BYTES and data_bytes < 0:
        raise Damaged(f"is cut short: its header alone takes {length:,} bytes")
    try:
        entries = {name: entry for name, entry in _object(header).items() if name != "__metadata__"}
        tensors = {name: tuple(int(size) for size in entry["shape"]) for name, entry in entries.items()}
        needed = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise Damaged("is not in the safetensors format") from None
    if needed > data_bytes:
        raise Damaged(f"is cut short: its tensors take {needed:,} bytes, and {data_bytes:,} are there")
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file or it holds something else."""
    try:
        return _object(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError):
        return {}


def whole_number(value: object) -> int | None:
    """`value` as a number of things, at least 1, where it is one, though perhaps written as `4096.0`; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1 << 62 or value != int(value):
        return None
    return int(value)


def _object(content: bytes) -> dict[str, Any]:
    """A decoded JSON object; raises `ValueError` for anything else."""
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _kind(path: Path) -> str | None:
    """What `path` is, where that is neither a file nor a folder: opening it could wait forever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return next((kind for test, kind in _KINDS if test(mode)), None)


def _flaw_in_config(folder: Path) -> str | None:
    if any((folder / name).is_file() for name in _OTHER_CONFIGURATIONS) or [*folder.glob("*.gguf")]:
        return None
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    config = read_json(folder / "config.json")
    inner = config.get("text_config")
    context = (inner if isinstance(inner, dict) else config).get("max_position_embeddings")
    if context is not None and whole_number(context) is None:
        return f"its config.json says max_position_embeddings: {str(context)[:20]}, which is not a number of tokens"
    return None if config else "its config.json holds no JSON object"


def _flaw_in_weights(folder: Path) -> str | None:
    """The first flaw in the files of the weights, as far as headers and sizes tell."""
    files = weight_files(folder)
    index = next((name for name in _INDEXES if (folder / name).is_file()), None)
    if not files:
        return f"its {index} names no files" if index else "it has no weights, no *.safetensors or *.bin"
    if absent := [path.name for path in files if not path.exists()]:
        return f"{len(absent)} of its {len(files)} weight files are missing: {listed(absent)}"
    tensors = 0
    for path in files:
        try:
            tensors += len(read_tensors(path)) if path.suffix == ".safetensors" else _check_pickled(path)
        except Damaged as flaw:
            return f"its {path.name} {flaw}"
        except OSError as error:
            return f"its {path.name} cannot be read ({error.strerror})"
    return None if tensors else f"its {files[0].name} holds no tensors"


def listed(names: list[str], most: int = 3) -> str:
    """The first of `names`, and how many others there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} others" if len(names) > most else "")


def _flaw_in_file(path: Path) -> str | None:
    if not path.is_file():
        return "is not a file" if path.exists() else "is missing"
    return None if path.stat().st_size else "is empty"


def _check_pickled(path: Path) -> int:
    """Raise `Damaged` where a file of another format is empty or, as far as torch's archive tells, cut short; returns 1."""
    if (what := _flaw_in_file(path)) is not None:
        raise Damaged(what)
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    if is_archive and not zipfile.is_zipfile(path):
        raise Damaged("is cut short")
    return 1


def _all_shards(path: Path) -> list[Path]:
    """The files of the checkpoint that `path` is a part of, by its name: `model-00001-of-00003.safetensors` is one of three."""
    found = _SHARD.fullmatch(path.name)
    if found is None or not 1 <= int(found[3]) <= 9999:
        return [path]
    return [path.with_name(f"{found[1]}-{number:05d}-of-{found[3]}{found[4]}") for number in range(1, int(found[3]) + 1)]
