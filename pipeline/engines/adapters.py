"""LoRA adapters as PEFT saves them, read without loading them: what they take, and whether they fit to a model.

A folder enters; an `AdapterCard` leaves, and findings about adapters that an engine could not compute with. Of the weights only the
header of the file is read.
"""

from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.engine import Finding
from pipeline.engines.model_card import Damaged, ModelCard, Tensors, is_hub_name, read_json, read_tensors
from pipeline.engines.models import adapter_folder, bundled_name

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter's folder."""
VARIANTS = ("use_dora", "lora_bias")
"""Keys of the configuration of an adapter that computes otherwise than by two matrices, but leaves the model as it is."""
_OTHERS = ("modules_to_save", "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "use_bdlora", "use_qalora")
"""Keys of the configuration of an adapter with which the model itself is another one, or which holds for a part of a prompt."""
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Initialisations that leave the weights of the model as they are; PEFT changes them at the load for others, such as PiSSA."""
_READ_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
"""Layers that read the hidden state, by the name that most architectures have for them."""
_WRITE_HIDDEN = ("o_proj", "down_proj")


class AdapterCard(Struct, frozen=True, kw_only=True):
    """The known facts about a LoRA adapter without loading it."""

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
    """The known facts about the adapter in the folder `path`, or of the bundled one that it names."""
    try:
        folder = adapter_folder(path)
    except LookupError as error:
        return AdapterCard(path=path, flaw=str(error))
    config = read_json(folder / CONFIG)
    if (flaw := _flaw_in_files(folder, config)) is not None:
        return AdapterCard(path=path, flaw=flaw)
    try:
        tensors = read_tensors(folder / WEIGHTS)
    except Damaged as damage:
        return AdapterCard(path=path, flaw=f"its {WEIGHTS} {damage}")
    rank = max((sizes[0] for name, sizes in tensors.items() if name.endswith("lora_A.weight")), default=config["r"])
    return AdapterCard(
        path=path,
        rank=rank,
        parameters=sum(map(prod, tensors.values())),
        base_model=str(config.get("base_model_name_or_path") or ""),
        unusual=tuple(_unusual(config)),
        tensors=tensors,
    )


def adapter_findings(role: str, adapters: Mapping[str, AdapterCard], card: ModelCard, variants: Collection[str] = ()) -> Iterator[Finding]:
    """Why an engine cannot use `adapters` (by name) with the model of `card`: files that are missing or damaged, adapters of another model,
    and such as are more than LoRA, unless the engine takes these `variants`. Models are told apart by their sizes and, where both have
    names on the hub or come with the package, by these."""
    for name, adapter in adapters.items():
        if adapter.flaw is not None:
            what, remedy = f"the adapter {name} cannot be loaded: {adapter.flaw}", "name the folder of another adapter"
        elif (misfit := _misfit(adapter, card)) is not None:
            what, remedy = f"the adapter {name} belongs to another model: {misfit}", "name an adapter that was trained on this model"
        elif odd := [key for key in adapter.unusual if key not in variants]:
            what = f"the adapter {name} has {' and '.join(odd)} in its {CONFIG}, which this engine does not support"
            remedy = "merge it into the model, or name a plain LoRA adapter"
        else:
            continue
        yield Finding(role=role, what=what, remedy=remedy, fatal=True)


def _flaw_in_files(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The flaws of the folder and the configuration of an adapter."""
    if not folder.is_dir():
        return f"no such directory: {folder}"
    if not config:
        return f"its {CONFIG} holds no JSON object" if (folder / CONFIG).is_file() else f"it has no {CONFIG}"
    if config.get("peft_type") != "LORA":
        return f"its {CONFIG} says peft_type: {str(config.get('peft_type'))[:20]}, and only LORA is supported"
    if not isinstance(config.get("r"), int) or config["r"] < 1:
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
    hidden = None if card.shape is None else card.shape.hidden_size
    for name, sizes in adapter.tensors.items():
        module, _, side = name.removeprefix("base_model.model.").rpartition(".lora_")
        layer = module.rpartition(".")[2]
        reads = side == "A.weight" and layer in _READ_HIDDEN
        found = sizes[1] if reads else sizes[0] if side == "B.weight" and layer in _WRITE_HIDDEN else hidden
        if found != hidden:
            return f"its {module} {'takes' if reads else 'gives'} {found:,} values, the model's {hidden:,}"
    ours, theirs = card.model, adapter.base_model
    bundled = bundled_name(ours), bundled_name(theirs)
    differ = bundled[0] != bundled[1] if all(bundled) else _is_on_hub(ours) and _is_on_hub(theirs) and not _same_model(ours, theirs)
    if differ:
        return f"its {CONFIG} says that it was trained on {theirs}, and the model is {bundled[0] or ours}"
    return None


def _is_on_hub(model: str) -> bool:
    return "/" in model and is_hub_name(model) and not Path(model).is_dir()


def _same_model(one: str, other: str) -> bool:
    """True if two hub names may mean one model, as those of a copy (`unsloth/QwQ-32B`) or of a quantized one (`Qwen/QwQ-32B-AWQ`) do."""
    first, second = sorted((name.rpartition("/")[2].lower() for name in (one, other)), key=len)
    return second.startswith(first)
