"""Checkpoints as they should not be: tensors left out, cut or renamed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def rewrite(folder: Path, change: Callable[[str, Any], Any]) -> None:
    """Replace each tensor of a model's only file by what `change` makes of its name and value; None leaves it out. Loads torch."""
    from safetensors.torch import load_file, save_file

    changed = {name: change(name, tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({name: tensor.contiguous() for name, tensor in changed.items() if tensor is not None}, folder / "model.safetensors")
