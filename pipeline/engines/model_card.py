"""The known facts about a model without loading it: its size, its shape, where that was learnt, and why it could not be served.

Looks, in this order, at the model's folder, the local Hugging Face cache, the published configurations of well-known models and,
as a last resort, the model's name; never at the network. Of weights only the headers are read.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct, structs
from safetensors import SafetensorError, safe_open

from pipeline.engine import Finding
from pipeline.errors import GraphError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
_QUANTIZED_BYTES = {"fp8": 1.01, "int8": 1.01, "w8a8": 1.01, "fp4": 0.56} | dict.fromkeys(
    ("awq", "gptq", "bitsandbytes", "marlin", "4bit", "int4"), 0.54
)
"""Bytes of a quantized weight with the scales of its group, an estimate, by a part of the method's name."""
_MAX_PARAMETERS = 10**15
GUESSED = "its name"
"""The source of a size that is only guessed."""
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


class ModelShape(Struct, frozen=True, kw_only=True):
    """The part of a `config.json` that decides about memory."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    tied: bool = False
    """True if input and output embeddings are the same."""
    ordinary: bool = True
    """True if every layer keeps keys and values of every token; otherwise the size of the cache is not known here."""
    mlp_parameters: int | None = None
    """Parameters of the experts of one layer; None for a model that is no mixture of experts."""
    biased: bool = False
    """True if queries, keys and values have a bias."""

    @property
    def embeddings(self) -> int:
        """Parameters of the input and output embeddings."""
        return self.vocab_size * self.hidden_size * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model: exact for Llama's and Qwen2's layout, an estimate for others."""
        attention = self.hidden_size * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) if self.biased else 0
        mlp = self.mlp_parameters or 3 * self.hidden_size * self.intermediate_size
        return self.layers * (attention + biases + mlp + 2 * self.hidden_size) + self.embeddings + self.hidden_size


class ModelCard(Struct, frozen=True, kw_only=True):
    """The known facts about a model about its memory, without loading it. None: not known."""

    model: str
    """The folder or hub name that was asked for."""
    source: str
    """Where the size was learnt, such as `its files`; `GUESSED`: from its name alone."""
    folder: str | None = None
    """The folder of its files on this machine; None where they are not here."""
    parameters: int | None = None
    file_bytes: int | None = None
    """Size of its weights on disk."""
    dtype: str | None = None
    """The number type that it was saved in."""
    quantization: str | None = None
    """The quantization that it was saved with, as its configuration names it; None without one."""
    shape: ModelShape | None = None
    max_model_len: int | None = None
    """The context length that it was made for, in tokens."""
    stretched: bool = False
    """True if its configuration scales the positions, so that longer contexts may work too."""
    flaws: tuple[FileFlaw, ...] = ()
    """The flaws of its files, where they are on this machine."""

    def weights_bytes(self, dtype: str, quantization: str | None = None) -> int | None:
        """Bytes of the weights when served in `dtype`; quantized sizes are estimates unless the model was saved that way."""
        if self.quantization is not None and self.file_bytes is not None:
            return self.file_bytes
        if self.parameters is None:
            return self.file_bytes
        name = (quantization or self.quantization or "").lower()
        each = next((size for part, size in _QUANTIZED_BYTES.items() if part in name), None)
        if each is None:
            return self.parameters * DTYPE_BYTES[dtype]
        whole = self.shape.embeddings if self.shape else 0
        return round((self.parameters - whole) * each) + whole * 2

    def kv_bytes_per_token(self, value_bytes: int, ranks: int = 1) -> int | None:
        """Bytes of one token's keys and values on each of `ranks` GPUs that share every layer; None where layers are not ordinary."""
        if self.shape is None or not self.shape.ordinary:
            return None
        return 2 * self.shape.layers * max(1, self.shape.kv_heads // ranks) * self.shape.head_dim * value_bytes


def read_card(model: str) -> ModelCard:
    """The known facts about `model`, a folder or a hub name; for an unknown one an almost empty card."""
    folder = local_folder(model)
    if folder is not None:
        return _from_folder(model, folder)
    if (published := PUBLISHED.get(model)) is not None:
        return card_from_config(model, published, "its config.json as published")
    return card_from_config(model, {}, "")


def local_folder(model: str) -> Path | None:
    """The folder with the model's configuration: `model` itself, or its place in the local Hugging Face cache; None without one."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_name(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def is_hub_name(model: str) -> bool:
    """True if `model` can be a name on the hub; a path cannot."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", model) is not None


