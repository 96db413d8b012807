"""What a folder holds where it is no model that an engine can load: a path enters, one sentence with the remedy leaves as an error."""

import json
from contextlib import suppress
from pathlib import Path

from pipeline.errors import GraphError

_LFS = b"version https://git-lfs"
"""How a pointer begins: what Git leaves where it did not fetch a large file."""
_SERVE = "let a server load it and name that: --model ROLE=http://HOST:PORT/v1#MODEL"


def check_held(where: str, model: str) -> None:
    """Raise the `GraphError` of the folder or file `model` that holds pointers of Git LFS, GGUF files or an adapter alone."""
    path = Path(model).expanduser()
    if (what := _held_in(path) if path.is_dir() else "is a GGUF file; " + _SERVE if path.suffix == ".gguf" else None) is not None:
        raise GraphError(where, f"{model} {what}")


def _held_in(folder: Path) -> str | None:
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json", ".model") and file.is_file():
            with file.open("rb") as content:
                if content.read(len(_LFS)) == _LFS:
                    return f"holds only the Git LFS pointer of {file.name}; run `git lfs pull` there"
    if (folder / "config.json").exists():
        return None
    if (config := folder / "adapter_config.json").is_file():
        base = None
        with suppress(OSError, ValueError, AttributeError):
            base = json.loads(config.read_bytes()).get("base_model_name_or_path")
        of = f" of {base}" if isinstance(base, str) else ""
        return f"holds a LoRA adapter{of} and no model; merge both with `pipeline train merge`, or name the adapter in an engines file"
    if gguf := sorted(folder.glob("*.gguf")):
        return f"holds {gguf[0].name}, a GGUF file, and no model that is loaded here; {_SERVE}"
    return None
