"""Checkpoints that do not hold all tensors of their model, or more than tensors: what transformers and torch tell becomes a clause."""

import re
from collections.abc import Mapping
from pickle import UnpicklingError
from typing import Any

from pipeline.engines.model_card import listed


def flaw_in_loading(report: Mapping[str, Any], model: Any) -> str | None:
    """The flaw according to the `loading_info` of transformers for a `model`: tensors that it had to make up, or leaves out although they
    belong into a module of a kind that the model has, as in a layer more than `config.json` says. None where nothing is wrong.
    """
    missing = sorted(report["missing_keys"])
    if missing:
        others = "" if not report["unexpected_keys"] else f" (it has {len(report['unexpected_keys'])} others that the model lacks)"
        return f"{len(missing):,} of the model's tensors {_is(missing)} not in its files: {listed(missing)}{others}"
    other = [f"{name} has {_size(found)}, not {_size(wanted)}" for name, found, wanted in sorted(report["mismatched_keys"])]
    if other:
        return f"{len(other):,} of its tensors {_is(other)} not of the model's shape: {listed(other)}"
    # Old checkpoints also hold masks and versions, beside the weights and in modules without any.
    kinds = {_NUMBER.sub("#", name) for name, each in model.named_modules() if next(each.parameters(recurse=False), None) is not None}
    more = sorted(
        name for name in report["unexpected_keys"] if _NUMBER.sub("#", name.removesuffix(".bias").removesuffix(".weight")) in kinds
    )
    return f"the model that its config.json describes has no place for {len(more):,} of its tensors: {listed(more)}" if more else None


_NUMBER = re.compile(r"\d+")


def flaw_in_conversion(error: Exception) -> str | None:
    """The flaw where transformers could not merge tensors, such as those of experts, into one; None for another error."""
    if "automatic conversion" not in str(error):
        return None
    return "some of the tensors that the model merges into one are not in its files, or are of other shapes"


def flaw_in_pickle(error: BaseException) -> str | None:
    """The flaw where torch would not unpickle weights; None for another error."""
    if isinstance(error, UnpicklingError):
        return "its weights are a pickle of more than tensors, which may run code when it is loaded, and so is not (safetensors cannot)"
    return None


def _size(size: Any) -> str:
    return "x".join(map(str, size)) or "no dimension"


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
