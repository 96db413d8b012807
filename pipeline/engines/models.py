"""The model or the adapter that a spec names: a folder, one that comes with this package or, of models, a name on the hub; and of a model,
without loading it, the numbers that decide about its memory.
"""

import fnmatch
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from pipeline.engine import Tokenizer
from pipeline.engines.hub import NotOnHub, check_hub, hub_json, is_hub_name, is_offline, local_folder
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, boundary, did_you_mean
from pipeline.graph.files import BUNDLED

_FOLDER = Path(str(files("pipeline"))) / "models"
_CONFIGS = {"model": "config.json", "adapter": "adapter_config.json"}
"""The file that a bundled folder of each kind has."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
_PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin")
"""Where weights are looked for; the files of the first pattern that finds any are the checkpoint."""
_OTHER_CACHES = ("kv_lora_rank", "num_kv_shared_layers", "layers_block_type", "ssm_cfg", "attn_layer_period")
"""Keys in `config.json` of models whose layers do not keep keys and values of every token."""


def tokenizer_of(role: str, spec: Any) -> Tokenizer:
    """The tokenizer of the model that the `spec` of an engine names; raises `GraphError`."""
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return load_tokenizer(resolve(role, spec.model), spec)


def load_tokenizer(model: str, spec: Any) -> HFTokenizer:
    """The tokenizer of `model`, a folder or a hub name, as the `spec` of an engine has it; raises `GraphError`."""
    return HFTokenizer(model, spec.chat_template_kwargs)


def resolve(role: str, model: str) -> str:
    """`model` as a folder or a hub name; raises `GraphError` for a `bundled:NAME` that does not exist."""
    with boundary(GraphError, f"engine {role!r}", foreign=LookupError):
        folder = _bundled("model", model)
    return model if folder is None else str(folder)


def adapter_folder(adapter: str) -> Path:
    """The folder that `adapter` means, whether there is one or not; raises `LookupError`, whose text is a clause, for a `bundled:NAME`
    that does not exist."""
    return _bundled("adapter", adapter) or Path(adapter).expanduser()


def bundled_name(model: str) -> str | None:
    """The `bundled:NAME` of a model that is named so, or by the folder in which it comes with the package; None for any other."""
    if model.startswith(BUNDLED):
        return model
    return f"{BUNDLED}{Path(model).name}" if Path(model).parent == _FOLDER else None


def _bundled(kind: Literal["model", "adapter"], named: str) -> Path | None:
    """The folder of a `bundled:NAME`, None for any other name; raises `LookupError`."""
    if not named.startswith(BUNDLED):
        return None
    name = named.removeprefix(BUNDLED)
    folders = {path.parent.name: path.parent for path in _FOLDER.glob(f"*/{_CONFIGS[kind]}")}
    if name not in folders:
        raise LookupError(f"no bundled {kind} is named {name!r} ({did_you_mean(name, folders)})")
    return folders[name]


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
    size = sum(path.stat().st_size for path in weight_files(folder)) if folder else 0
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
    """Raise `GraphError` where `model` is no folder with a model and cannot be had from the hub."""
    if (folder := Path(model).expanduser()).is_dir():
        if not (folder / "config.json").is_file():
            hint = "an adapter is named under `adapters` in an engines file, a GGUF file is for a server"
            raise GraphError(where, f"{model} holds no model, as it has no config.json; {hint}: --model ROLE=http://HOST:PORT/v1#MODEL")
        return
    if local_folder(model) is not None:
        return
    if not is_hub_name(model):
        raise GraphError(where, f"no such directory: {model}; name a folder with the model's files, or a model on the hub")
    if is_offline():
        what = f"{model} is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids a download"
        raise GraphError(where, f"{what}; unset it, or name a folder with the model's files")
    try:
        check_hub(model)
    except NotOnHub as absent:
        raise GraphError(where, f"{model}: {absent}; name a folder with its files, or another model on the hub") from None


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in `folder`."""
    patterns = (sorted(path for path in folder.glob(pattern) if not path.name.startswith("adapter_model")) for pattern in _PATTERNS)
    return next(filter(None, patterns), [])


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file or it holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
