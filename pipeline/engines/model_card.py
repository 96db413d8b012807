"""A model without loading it: what its folder holds, and the numbers that decide about its memory.

A folder or a hub name enters; a `ModelCard` leaves, or one sentence with the remedy as an error where no engine could load it. Of weights
only headers and sizes are read.
"""

import fnmatch
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.engines.hub import NotOnHub, check_hub, hub_json, is_hub_name, is_offline, local_folder
from pipeline.errors import GraphError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
ANEW = "copy or download it again, or use another model"
"""Advice on a model whose files are damaged or not its own."""
_INDEX = "model.safetensors.index.json"
_PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin")
"""Where weights are looked for without an index; the files of the first pattern that finds any are the checkpoint."""
_LFS = b"version https://git-lfs"
"""How a pointer begins: what Git leaves where it did not fetch a large file."""
_SERVE = "let a server load it and name that: --model ROLE=http://HOST:PORT/v1#MODEL"
_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
_OTHER_CACHES = ("kv_lora_rank", "num_kv_shared_layers", "layers_block_type", "ssm_cfg", "attn_layer_period")
"""Keys in `config.json` of models whose layers do not keep keys and values of every token."""


class ModelCard(Struct, frozen=True, kw_only=True):
    """What `config.json` and the files of a model tell of its memory. None: not known."""

    weights_bytes: int | None = None
    dtype: str | None = None
    """The number type of its weights, one of `DTYPE_BYTES`; of a quantized model that in which it is computed."""
    quantization: str | None = None
    """How its weights are packed; None: they are not."""
    layers: int | None = None
    heads: int | None = None
    kv_values: int | None = None
    """Keys and values of one token, as numbers."""
    max_model_len: int | None = None

    def weights_as(self, quantization: str | None) -> int | None:
        """Bytes of the weights once an engine has packed them so: a byte a parameter, or half of one with four bits."""
        if self.weights_bytes is None or quantization is None or self.quantization is not None:
            return self.weights_bytes
        return self.weights_bytes // DTYPE_BYTES[self.dtype or "bfloat16"] // (1 if "8" in quantization else 2)


def read_card(model: str) -> ModelCard:
    """The card of `model`, a folder or a hub name; of one that is not on this machine by what the hub says. Raises `NotOnHub`."""
    folder = local_folder(model)
    size = sum(path.stat().st_size for path in weight_files(folder) if path.exists()) if folder else 0
    if size or Path(model).is_dir() or not is_hub_name(model) or is_offline():
        return _card(read_json(folder / "config.json") if folder else {}, size)
    files = hub_json(f"api/models/{model}?blobs=true").get("siblings", ())
    sizes = {str(file["rfilename"]): int(file.get("size") or 0) for file in files if "/" not in file["rfilename"]}
    weights = next(filter(None, (fnmatch.filter(sizes, pattern) for pattern in _PATTERNS)), [])
    return _card(hub_json(f"{model}/resolve/main/config.json"), sum(sizes[name] for name in weights))


def _card(config: Mapping[str, Any], size: int) -> ModelCard:
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    context, quantized = config.get("max_position_embeddings"), config.get("quantization_config")
    dtype = config.get("dtype") or config.get("torch_dtype")
    found: dict[str, Any] = {
        "weights_bytes": size or None,
        "dtype": dtype if isinstance(dtype, str) and dtype in DTYPE_BYTES else None,
        "quantization": str(quantized.get("quant_method")) if isinstance(quantized, dict) else None,
        "max_model_len": context if isinstance(context, int) and context > 0 else None,
    }
    try:
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        values = int(config.get("num_key_value_heads") or heads) * int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return ModelCard(**found)
    return ModelCard(**found, layers=layers, heads=heads, kv_values=2 * layers * values if _is_ordinary(config) else None)


def _is_ordinary(config: Mapping[str, Any]) -> bool:
    """True if every layer keeps keys and values of every token."""
    if any(config.get(key) for key in _OTHER_CACHES) or set(config.get("layer_types") or ()) - {"full_attention"}:
        return False
    return bool(config.get("layer_types")) or not (config.get("sliding_window") and config.get("use_sliding_window", True))


def check_model(where: str, model: str) -> None:
    """Raise the `GraphError` of a model that no engine could load: it cannot be had, or its folder holds something else."""
    if (folder := local_folder(model)) is not None:
        if (what := _held_in(folder) or _flaw_in_weights(folder)) is not None:
            raise GraphError(where, f"{model} {what}")
    elif Path(model).suffix == ".gguf":
        raise GraphError(where, f"{model} is a GGUF file; {_SERVE}")
    elif not is_hub_name(model):
        raise GraphError(where, f"no such directory: {model}; name a folder with the model's files, or a model on the hub")
    elif is_offline():
        what = f"{model} is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids a download"
        raise GraphError(where, f"{what}; unset it, or name a folder with the model's files")
    try:
        check_hub(model)
    except NotOnHub as absent:
        raise GraphError(where, f"{model}: {absent}; name a folder with its files, or another model on the hub") from None


def _held_in(folder: Path) -> str | None:
    """What a folder holds in place of a model that is loaded here."""
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json", ".model") and file.is_file():
            with file.open("rb") as content:
                if content.read(len(_LFS)) == _LFS:
                    return f"holds only the Git LFS pointer of {file.name}; run `git lfs pull` there"
    if (folder / "config.json").exists():
        return None
    if (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        of = f" of {base}" if isinstance(base, str) else ""
        return f"holds a LoRA adapter{of} and no model; merge both with `pipeline train merge`, or name the adapter in an engines file"
    if gguf := sorted(folder.glob("*.gguf")):
        return f"holds {gguf[0].name}, a GGUF file, and no model that is loaded here; {_SERVE}"
    return None


def _flaw_in_weights(folder: Path) -> str | None:
    """The flaw of weights that are cut short, or of more layers than `config.json` says: engines leave those out without a word."""
    from safetensors import SafetensorError, safe_open

    layers = 0
    for path in weight_files(folder):
        if path.suffix == ".safetensors" and path.exists():
            try:
                with safe_open(path, framework="numpy") as file:
                    layers = max([layers, *(1 + int(found[1]) for name in file.keys() if (found := _LAYER.match(name)))])  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                return f"cannot be loaded: its {path.name} is damaged or cut short ({error}); {ANEW}"
    config = read_json(folder / "config.json")
    said = config.get("num_hidden_layers")
    if isinstance(said, int) and layers > said + (config.get("num_nextn_predict_layers") or 0):
        return f"cannot be loaded: its weights have {layers} layers, its config.json says {said}; {ANEW}"
    return None


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in `folder`: those that its index names, there or not, else those found."""
    named = read_json(folder / _INDEX).get("weight_map")
    if isinstance(named, dict):
        return sorted({folder / str(each) for each in named.values()})
    patterns = (sorted(path for path in folder.glob(pattern) if not path.name.startswith("adapter_model")) for pattern in _PATTERNS)
    return next(filter(None, patterns), [])


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file or it holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
