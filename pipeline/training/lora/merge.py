"""`pipeline train merge`: a LoRA adapter and the model that it was trained on enter, a folder with both in one set of weights leaves.

SCoT 3.3 serves its draft so, without any cost of the adapter. What does not fit together is refused before anything is loaded; the folder
is written whole or not at all.
"""

import hashlib
import os
import shutil
import warnings
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from pipeline.engines.adapters import WEIGHTS, AdapterCard, adapter_findings, read_adapter
from pipeline.engines.checkpoint import ANEW, listed
from pipeline.engines.model_card import ModelCard, local_folder, missing, read_card
from pipeline.engines.models import adapter_folder, resolve
from pipeline.errors import GraphError, RunFolderError, UsageError, boundary, reason
from pipeline.training.lora.card import merged_card
from pipeline.training.lora.output import RECORD, Record, read_record, weights_sha256
from pipeline.training.lora.train import base_name, is_folder

DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
COPIED = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
    "merges.txt", "spiece.model", "tekken.json", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""Files of a model that stay as they are: its tokenizer, its chat template, how it samples by itself."""


class MergeRequest(Struct, frozen=True, kw_only=True):
    """One merge, as a command asks for it."""

    adapter: Path
    """Its folder, or `bundled:NAME`."""
    output: Path
    model: str | None = None
    """The base model; None: the one that the adapter names."""
    dtype: DType = "auto"
    """The number type of the merged weights; `auto`: that in which the model was saved. The sum is computed in float32."""
    trust_remote_code: bool = False
    command: str = ""
    """The command, as it was given."""

    @property
    def folder(self) -> Path:
        """The folder of the adapter; raises `LookupError` for an unknown `bundled:NAME`."""
        return adapter_folder(str(self.adapter))


def merge(request: MergeRequest) -> None:
    """Write the merged model. Raises `UsageError` where the two do not fit, `RunFolderError` where the folder cannot be written."""
    adapter = read_adapter(str(request.adapter))
    if adapter.flaw is not None:
        raise UsageError(f"{request.adapter}: cannot be merged: {adapter.flaw}; name the folder of another adapter")
    name = request.model or adapter.base_model
    if not name:
        raise UsageError(f"{request.adapter}: does not name the model that it was trained on; name it with --model")
    try:
        model = resolve("model", name)
    except GraphError as error:
        raise UsageError(f"{request.adapter}: its base model: {error.what}") from error
    card = read_card(model)
    record = read_record(request.folder) if (request.folder / RECORD).is_file() else None
    _check_fit(request, name, adapter, card, record)
    if request.output.exists() and (not request.output.is_dir() or any(request.output.iterdir())):
        raise UsageError(f"{request.output}: already exists; choose another folder with -o")
    draft = request.output.absolute().parent / f".{token_hex(8)}.tmp"
    with boundary(RunFolderError, f"{request.output}: cannot be written", foreign=OSError):
        try:
            draft.mkdir(parents=True)
            _write(request, model, name, card, record, draft)
            if request.output.is_dir():
                request.output.rmdir()
            os.replace(draft, request.output)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _check_fit(request: MergeRequest, name: str, adapter: AdapterCard, card: ModelCard, record: Record | None) -> None:
    """Raise `UsageError` where the adapter is not one of this model, as it was when the adapter was trained."""
    for finding in missing("model", card):
        if finding.fatal:
            raise UsageError(f"{request.adapter}: {finding.what}; {finding.remedy}, with --model")
    for finding in adapter_findings("model", {str(request.adapter): adapter}, card, adapter.unusual):
        model = "" if name in finding.what else f" ({name})"
        raise UsageError(f"{finding.what}{model}; {finding.remedy}")
    trained_on = None if record is None else record.weights_sha256
    if trained_on is not None and card.folder is not None and weights_sha256(Path(card.folder)) != trained_on:
        what = f"was trained on other weights than {name} has (sha256 {trained_on[:16]}...)"
        raise UsageError(f"{request.adapter}: {what}; name the model that it was trained on with --model")


def _write(request: MergeRequest, model: str, name: str, card: ModelCard, record: Record | None, folder: Path) -> None:
    """Write all files of the merged model into `folder`."""
    merged = _merged(request, model, card)
    merged.save_pretrained(str(folder))
    base = local_folder(model)
    for file in COPIED if base is not None else ():
        assert base is not None
        if (base / file).is_file():
            shutil.copyfile(base / file, folder / file)
    with (request.folder / WEIGHTS).open("rb") as weights:
        sha256 = hashlib.file_digest(weights, "sha256").hexdigest()
    on_hub = not is_folder(name, model) and model == name
    base_model, title = base_name(name, model), request.output.absolute().name
    said = merged_card(title, base_model, on_hub, str(request.adapter), sha256, record, request.command)
    (folder / "README.md").write_text(said, encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors makes files that their owner alone may read


def _merged(request: MergeRequest, model: str, card: ModelCard) -> Any:
    """The model with the adapter in its weights. What the adapter adds is small, so that the sum is made before it is rounded."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's of tied embeddings, which no adapter made here touches
            loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, trust_remote_code=request.trust_remote_code)
            beside: Any = PeftModel.from_pretrained(loaded, str(request.folder))
            merged: Any = beside.merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise UsageError(f"{request.adapter}: does not fit {model}: {reason(error)}; {ANEW}") from error
    left = [key for key, _ in merged.named_parameters() if "lora_" in key]
    if left:
        raise UsageError(f"{request.adapter}: {len(left):,} of its matrices cannot be merged: {listed(left)}; serve it as an adapter")
    saved = card.dtype or "float32"
    return merged.to(getattr(torch, saved if request.dtype == "auto" else request.dtype))
