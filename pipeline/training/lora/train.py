"""`pipeline train`: a config enters; an adapter in its folder leaves, with its card, its report and its log.

All that can be wrong is found before a model is loaded. Of several processes that train together (`accelerate launch`) each comes here; the
first one alone holds the folder, writes and tells.
"""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.bundled import find_file
from pipeline.engines.model_card import ModelCard, local_folder, missing, read_card
from pipeline.engines.models import resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, MissingExtra, RunFolderError, boundary
from pipeline.files import new_file
from pipeline.graph.loader import load_prompts
from pipeline.report.extra import load as load_report
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.lora.card import adapter_card
from pipeline.training.lora.config import Task, TrainConfig
from pipeline.training.lora.data import Data, prepare
from pipeline.training.lora.files import read_files
from pipeline.training.lora.log import FILE as LOG
from pipeline.training.lora.log import Log, Tell, read_log
from pipeline.training.lora.output import (
    CHECKPOINTS,
    REPORT,
    Outcome,
    Record,
    begin,
    discard,
    held,
    is_finished,
    last_checkpoint,
    publish_adapter,
    weights_sha256,
    write_record,
)
from pipeline.training.lora.tokens import Encoder

NEEDED = ("trl", "datasets")
"""Packages of the extra `train`."""
VERSIONS = ("speculative-pipeline", "torch", "transformers", "trl", "peft", "accelerate", "datasets")
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Set before the libraries that read them are imported: TRL reports every trainer to the hub otherwise, and tokenizers warn of forks."""
_NO_LIMIT = 1 << 40


class TrainRequest(Struct, frozen=True, kw_only=True):
    """One training, as a command asks for it."""

    task: Task
    config: TrainConfig
    files: Sequence[tuple[str, Path]]
    """The data: each as the config names it, and where it is."""
    test_sets: Mapping[str, Sequence[Path]]
    """The files of each test set, by its name in the config."""
    resume: bool = False
    command: str = ""
    """The command, as it was given."""

    @property
    def folder(self) -> Path:
        """Where the adapter will be."""
        return Path(str(self.config.output))


def train(request: TrainRequest, tell: Tell) -> bool:
    """Train what `request` asks for, or continue it; `tell` gets lines for the user. Whether this process is the first of its kind.

    Raises `UsageError` for whatever is wrong with config, data or model, `RunError` if the training cannot continue.
    """
    _check_extra()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    config, is_first = request.config, process_number() == 0
    tell = tell if is_first else _silent
    model = _resolved(config)
    card = read_card(model)
    _check_model(config, card, tell)
    data = _data(request, model, card)
    if not is_first:
        if not (request.resume and is_finished(request.folder)):
            _train(request, model, data, None, None)
        return False
    for line in data.notices():
        tell(line)
    with held(request.folder, resume=request.resume):
        _train_held(request, model, card, data, tell)
    return True


def process_number() -> int:
    """The place of this process among those that train together, as `accelerate launch` and `torchrun` say it, from 0."""
    return int(os.environ.get("RANK") or 0)


def base_name(model: str, resolved: str) -> str:
    """What an adapter calls the model that it was trained on: a name of the hub or of this package as it is, a folder by its whole path."""
    return str(Path(resolved).expanduser().absolute()) if is_folder(model, resolved) else model


def is_folder(model: str, resolved: str) -> bool:
    """Whether a model is a folder that somebody named, not one of this package."""
    return model == resolved and Path(resolved).expanduser().is_dir()


def _train_held(request: TrainRequest, model: str, card: ModelCard, data: Data, tell: Tell) -> None:
    """Train in the folder, which this process holds, and leave the adapter there."""
    folder, config = request.folder, request.config
    record = begin(folder, config, _record(request, card, data))
    if is_finished(folder) and record.outcome is not None:
        tell(f"{folder}: is already finished; nothing to do")
        return
    checkpoint, step = last_checkpoint(folder)
    if request.resume and checkpoint is not None:
        tell(f"continuing from step {step:,}")
    tell(f"{len(data.train):,} examples to train on, {len(data.validation):,} held back for validation; loading {config.model}")
    began = time.monotonic()
    log, show = folder / LOG, partial(_write_report, folder, config, record, _silent)
    try:
        facts = _train(request, model, data, checkpoint, lambda: Log(log, tell, step, show=show))
    except Exception:
        if last_checkpoint(folder)[0] is None:  # nothing is lost, and whatever mends the error makes another training
            discard(folder)
        raise
    checkpoint, step = last_checkpoint(folder)
    if checkpoint is None:
        raise RunFolderError(str(folder), "its last checkpoint is gone")
    outcome = Outcome(
        steps=step,
        trained_parameters=facts.trained_parameters,
        parameters=facts.parameters,
        device=facts.device,
        precision=facts.precision,
        seconds=round(time.monotonic() - began, 3),
    )
    here = local_folder(model)
    sha256 = record.weights_sha256 or (None if here is None else weights_sha256(here))
    record = structs.replace(record, outcome=outcome, weights_sha256=sha256)
    name = base_name(config.model, model)
    on_hub = not is_folder(config.model, model) and model == config.model
    text = adapter_card(folder.resolve().name, str(folder), name, on_hub, config, record, read_log(log))
    _write(folder / "README.md", text)
    _write_report(folder, config, record, tell)
    write_record(folder, record)
    publish_adapter(folder, checkpoint, name)


def _train(request: TrainRequest, model: str, data: Data, checkpoint: Path | None, open_log: Any) -> Any:
    """The part that loads torch; see `trainer.train`."""
    trainer = import_module("pipeline.training.lora.trainer")
    job = trainer.Job(
        config=request.config,
        model=model,
        train=data.train,
        validation=data.validation,
        checkpoints=request.folder / CHECKPOINTS,
        checkpoint=checkpoint,
    )
    return trainer.train(job, open_log)


def _check_extra() -> None:
    """Raise `MissingExtra` where a package of the extra is not installed; a folder `datasets`, which has no code, may pass for one."""
    for package in NEEDED:
        found = find_spec(package)
        if found is None or found.origin is None:
            raise MissingExtra("pipeline train", package, "train")


def _resolved(config: TrainConfig) -> str:
    try:
        return resolve("model", config.model)
    except GraphError as error:
        raise GraphError(f"model: {config.model}", error.what) from error


def _check_model(config: TrainConfig, card: ModelCard, tell: Tell) -> None:
    """Raise `GraphError` for a model that is not here and cannot be had, or whose files are damaged, and for a `max_length` beyond it."""
    for finding in missing("model", card):
        if finding.fatal:
            raise GraphError(f"model: {config.model}", f"{finding.what}; {finding.remedy}")
        tell(f"{finding.what}; {finding.remedy}")
    if config.max_length is not None and card.max_model_len is not None and config.max_length > card.max_model_len:
        raise GraphError("max_length", f"is {config.max_length:,}, and {config.model} was made for {card.max_model_len:,} tokens")


def _data(request: TrainRequest, model: str, card: ModelCard) -> Data:
    """The examples of a training."""
    config = request.config
    files = read_files(request.task, request.files)
    held_out = HeldOutProblems(request.test_sets)
    tokenizer = HFTokenizer(model, trust_remote_code=config.trust_remote_code)
    prompts = load_prompts(find_file(config.prompts, "prompts file"))
    vocab_size = None if card.shape is None else card.shape.vocab_size
    encoder = Encoder(tokenizer, config.model, prompts, vocab_size, config.same_tokenizer)
    return prepare(files, config, held_out, encoder, config.max_length or card.max_model_len or _NO_LIMIT)


def _record(request: TrainRequest, card: ModelCard, data: Data) -> Record:
    return Record(
        task=request.task,
        model=request.config.model,
        weights_sha256=None if card.folder is None else weights_sha256(Path(card.folder)),
        files=data.files,
        processes=int(os.environ.get("WORLD_SIZE") or 1),
        versions={"python": platform.python_version(), **{name: found for name in VERSIONS if (found := _version(name))}},
        commands=(request.command,),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _write_report(folder: Path, config: TrainConfig, record: Record, tell: Tell) -> None:
    """Write the report of a training, over or not; without the extra that draws its curves, say how to get it."""
    try:
        load_report("page")
    except MissingExtra as error:
        tell(f"no report: {error}")
        return
    page = import_module("pipeline.training.lora.page")
    _write(folder / REPORT, page.training_page(folder.resolve().name, config, record, read_log(folder / LOG)))


def _write(path: Path, text: str) -> None:
    with boundary(RunFolderError, str(path), foreign=OSError), new_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _silent(line: str) -> None:
    """Tell nobody."""
