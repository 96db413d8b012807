"""The file of a training as strict values: YAML and `--set` enter, a config leaves, or what is wrong with it.

A default comes from SCoT's paper (Wang et al.), else from its published code, else it was chosen here; the field says which. Paths are
relative to the working folder, like models and adapters in engines files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

from pipeline.errors import GraphError
from pipeline.graph.files import read_file, read_setting
from pipeline.graph.load import WrongValue, decode, located

Task: TypeAlias = Literal["draft", "select"]
"""A draft model to think as its target does (SCoT 3.3), or a target to choose, reject and score (SCoT 3.4)."""
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Rate: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
C = TypeVar("C", bound="TrainConfig")


class LoraSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The LoRA matrices that are trained (Hu et al. 2022)."""

    rank: Annotated[int, Meta(ge=1, le=512)] = 8
    """Rank of the matrices; vLLM serves up to 512. SCoT 4.1."""
    alpha: Annotated[float, Meta(gt=0.0, le=1_000_000.0)] = 32
    """Scale of the matrices: what they add is multiplied by `alpha` / `rank`. Published code."""
    dropout: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.1
    """Dropout on the inputs of the matrices. Published code."""
    targets: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("q_proj", "v_proj")
    """Linear layers that get matrices, by the last part of their names. SCoT 3.3 and 3.4."""


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that both trainings have."""

    model: Text
    """The model that is trained: a folder, a hub name, or `bundled:NAME`, as in an engines file."""
    data: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Files of `pipeline export --as sft` (for `draft`) or `selection` (for `select`)."""
    output: Text | None = None
    """Folder of the adapter; `--output` overrides it."""
    test_sets: tuple[Text, ...] = ()
    """Inputs, as for `pipeline run --input`: examples about one of their problems are left out and counted."""
    lora: LoraSpec = LoraSpec()
    """The LoRA matrices."""
    learning_rate: Rate = 1e-4
    """First learning rate of AdamW; it falls linearly to 0. Published code."""
    epochs: Annotated[float, Meta(gt=0.0, le=10_000.0)] = 5
    """Passes over all examples. Published code."""
    batch_size: Positive = 4
    """Examples computed together. Published code, in a loader that its trainer does not use: that computes one example per step."""
    gradient_accumulation: Positive = 1
    """Batches whose gradients are summed for one step. Published code."""
    max_length: Positive | None = None
    """Maximum number of tokens of an example; longer ones are left out and counted, never truncated. Null: the model's context length."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Random seed of the order of the examples, the initial matrices and dropout."""
    gradient_checkpointing: bool = False
    """Recompute activations instead of keeping them: less memory, about a fifth slower."""


class DraftConfig(TrainConfig, frozen=True, kw_only=True):
    """`pipeline train draft`: the draft learns to reason as its target does (SCoT 3.3)."""

    learning_rate: Rate = 5e-5
    """First learning rate of AdamW; it falls linearly to 0. Published code."""


class SelectConfig(TrainConfig, frozen=True, kw_only=True):
    """`pipeline train select`: the target learns to name a right option with one token (SCoT 3.4; SpecCoT 3.4; SpecReason 4.1)."""


CONFIGS: dict[Task, type[TrainConfig]] = {"draft": DraftConfig, "select": SelectConfig}
"""The config of each training."""


def load_config(path: Path | str, to: type[C], settings: Sequence[str] = (), output: Path | None = None) -> C:
    """The config in the file that `path` names, with `settings` (`KEY=VALUE`, dots between keys of mappings) and `output` in it.

    Raises `GraphError` for whatever is wrong with any of them, `UsageError` for an unknown name.
    """
    values = read_file(path, "training file")
    for setting in settings:
        keys, value, place = read_setting(setting)
        if not all(keys.split(".")):
            raise GraphError(place, "expected NAME=VALUE, such as lora.rank=16")
        values.put((*keys.split("."),), value, place)
    if output is not None:
        values.put(("output",), str(output), "--output")
    with located(values):
        if values.get("output") is None:
            raise WrongValue((), "has no `output`; name the folder of the adapter there, or with --output", "output")
        return decode(values, to)
