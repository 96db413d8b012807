"""The folder of a training: what is in it, whether it may be begun or gone on with, and the adapter that is left in it at the end.

config.yaml and training.json are written before the first step, log.jsonl and checkpoints/ as it goes, and at the end the adapter with
its card and report. A checkpoint is taken for whole when a file in it says so, which is written last.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.engines.adapters import CONFIG, WEIGHTS
from pipeline.engines.checkpoint import read_json, weight_files
from pipeline.errors import InputError, RunFolderError, UsageError, boundary
from pipeline.files import new_file
from pipeline.store.folder import hold_output
from pipeline.training.lora import config as configs
from pipeline.training.lora.config import CONFIGS, Task, TrainConfig, changes, read_config
from pipeline.training.lora.data import FileCounts
from pipeline.training.lora.log import FILE as LOG

RECORD = "training.json"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
CHECKPOINTS_KEPT = 2
WHOLE = "whole.json"
"""The file in a checkpoint that says that it is whole."""
_STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_CHUNK = 1 << 20


class Outcome(Struct, frozen=True, kw_only=True):
    """What is known when a training is over."""

    steps: int
    trained_parameters: int
    parameters: int
    """Of the model, the trained ones aside."""
    device: str
    precision: str
    seconds: float
    """Of the session that ended it, from the loading of the model on."""


class Record(Struct, frozen=True, kw_only=True):
    """`training.json`: what was trained, on what, with what."""

    task: Task
    model: str
    """As the config names it."""
    weights_sha256: str | None
    """That of `sha256sum` over the files of the model's weights, sorted by name, in the form in which it prints them; None: not known."""
    files: tuple[FileCounts, ...]
    processes: int
    """That computed together, each on its own examples."""
    versions: Mapping[str, str]
    """Of Python and the packages that compute."""
    commands: tuple[str, ...]
    """As they were given, the first and those that resumed it."""
    outcome: Outcome | None = None


@contextmanager
def held(folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold `folder` for one training until the end. Raises `UsageError` where it is in use, or holds one that is not to be resumed."""
    if not resume and (folder / configs.FILE).is_file():
        raise UsageError(f"{folder}: already holds a training; add --resume to continue it, or choose another folder with --output")
    with hold_output(folder, configs.FILE, resume=resume):
        yield


def begin(folder: Path, config: TrainConfig, record: Record) -> Record:
    """Write what a training is about to do into its folder, or compare with what is there. Returns the record with all its commands, or,
    of one that is over, the one that is there.

    Raises `UsageError` for a training that was begun with another config, other data, other weights or another number of processes.
    """
    if (folder / configs.FILE).is_file() and (folder / RECORD).is_file():
        before = read_record(folder)
        _check_unchanged(folder, before, config, record)
        if before.outcome is not None:
            return before
        record = msgspec.structs.replace(record, commands=(*before.commands, *record.commands))
    with boundary(RunFolderError, f"{folder}: cannot be written", foreign=OSError):
        write_record(folder, record)
        with new_file(folder / configs.FILE) as draft:
            draft.write_bytes(configs.as_yaml(config))
        (folder / CHECKPOINTS).mkdir(exist_ok=True)
    return record


def discard(folder: Path) -> None:
    """Remove what `begin` wrote: nothing was learnt, and the folder is free for another attempt."""
    for name in (LOG, REPORT, RECORD, configs.FILE):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        (folder / CHECKPOINTS).rmdir()


def read_record(folder: Path) -> Record:
    """The `training.json` of a folder; raises `InputError`."""
    path = folder / RECORD
    with boundary(InputError, str(path), foreign=(OSError, msgspec.DecodeError, UnicodeDecodeError)):
        return msgspec.json.decode(path.read_bytes(), type=Record)


def write_record(folder: Path, record: Record) -> None:
    """Write `training.json`, whole or not at all."""
    with new_file(folder / RECORD) as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def last_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """The newest whole checkpoint in the folder of a training, and its step; (None, 0) without one. Others that are newer are deleted."""
    found = {path: _NAME.fullmatch(path.name) for path in (folder / CHECKPOINTS).glob("checkpoint-*")}
    steps = {path: int(name[1]) for path, name in found.items() if name is not None}
    for path in sorted(steps, key=steps.__getitem__, reverse=True):
        if (path / WHOLE).is_file():
            return path, steps[path]
        shutil.rmtree(path, ignore_errors=True)
    return None, 0


def is_last(checkpoint: Path) -> bool:
    """Whether a checkpoint is that of the last step."""
    state = read_json(checkpoint / _STATE)
    return bool(state.get("max_steps")) and state.get("global_step", 0) >= state["max_steps"]


def mark_whole(checkpoints: Path, step: int) -> None:
    """Say that the checkpoint of `step` is whole."""
    with new_file(checkpoints / f"checkpoint-{step}" / WHOLE) as draft:
        draft.write_bytes(msgspec.json.encode({"step": step}))


def is_finished(folder: Path) -> bool:
    """Whether a training has left its adapter."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


def publish_adapter(folder: Path, checkpoint: Path, base_model: str) -> None:
    """Copy the adapter of a checkpoint to where a training leaves it, as one of `base_model`; its configuration, which comes last, says
    that it is there."""
    said = read_json(checkpoint / CONFIG) | {"base_model_name_or_path": base_model}
    with boundary(RunFolderError, f"{folder}: cannot be written", foreign=OSError):
        with new_file(folder / WEIGHTS) as draft:
            shutil.copyfile(checkpoint / WEIGHTS, draft)
        with new_file(folder / CONFIG) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n")


def weights_sha256(folder: Path) -> str:
    """What `sha256sum` says of the files of a model's weights, hashed by `sha256sum` again: `sha256sum *.safetensors | sha256sum`."""
    lines = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            lines.update(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n".encode())
    return lines.hexdigest()


def _check_unchanged(folder: Path, before: Record, config: TrainConfig, now: Record) -> None:
    if before.task != now.task:
        raise UsageError(f"{folder}: was begun by `pipeline train {before.task}`; only that can continue it")
    differences = changes(read_config(folder, CONFIGS[now.task]), config)
    hashes = {file.name: file.sha256 for file in before.files}
    differences += [f"the file {file.name} has changed" for file in now.files if hashes.get(file.name) != file.sha256]
    if None not in (before.weights_sha256, now.weights_sha256) and before.weights_sha256 != now.weights_sha256:
        differences.append(f"the weights of {now.model} have changed")
    if before.processes != now.processes:
        differences.append(f"it had {before.processes} processes and now has {now.processes}")
    if differences:
        raise UsageError(f"{folder}: is no longer the same training: {'; '.join(differences)}; undo that, or start in another folder")
