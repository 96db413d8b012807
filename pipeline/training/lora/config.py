"""The file of a training as strict values: YAML and `--set` enter, a config leaves, or all that is wrong with it, in one sentence each.

A default is the value of SCoT's paper (Wang et al.) where it states one, else that of its published code, else one chosen here; the field
says which. Paths count from the working folder, as those of models and adapters in engines files do.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from pipeline.bundled import find_file
from pipeline.errors import GraphError
from pipeline.graph.convert import convert, mapping
from pipeline.graph.lines import with_lines
from pipeline.graph.yaml_file import NotYaml, parse, read_yaml

Task: TypeAlias = Literal["draft", "select"]
"""What is trained: a draft model to think as its target does (SCoT 3.3), or a target to choose, reject and score (SCoT 3.4)."""
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Inputs: TypeAlias = Annotated[tuple[Text, ...], Meta(min_length=1)]
Rate: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
C = TypeVar("C", bound="TrainConfig")


class LoraSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The matrices that are trained beside those of the model (Hu et al. 2022)."""

    rank: Annotated[int, Meta(ge=1, le=512)] = 8
    """SCoT 4.1. vLLM serves ranks up to 512."""
    alpha: Annotated[float, Meta(gt=0.0, le=1_000_000.0)] = 32
    """What the matrices add is multiplied by alpha / rank. Published code."""
    dropout: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.1
    """Share of the inputs of the matrices that is left out at random while training. Published code."""
    targets: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("q_proj", "v_proj")
    """Linear layers that get such matrices, by the last part of their names. SCoT 3.3 and 3.4."""
    bias: Literal["none"] = "none"
    """Biases stay as they are: no engine serves an adapter that changes them. Published code."""


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that both trainings have."""

    model: Text
    """The model that is trained: a folder, a hub name, or `bundled:NAME`, as in an engines file."""
    data: Inputs
    """Files of `pipeline export --format sft` (for `draft`) or `selection` (for `select`), or SCoT's published ones as they are."""
    output: Text | None = None
    """The folder of the adapter; `--output` goes before it."""
    test_sets: tuple[Text, ...] = ()
    """Inputs whose problems must not be among the data, as `pipeline run --input` takes them."""
    overlap: Literal["refuse", "leave_out"] = "refuse"
    """What happens to data whose problem is in a test set: the training is refused, or it goes on without them and counts them."""
    validation: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.1
    """Share of the problems that are held back to measure on; only for data that have no column `split`. Chosen here."""
    prompts: Text = "scot"
    """How published data are said to the model: a bundled prompts file or a path. `scot`: as SCoT's published code says them. Serve with
    the same: `pipeline run scot --set prompts=scot`, as graphs have other ones by default."""
    same_tokenizer: tuple[Text, ...] = ()
    """Names in the column `model` of token ids whose tokenizer is that of `model`, though it cannot be looked at here."""
    lora: LoraSpec = LoraSpec()
    """The matrices that are trained."""
    learning_rate: Rate = 1e-4
    """The highest learning rate of AdamW."""
    epochs: Annotated[float, Meta(gt=0.0, le=10_000.0)] = 5
    """How often all examples are learnt from. Published code, of both trainings."""
    batch_size: Positive = 4
    """Examples of one device that are computed together. Published code; its trainer, though, computes one example a step: the 4 stand in
    a loader that it does not use."""
    gradient_accumulation: Positive = 1
    """Batches whose gradients are added up for one step. Published code."""
    warmup: Annotated[float, Meta(ge=0.0, le=1_000_000.0)] = 0.0
    """Steps in which the learning rate rises from 0; below 1 the share of all steps. Published code: none."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls to 0 afterwards, if it does. Published code, by the default of its library."""
    weight_decay: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Published code, by the default of its library."""
    max_grad_norm: Annotated[float, Meta(gt=0.0, le=1_000_000.0)] = 1.0
    """A longer gradient is shortened to this length. Published code, by the default of its library."""
    max_length: Positive | None = None
    """Most tokens of an example; longer ones are left out and counted, never cut. null: as many as the model's context holds."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Number type of the model's weights and of computing; the trained matrices are float32. `auto`: bfloat16 on a GPU that has it, else
    float32. (The published code has float16.)"""
    device: Literal["auto", "cpu"] = "auto"
    """`auto`: GPUs where there are any."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Decides the order of the examples, the matrices at the start and what dropout leaves out."""
    log_every: Positive = 10
    """Steps between two rows of `log.jsonl`; each checkpoint has one, too. Published code."""
    evaluate_every: Positive | None = None
    """Steps between two validations; null: once an epoch. There is also one before the first step and one after the last."""
    save_every: Positive = 100
    """Steps between two checkpoints, of which two are kept. Published code: 100 for the draft, 10 for the target."""
    gradient_checkpointing: bool = False
    """Compute activations again instead of keeping them: less memory, about a fifth slower."""
    trust_remote_code: bool = False
    """Let code run that comes with the model."""


