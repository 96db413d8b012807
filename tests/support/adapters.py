"""LoRA adapters of the bundled target, made by hand: what each does follows from its matrices."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pipeline.engines.models import resolve

TARGET = Path(resolve("target", "bundled:tiny-target"))
HEADS, LAYERS, HIDDEN, RANK = 4, 7, 128, 4
_PLACE = "base_model.model."
Matrices = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
"""The matrices A (rank, taken) and B (given, rank) beside each module."""


def write_adapter(folder: Path, matrices: Matrices, **config: Any) -> Path:
    """The folder of an adapter with these matrices, which scales by 1."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = max((a.shape[0] for a, _ in matrices.values()), default=RANK)
    modules = sorted({name.rpartition(".")[2] for name in matrices})
    said = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    sides = {f"{_PLACE}{name}.lora_{side}.weight": value for name, both in matrices.items() for side, value in zip("AB", both, strict=True)}
    save_file({name: np.ascontiguousarray(value) for name, value in sides.items()}, folder / "adapter_model.safetensors")
    return folder


def noise(seed: int) -> Matrices:
    """Random matrices beside the projections to keys and values."""
    draw = np.random.default_rng(seed).normal
    names = [f"model.layers.{layer}.self_attn.{kind}_proj" for layer in range(LAYERS) for kind in "kv"]
    return {name: (draw(size=(RANK, HIDDEN)).astype("float32") / 8, draw(size=(HIDDEN, RANK)).astype("float32") / 8) for name in names}
