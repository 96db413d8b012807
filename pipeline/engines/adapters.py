"""LoRA adapters as PEFT saves them, read without loading them: what they take, and whether they fit to a model.

A folder enters; an `AdapterCard` leaves, and findings about adapters that an engine could not compute with. Of the weights only the
header of the file is read.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.engine import Finding
from pipeline.engines.checkpoint import Damaged, Tensors, read_json, read_tensors, unusual_file, whole_number
from pipeline.engines.model_card import ModelCard, Shape, is_hub_name
from pipeline.engines.models import adapter_folder, bundled_name

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter's folder."""
VARIANTS = ("use_dora", "lora_bias")
"""Keys of the configuration of an adapter that computes otherwise than by two matrices, but leaves the model as it is."""
_OTHERS = ("modules_to_save", "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "use_bdlora", "use_qalora")
"""Keys of the configuration of an adapter with which the model itself is another one, or which holds for a part of a prompt."""
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Initialisations that leave the weights of the model as they are; PEFT changes them at the load for others, such as PiSSA."""
_SIDES = (".lora_A.weight", ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_ANOTHER = "name the folder of another adapter"
_OF_THIS_MODEL = "name an adapter that was trained on this model"


class AdapterCard(Struct, frozen=True, kw_only=True):
    """What is known of a LoRA adapter without loading it."""

    path: str
    """The folder, or `bundled:NAME`, as the engines file has it."""
    flaw: str | None = None
    """Why no engine can load it, as a clause; None where its files are whole."""
    rank: int = 0
    """The largest rank of its matrices."""
    parameters: int = 0
    base_model: str = ""
    """The name or folder of the model that it was trained on, as its configuration has it."""
    unusual: tuple[str, ...] = ()
    """What its configuration asks for beyond two matrices per layer."""
    tensors: Tensors = {}


def read_adapter(path: str) -> AdapterCard:
    """What is known of the adapter in the folder `path`, or of the bundled one that it names."""
    try:
        folder = adapter_folder(path)
    except LookupError as error:
        return AdapterCard(path=path, flaw=str(error))
    config = read_json(folder / CONFIG)
    flaw = _flaw_in_files(folder, config)
    try:
        tensors = {} if flaw else read_tensors(folder / WEIGHTS)
    except Damaged as damage:
        return AdapterCard(path=path, flaw=f"its {WEIGHTS} {damage}")
    except OSError as error:
        return AdapterCard(path=path, flaw=f"its {WEIGHTS} cannot be read ({error.strerror})")
    if flaw is not None:
        return AdapterCard(path=path, flaw=flaw)
    if not any(name.endswith(_SIDES) for name in tensors):
        return AdapterCard(path=path, flaw=f"its {WEIGHTS} holds no LoRA matrices")
    rank = max((sizes[0] for name, sizes in tensors.items() if name.endswith("A.weight") and sizes), default=int(config["r"]))
    if rank != config["r"] and not config.get("rank_pattern"):
        return AdapterCard(path=path, flaw=f"its {CONFIG} says r: {config['r']}, and its matrices have rank {rank}")
    return AdapterCard(
        path=path,
        rank=rank,
        parameters=sum(map(prod, tensors.values())),
        base_model=str(config.get("base_model_name_or_path") or ""),
        unusual=tuple(_unusual(config)),
        tensors=tensors,
    )


def adapter_findings(role: str, adapters: Mapping[str, AdapterCard], card: ModelCard, variants: Collection[str] = ()) -> Iterator[Finding]:
    """Why an engine cannot use `adapters` (name to folder) with the model of `card`: files that are missing or damaged,
    adapters of another model, and such as are more than LoRA, unless the engine takes these `variants`. Models are told apart by their
    sizes and, where both have names on the hub or come with the package, by these."""
    for name, adapter in adapters.items():
        if adapter.flaw is not None:
            yield Finding(role=role, what=f"the adapter {name} cannot be loaded: {adapter.flaw}", remedy=_ANOTHER, fatal=True)
        elif (what := _misfit(adapter, card)) is not None:
            yield Finding(role=role, what=f"the adapter {name} belongs to another model: {what}", remedy=_OF_THIS_MODEL, fatal=True)
        elif odd := [key for key in adapter.unusual if key not in variants]:
            what = f"the adapter {name} has {' and '.join(odd)} in its {CONFIG}, which this engine does not support"
            yield Finding(role=role, what=what, remedy="merge it into the model, or name a plain LoRA adapter", fatal=True)


def _flaw_in_files(folder: Path, config: Mapping[str, Any]) -> str | None:
    """What is wrong with the folder and the configuration of an adapter."""
    if not folder.is_dir():
        return f"no such directory: {folder}"
    if (what := unusual_file(folder)) is not None:
        return what
    if not config:
        return f"its {CONFIG} holds no JSON object" if (folder / CONFIG).is_file() else f"it has no {CONFIG}"
    if config.get("peft_type") != "LORA":
        return f"its {CONFIG} says peft_type: {str(config.get('peft_type'))[:20]}, and only LORA is supported"
    if whole_number(config.get("r")) is None:
        return f"its {CONFIG} says r: {str(config.get('r'))[:20]}, which is not a rank"
    return None


def _unusual(config: Mapping[str, Any]) -> Iterator[str]:
    yield from (key for key in (*VARIANTS, *_OTHERS) if config.get(key))
    if config.get("bias", "none") != "none":
        yield "bias"
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        yield f"init_lora_weights: {init[:20]}"


def _misfit(adapter: AdapterCard, card: ModelCard) -> str | None:
    """What shows that an adapter is not one of the model of `card`, as a clause; None where nothing does."""
    if card.shape is not None and (what := next(_misfits(adapter.tensors, card.shape), None)) is not None:
        return what
    ours, theirs = card.model, adapter.base_model
    bundled = bundled_name(ours), bundled_name(theirs)
    differ = bundled[0] != bundled[1] if all(bundled) else _is_on_hub(ours) and _is_on_hub(theirs) and not _same_model(ours, theirs)
    if differ:
        return f"its {CONFIG} says that it was trained on {theirs}, and the model is {bundled[0] or ours}"
    return None


def _is_on_hub(model: str) -> bool:
    return "/" in model and is_hub_name(model) and not Path(model).is_dir()


def _same_model(one: str, other: str) -> bool:
    """Whether two hub names may mean one model, as those of a copy (`unsloth/QwQ-32B`) or of a quantized one (`Qwen/QwQ-32B-AWQ`) do."""
    first, second = sorted((name.rpartition("/")[2].lower() for name in (one, other)), key=len)
    return second.startswith(first)


def _misfits(tensors: Tensors, shape: Shape) -> Iterator[str]:
    """Every sign in the tensors of an adapter that it was made for a model of another shape."""
    known = _layer_sizes(shape)
    for name, sizes in tensors.items():
        module, side = next(((name.removesuffix(end), end) for end in _SIDES if name.endswith(end)), ("", ""))
        layer = _LAYER.search(module)
        if layer is not None and int(layer[1]) >= shape.layers:
            yield f"it has matrices for layer {layer[1]}, but the model's last layer is {shape.layers - 1}"
        wanted = known.get(module.rpartition(".")[2])
        if wanted is None or len(sizes) != 2:
            continue
        takes = "_A" in side
        found, right = (sizes[1], wanted[0]) if takes else (sizes[0], wanted[1])
        if found != right:
            yield f"its {module.removeprefix('base_model.model.')} {'takes' if takes else 'gives'} {found:,} values, the model's {right:,}"


def _layer_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """How many values each linear layer takes and gives, by the name that most architectures have for it, where the shape tells."""
    inner, hidden = shape.intermediate_size, shape.hidden_size
    sizes = {"lm_head": (hidden, shape.vocab_size), "embed_tokens": (shape.vocab_size, hidden)}
    if shape.ordinary:
        query, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sizes |= {"q_proj": (hidden, query), "k_proj": (hidden, keys), "v_proj": (hidden, keys), "o_proj": (query, hidden)}
    if shape.mlp_parameters is None:
        sizes |= {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
    return sizes


def slot_parameters(shape: Shape, rank: int) -> int:
    """Parameters of an adapter of this rank on every linear layer of a model, embeddings included: what vLLM reserves memory for."""
    sizes = _layer_sizes(shape)
    outside = sum(sum(sizes.pop(name)) for name in ("lm_head", "embed_tokens"))
    return rank * (shape.layers * sum(map(sum, sizes.values())) + outside)
