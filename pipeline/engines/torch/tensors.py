"""Whether the tensors of a checkpoint are those that its model is made of: by name and shape, without loading any.

A folder enters, a clause about what is missing or of another shape leaves, or None. transformers compares: it loads tensors without
values into a model without values, with all that it knows of renamed, merged and tied ones. As a program (`python -m
pipeline.engines.torch.tensors`) it answers a JSON list of `[folder, own_class]` on stdin with a JSON list of clauses and nulls.
"""

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL
from transformers import AutoConfig

from pipeline.engines.checkpoint import Damaged, Tensors, listed, read_tensors, weight_files

_QUANTIZATIONS = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files next to `config.json` in which some tools describe a quantization."""


class Unloadable(Exception):
    """No engine loads these weights; the text is a clause that says why."""


def flaw_in_tensors(folder: str, *, own_class: bool) -> str | None:
    """What is wrong with the tensors of the model in `folder`; None where nothing is, and where only loading it would tell.

    `own_class`: it is computed as the class that its `config.json` names; else as a causal language model, whatever that says.
    """
    try:
        tensors = _tensors(Path(folder))
    except Unloadable as flaw:
        return str(flaw)
    except (Damaged, OSError):
        return None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        kind = getattr(transformers, (config.architectures or [""])[0], None) if own_class else CAUSAL.get(type(config), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not tensors or kind is None:
        return None
    packed = _without_quantization(config) or any((Path(folder) / name).exists() for name in _QUANTIZATIONS)
    try:
        loaded = _compare(kind, config, tensors)
    except RuntimeError as error:
        return None if packed else flaw_in_conversion(error)
    except Exception:  # an architecture that is not known here, whose engine will tell what it lacks
        return None
    return flaw_in_loading(_packed(loaded, tensors) if packed else loaded)


def flaw_in_loading(report: Mapping[str, Any]) -> str | None:
    """What is wrong according to the `loading_info` of transformers: tensors that it had to make up; None where nothing is."""
    missing = sorted(report["missing_keys"])
    if missing:
        others = "" if not report["unexpected_keys"] else f" (it has {len(report['unexpected_keys'])} others that the model lacks)"
        return f"{_count(missing)} of the model's tensors {_is(missing)} not in its files: {listed(missing)}{others}"
    other = [f"{name} has {_shape(found)}, not {_shape(wanted)}" for name, found, wanted in sorted(report["mismatched_keys"])]
    return f"{_count(other)} of its tensors {_is(other)} not of the model's shape: {listed(other)}" if other else None


def flaw_in_conversion(error: Exception) -> str | None:
    """What is wrong where transformers could not merge tensors, such as those of experts, into one; None for another error."""
    if "automatic conversion" not in str(error):
        return None
    return "some of the tensors that the model merges into one are not in its files, or are of other shapes"


def _tensors(folder: Path) -> Tensors:
    """The tensors of all files of a checkpoint; an empty mapping for a kind of file whose header does not tell."""
    files = weight_files(folder)
    if any(path.suffix != ".safetensors" for path in files):
        return _pickled(files) if all(path.suffix == ".bin" for path in files) else {}
    return {name: shape for path in files for name, shape in read_tensors(path).items()}


def _pickled(files: Iterable[Path]) -> Tensors:
    """The tensors of files that torch wrote, read without their values and without running any code of theirs; raises `Unloadable`."""
    tensors: Tensors = {}
    for path in files:
        try:
            read = torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:  # torch raises what it likes for a damaged file
            raise Unloadable(flaw_in_pickle(error) or f"its {path.name} cannot be read: it is damaged, or not a torch file") from error
        if not isinstance(read, Mapping):
            raise Unloadable(f"its {path.name} holds no tensors by name")
        tensors |= {name: tuple(value.shape) for name, value in read.items() if isinstance(value, torch.Tensor)}
    return tensors


def flaw_in_pickle(error: BaseException) -> str | None:
    """What is wrong where torch would not unpickle weights; None for another error."""
    if isinstance(error, UnpicklingError):
        return "its weights are a pickle of more than tensors, which may run code when it is loaded, and so is not (safetensors cannot)"
    return None


def _without_quantization(config: Any) -> bool:
    """Take the quantization out of `config`, which would need its library; returns whether there was one."""
    found = False
    for part in (config, config.get_text_config()):
        for name in ("quantization_config", "compression_config"):
            if getattr(part, name, None):
                delattr(part, name)
                found = True
    return found


def _compare(kind: Any, config: Any, tensors: Tensors) -> Mapping[str, Any]:
    """The `loading_info` of transformers for `tensors` in a model of `kind`, all of it on torch's device without memory."""
    empty = {name: torch.empty(shape, device="meta") for name, shape in tensors.items()}
    _, report = kind.from_pretrained(
        None, config=config, state_dict=empty, device_map="meta", output_loading_info=True, ignore_mismatched_sizes=True
    )
    return dict(report)


def _packed(report: Mapping[str, Any], tensors: Tensors) -> Mapping[str, Any]:
    """`report` of a quantized checkpoint: a weight is there if its module has any tensor, under whatever name and packed to any shape."""
    there = {prefix for name in (*tensors, *report["unexpected_keys"]) for prefix in _prefixes(name)}
    missing = {name for name in report["missing_keys"] if name.rpartition(".")[0] not in there}
    return {"missing_keys": missing, "mismatched_keys": (), "unexpected_keys": ()}


def _prefixes(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts)))


def _shape(size: Iterable[int]) -> str:
    return "x".join(map(str, size)) or "no dimension"


def _count(names: list[str]) -> str:
    return f"{len(names):,}"


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def main() -> None:
    """The main function of the program."""
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    print(json.dumps([flaw_in_tensors(folder, own_class=own_class) for folder, own_class in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