class DraftConfig(TrainConfig, frozen=True, kw_only=True):
    """`pipeline train draft`: a draft model learns the thoughts of its target (thinking behaviour alignment, SCoT 3.3)."""

    learning_rate: Rate = 5e-5
    """The highest learning rate of AdamW. Published code."""


class SelectConfig(TrainConfig, frozen=True, kw_only=True):
    """`pipeline train select`: a target learns to name a right option with one token (SCoT 3.4; SpecCoT 3.4; SpecReason 4.1)."""

    learning_rate: Rate = 1e-4
    """The highest learning rate of AdamW. Published code."""
    loss: Literal["least", "sum"] = "least"
    """Of an example with several right options: `least`, the least of their cross entropies (SCoT 3.4, published code), or `sum`, minus the
    log of the sum of their probabilities (with which the bundled models were trained)."""


CONFIGS: dict[Task, type[TrainConfig]] = {"draft": DraftConfig, "select": SelectConfig}
"""The config of each training."""
FILE = "config.yaml"
"""The config as it was used, in the folder of the adapter."""


@with_lines
def load_config(path: Path | str, to: type[C], settings: Sequence[str] = (), output: Path | None = None) -> C:
    """The config in the file that `path` names, with `settings` (`KEY=VALUE`, dots between keys of mappings) and `output` in it.

    Raises `GraphError` for whatever is wrong with any of them, `UsageError` for an unknown name.
    """
    file = find_file(path, "training file")
    raw = read_yaml(file)
    for setting in settings:
        _apply(setting, raw)
    if output is not None:
        raw["output"] = str(output)
    config = convert(raw, to, file, "$")
    if config.output is None:
        raise GraphError(f"{file}: $", "has no `output`; name the folder of the adapter there, or with --output", key="output")
    return config


def read_config(folder: Path, to: type[C]) -> C:
    """The config of the training in `folder`, as it was used; raises `GraphError`."""
    return convert(read_yaml(folder / FILE), to, folder / FILE, "$")


def as_yaml(config: TrainConfig) -> bytes:
    """All values of a config as a YAML file."""
    return msgspec.yaml.encode(config)


def changes(before: TrainConfig, now: TrainConfig) -> list[str]:
    """What is not as it was `before`, a clause for each field; where the folder is does not count."""
    return [
        f"{name} was {msgspec.json.encode(old).decode()} and is {msgspec.json.encode(new).decode()}"
        for name, old, new in ((name, getattr(before, name), getattr(now, name)) for name in before.__struct_fields__)
        if old != new and name != "output"
    ]


def _apply(setting: str, raw: dict[str, Any]) -> None:
    """Write the value of a `KEY=VALUE` into `raw`."""
    where = f"--set {setting}"
    name, equals, text = setting.partition("=")
    *parents, key = name.split(".")
    if not equals or not all((*parents, key)):
        raise GraphError(where, "expected KEY=VALUE, such as lora.rank=16")
    try:
        value = parse(text)
    except NotYaml as error:
        raise GraphError(where, f"{text!r} is not a YAML value") from error
    target = raw
    for parent in parents:
        target[parent] = dict(mapping(target.get(parent, {}), where))
        target = target[parent]
    target[key] = value