def parameters_in(name: str) -> int | None:
    """The number of parameters that a model's name tells, as in `32B`, `1.5B`, `8x7B` and `270M`; None where it tells none."""
    found = re.search(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])(?![a-z0-9])", name.rpartition("/")[2], re.IGNORECASE)
    if found is None:
        return None
    return round(int(found[1] or 1) * float(found[2]) * (1e9 if found[3] in "Bb" else 1e6))


def missing(role: str, card: ModelCard, needs: Collection[Part] = get_args(Part)) -> Iterator[Finding]:
    """Advice on a model that is not on this machine: nothing provides it, a download is forbidden, or one is needed first.

    Of one that is here: what is wrong with its files, as far as the role `needs` them.
    """
    if card.folder is not None:
        for flaw in card.flaws:
            if flaw.part in needs:
                yield Finding(role=role, what=f"{card.model} cannot be served: {flaw.what}", remedy=ANEW, fatal=True)
    elif not is_hub_name(card.model):
        what, remedy = f"no such directory: {card.model}", "name a folder with the model's files, or a model on the hub"
        yield Finding(role=role, what=what, remedy=remedy, fatal=True)
    elif is_offline():
        what = f"{card.model} is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids a download"
        yield Finding(role=role, what=what, remedy="unset HF_HUB_OFFLINE, or name a folder with the model's files", fatal=True)
    else:
        what = f"{card.model} is not on this machine"
        yield Finding(role=role, what=what, remedy="the first start downloads it from the hub", fatal=False)


