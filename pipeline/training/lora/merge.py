"""`pipeline train merge`: a LoRA adapter and the model that it was trained on enter, a folder with both in one set of weights leaves.

SCoT 3.3 serves its draft so, without any cost of the adapter. What does not fit together is refused before anything is loaded.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pipeline.engines.models import adapter_folder, check_model, read_card, read_json, resolve
from pipeline.errors import GraphError, MissingExtra, RunFolderError, UsageError, boundary

DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""The number type of merged weights; `auto`: that in which the model was saved."""


def merge(adapter: str, output: Path, model: str | None = None, dtype: DType = "auto", *, trust_remote_code: bool = False) -> None:
    """Write the merged model to the folder `output`: `adapter` is a folder or `bundled:NAME`, `model` the base model if it is not the one
    that the adapter names. The folder has tokenizer and chat template. The sum is computed in float32.

    Raises `UsageError` where the two do not fit, `RunFolderError` where the folder cannot be written.
    """
    with boundary(UsageError, adapter, foreign=LookupError):
        folder = adapter_folder(adapter)
    if not (folder / "adapter_config.json").is_file():
        raise UsageError(f"{adapter}: is no folder of an adapter, which has an adapter_config.json")
    name = model or str(read_json(folder / "adapter_config.json").get("base_model_name_or_path") or "")
    if not name:
        raise UsageError(f"{adapter}: does not name the model that it was trained on; name it with --model")
    try:
        base = resolve("model", name)
        check_model(name, base)
    except GraphError as error:
        raise UsageError(f"{adapter}: its base model: {error.what}") from error
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output}: already exists; choose another folder with -o")
    saved = (read_card(base).dtype or "float32") if dtype == "auto" else dtype
    whole, tokenizer = _merged(base, folder, adapter, saved, trust_remote_code)
    draft = output.with_name(f".{output.name}.tmp")
    with boundary(RunFolderError, f"{output}: cannot be written", foreign=OSError):
        shutil.rmtree(draft, ignore_errors=True)
        whole.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        draft.replace(output)


def _merged(model: str, adapter: Path, name: str, dtype: str, trust_remote_code: bool) -> tuple[Any, Any]:
    """The model with the adapter in its weights, and its tokenizer. What the adapter adds is small, so the sum is not rounded."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingExtra("pipeline train merge", "peft", "train") from error
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    options = {"trust_remote_code": trust_remote_code}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's of tied embeddings, which no adapter made here touches
            loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **options)
            beside: Any = PeftModel.from_pretrained(loaded, str(adapter))
            merged: Any = beside.merge_and_unload()
            tokenizer = AutoTokenizer.from_pretrained(model, **options)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise UsageError(f"{name}: does not fit {model}: {' '.join(str(error).split()[:60])}") from error
    if left := [key for key, _ in merged.named_parameters() if "lora_" in key]:
        raise UsageError(f"{name}: {len(left):,} of its matrices cannot be merged, such as {left[0]}; serve it as an adapter")
    return merged.to(getattr(torch, dtype)), tokenizer