def too_long(role: str, max_model_len: int | None, card: ModelCard) -> Iterator[Finding]:
    """The flaw of a context that is longer than the model of `card` supports."""
    if max_model_len and card.max_model_len and max_model_len > card.max_model_len:
        what = f"max_model_len is {max_model_len}, but {card.model} supports {card.max_model_len}"
        yield Finding(role=role, what=what, remedy=f"set max_model_len to at most {card.max_model_len}", fatal=True)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `GraphError` for the first reason why an engine cannot start."""
    for finding in findings:
        if finding.fatal:
            raise GraphError(f"engine {finding.role!r}", f"{finding.what}; {finding.remedy}")


def is_offline() -> bool:
    """True if the user forbids downloads from the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a `config.json` describes; None where it lacks the usual keys, or its numbers are those of no model."""
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        shape = ModelShape(
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            ordinary=_is_ordinary(config),
            mlp_parameters=_expert_parameters(config, hidden),
            biased=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    sizes = (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.hidden_size, shape.intermediate_size, shape.vocab_size)
    return shape if min(sizes) > 0 and max(*sizes, shape.parameters) < _MAX_PARAMETERS else None


def _is_ordinary(config: Mapping[str, Any]) -> bool:
    """True if a model has no latent attention, sliding windows, recurrent layers or caches that layers share (`ModelShape.ordinary`)."""
    if any(config.get(key) for key in ("kv_lora_rank", "num_kv_shared_layers", "layers_block_type", "ssm_cfg", "attn_layer_period")):
        return False
    if layer_types := config.get("layer_types"):
        return set(layer_types) == {"full_attention"}
    return not (config.get("sliding_window") and config.get("use_sliding_window", True))


def _expert_parameters(config: Mapping[str, Any], hidden: int) -> int | None:
    """Parameters of the experts and their router in one layer; None without experts."""
    experts = next((int(config[key]) for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)), 0)
    if not experts:
        return None
    inner = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    shared = int(config.get("shared_expert_intermediate_size") or inner * int(config.get("n_shared_experts") or 0))
    return 3 * hidden * (experts * inner + shared) + hidden * experts


def card_from_config(model: str, config: Mapping[str, Any], source: str) -> ModelCard:
    """What a `config.json` says of a model, and where that says nothing its name; `source` is where the configuration is from."""
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    shape, guess = shape_of(config), parameters_in(model)
    context, quantized = config.get("max_position_embeddings"), config.get("quantization_config")
    dtype = config.get("dtype") or config.get("torch_dtype")
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    return ModelCard(
        model=model,
        source=source if shape else GUESSED if guess else "nothing is known",
        parameters=shape.parameters if shape else guess,
        dtype=dtype if isinstance(dtype, str) and dtype in DTYPE_BYTES else None,
        quantization=str(quantized.get("quant_method")) if isinstance(quantized, dict) else None,
        shape=shape,
        max_model_len=context if isinstance(context, int) and context > 0 else None,
        stretched=isinstance(rope, dict) and rope.get("rope_type", rope.get("type", "default")) != "default",
    )


def _from_folder(model: str, folder: Path) -> ModelCard:
    # Of a model on the hub, what is missing in the cache is downloaded at the start.
    flaws = tuple(flaws_in(folder)) if is_offline() or folder == Path(model).expanduser() else ()
    card = card_from_config(model, read_json(folder / "config.json"), "its config.json")
    card = structs.replace(card, folder=str(folder), flaws=flaws)
    if not (size := _weights_size(folder)):
        return card
    # Packed weights are not parameters: of a quantized model only the size counts.
    saved = None if card.quantization is not None else DTYPE_BYTES.get(card.dtype or "")
    parameters = card.parameters if saved is None else size // saved
    return structs.replace(card, source="its files", file_bytes=size, parameters=parameters)


def _weights_size(folder: Path) -> int:
    """Size of the weights on disk, or as the index tells it where files are missing; 0 where neither is known."""
    try:
        return sum(path.stat().st_size for path in weight_files(folder))
    except OSError:
        metadata = read_json(folder / "model.safetensors.index.json").get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        return int(size) if isinstance(size, int | float) else 0


# The files of a folder.


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


# Published configurations.


def _qwen2(layers: int, heads: int, kv_heads: int, hidden: int, inner: int, vocab: int, context: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    }


_R1_1_5B = _qwen2(28, 12, 2, 1536, 8960, 151936, 131072)
_R1_32B = _qwen2(64, 40, 8, 5120, 27648, 152064, 131072)
_R1_70B = _qwen2(80, 64, 8, 8192, 28672, 128256, 131072) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_LLAMA_8B = _qwen2(32, 32, 8, 4096, 14336, 128256, 131072) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_MISTRAL_7B = _qwen2(32, 32, 8, 4096, 14336, 32000, 32768) | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/QwQ-32B": _R1_32B | {"max_position_embeddings": 40960},
    "Qwen/Qwen2.5-1.5B-Instruct": _R1_1_5B | {"max_position_embeddings": 32768, "tie_word_embeddings": True},
    "Qwen/Qwen2.5-32B-Instruct": _R1_32B | {"max_position_embeddings": 32768},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _R1_1_5B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen2(28, 28, 4, 3584, 18944, 152064, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": _qwen2(48, 40, 8, 5120, 13824, 152064, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _R1_32B,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": _R1_70B,
    "Skywork/Skywork-OR1-32B": _R1_32B,
    "Skywork/Skywork-OR1-32B-Preview": _R1_32B,
    "Zyphra/ZR1-1.5B": _R1_1_5B,
    "peiyi9979/math-shepherd-mistral-7b-prm": _MISTRAL_7B,
    "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": _LLAMA_8B,
}
"""The part of the published `config.json` that decides about memory, of each of the papers' models by hub name, for when they are
not on this machine. QwQ and the R1-Distill models have the shapes of Qwen2.5 and Llama 3.3; Skywork's and Zyphra's models were trained
from R1-Distill models and keep theirs; the reward models have the shapes of Mistral 7B and Llama 3.1 8B."""
