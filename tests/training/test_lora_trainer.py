"""The training itself, in processes of its own: on a CPU, with the bundled models."""

import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.model_card import read_card
from pipeline.engines.models import resolve
from pipeline.training.lora.config import DraftConfig, SelectConfig, TrainConfig
from pipeline.training.lora.log import StepRow, ValidationRow, read_log, validations
from pipeline.training.lora.output import last_checkpoint, read_record
from pipeline.training.lora.tokens import SelectExample
from tests.support.bench import Bench, request
from tests.support.commands import COMMAND, spawned
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.trained import TORCHRUN, Training, as_killed, chosen, draft_config, training
from tests.support.training_data import published_choices

pytestmark = pytest.mark.torch
KNOWN = "known are `down_proj`, `gate_proj`, `k_proj`, `o_proj`, `q_proj`, `up_proj`, `v_proj`"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The log without the times."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "time_unix_ns"} for row in rows]


def test_an_adapter_is_learnt_that_engines_take(trained: Training) -> None:
    there = {path.name for path in trained.folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "report.html", "config.yaml", "log.jsonl"} <= there
    adapter, card = read_adapter(str(trained.folder)), read_card(resolve("target", "bundled:tiny-target"))
    assert [*adapter_findings("target", {"mine": adapter}, card)] == []
    assert (adapter.flaw, adapter.rank, adapter.base_model, adapter.unusual) == (None, 8, "bundled:tiny-target", ())
    assert sorted({name.split(".")[-3] for name in adapter.tensors}) == ["q_proj", "v_proj"]
    record = read_record(trained.folder)
    assert record.outcome is not None
    assert (record.outcome.steps, record.outcome.trained_parameters, record.outcome.precision) == (26, adapter.parameters, "float32")
    assert sorted(path.name for path in (trained.folder / "checkpoints").iterdir()) == ["checkpoint-24", "checkpoint-26"]


def test_it_is_measured_before_on_the_way_and_at_the_end(trained: Training) -> None:
    rows = read_log(trained.folder / "log.jsonl")
    assert [row.step for row in validations(rows)] == [0, 6, 12, 18, 24, 26]
    assert [row.step for row in rows if isinstance(row, StepRow)] == list(range(2, 27, 2))
    first, *_, last = validations(rows)
    assert (first.class_1_accuracy, first.class_2_accuracy) == (0.0, 1.0), "untouched, it rejects every thought"
    assert last.loss < first.loss / 2
    assert (last.class_1_accuracy or 0) > (last.class_1_chance or 1)


def test_what_was_measured_is_what_the_engine_chooses(trained: Training) -> None:
    """Left padding, the last position alone, classes and loss: all against one request for each example."""
    examples = list(trained.validation())
    rows = validations(read_log(trained.folder / "log.jsonl"))
    found: dict[str | None, list[int]] = {}
    for (adapter, logprobs), row in zip(_asked(trained.folder, examples).items(), (rows[0], rows[-1]), strict=True):
        picked = found[adapter] = [chosen(each) for each in logprobs]
        losses = [-math.log(sum(math.exp(of[place]) for place in each.right)) for each, of in zip(examples, logprobs, strict=True)]
        assert row.loss == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        assert row.mass == pytest.approx(sum(sum(map(math.exp, of)) for of in logprobs) / len(logprobs), rel=1e-3)
        _check_classes(row, [(each.none, each.right, place) for each, place in zip(examples, picked, strict=True)])
    assert found[None] != found["mine"], "with the adapter it chooses otherwise"


def _asked(folder: Path, examples: Sequence[SelectExample]) -> dict[str | None, list[Sequence[float]]]:
    """What the engine makes of the options of each example, without the adapter in `folder` and with it."""
    bench = Bench(adapters={"mine": str(folder)})
    found: dict[str | None, list[Sequence[float]]] = {}
    for adapter in (None, "mine"):
        asked = [request(each.ids, adapter=adapter, option_ids=each.option_ids, max_tokens=1) for each in examples]
        found[adapter] = [answer.option_logprobs for answer in bench.run(asked)]
    return found


def _check_classes(row: ValidationRow, picked: list[tuple[int | None, tuple[int, ...], int]]) -> None:
    classes = {1: [each for each in picked if each[1] != (each[0],)], 2: [each for each in picked if each[1] == (each[0],)]}
    for number, of_class in classes.items():
        assert getattr(row, f"class_{number}_examples") == len(of_class)
        hit = sum(place in right for _, right, place in of_class) / len(of_class)
        assert getattr(row, f"class_{number}_accuracy") == pytest.approx(hit)


def test_a_killed_training_goes_on_to_the_same_adapter(trained: Training, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = [*COMMAND, *trained.words(folder)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("step 12/26 · validation") for line in process.stderr)
        process.send_signal(signal.SIGKILL)
    assert not (folder / "adapter_config.json").exists()
    assert "not finished" in (folder / "report.html").read_text(), "its curves can be looked at"
    _, step = last_checkpoint(folder)
    assert 0 < step < 26
    refused = spawned(*trained.words(folder))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "already holds a training; add --resume to continue it" in refused.stderr
    done = spawned(*trained.words(folder, "--resume"))
    assert (done.returncode, f"continuing from step {step}" in done.stderr) == (0, True), done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (trained.folder / "adapter_model.safetensors").read_bytes()
    assert rows_of(folder) == rows_of(trained.folder)
    again = spawned(*trained.words(folder, "--resume"))
    assert (again.returncode, again.stderr) == (0, f"{folder}: is already finished; nothing to do\n")
    assert len(read_record(folder).commands) == 2


def test_a_checkpoint_between_two_rows_changes_none(tmp_path: Path) -> None:
    config, folder = draft_config(tmp_path, log_every=3, save_every=2), tmp_path / "out"
    done = spawned("train", "draft", config)
    assert done.returncode == 0, done.stderr
    rows, weights = rows_of(folder), (folder / "adapter_model.safetensors").read_bytes()
    assert [row["step"] for row in rows if row["kind"] == "step"] == [2, 3, 4, 6]
    assert as_killed(folder) == 4
    done = spawned("train", "draft", config, "--resume")
    assert (done.returncode, "continuing from step 4" in done.stderr) == (0, True), done.stderr
    assert rows_of(folder) == rows
    assert (folder / "adapter_model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("task", ["draft", "select"])
def test_two_small_batches_make_the_step_of_a_large_one(tmp_path: Path, task: str) -> None:
    common = {"validation": 0.0, "lora": {"dropout": 0.0}, "learning_rate": 1e-3, "epochs": 1}
    config = draft_config(tmp_path, 16, **common) if task == "draft" else training(tmp_path, **common, data=[choices(tmp_path)]).config
    commands = [
        [
            "train",
            task,
            str(config),
            "--output",
            str(tmp_path / name),
            "--set",
            f"batch_size={size}",
            "--set",
            f"gradient_accumulation={more}",
        ]
        for name, size, more in (("one", 4, 1), ("two", 2, 2))
    ]
    code = f"from pipeline.cli.main import run_command\nassert [run_command(words) for words in {commands!r}] == [0, 0]"
    done = subprocess.run([*COMMAND[:2], code], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two"))
    assert {read_record(tmp_path / name).outcome.steps for name in ("one", "two")} == {4}  # type: ignore[union-attr]
    assert any(abs(matrix).max() > 1e-4 for name, matrix in one.items() if "lora_B" in name), "something was learnt"
    large, small = (
        [(row["step"], row["loss"], row["grad_norm"]) for row in rows_of(tmp_path / name) if row["kind"] == "step"]
        for name in ("one", "two")
    )
    assert large == [pytest.approx(row, rel=1e-3) for row in small], "AdamW makes nothing of the scale of gradients"
    for name, matrix in one.items():
        assert matrix == pytest.approx(two[name], rel=1e-3, abs=1e-6), name


def choices(folder: Path) -> str:
    """Sixteen choices."""
    return str(published_choices(folder / "sixteen.jsonl", 16))


def together(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command that two processes carry out."""
    return subprocess.run([*TORCHRUN, *words], cwd=ROOT, env=ONE_THREAD, capture_output=True, text=True, timeout=HANGS_S)


def test_two_processes_that_are_killed_go_on_to_the_same_adapter(tmp_path: Path) -> None:
    """With the default loss, `least`, as the engine computes it."""
    made = training(tmp_path)
    straight, folder = together(made.words(made.folder)), tmp_path / "killed"
    assert straight.returncode == 0, straight.stderr
    command = [*TORCHRUN, *made.words(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=ONE_THREAD, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("step 6/") and "validation" in line for line in process.stderr)
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
    done = together(made.words(folder, "--resume"))
    assert (done.returncode, "continuing from step " in done.stderr) == (0, True), done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (made.folder / "adapter_model.safetensors").read_bytes()
    assert rows_of(folder) == rows_of(made.folder)
    first, *_, last = validations(read_log(folder / "log.jsonl"))
    examples = list(made.validation())
    for logprobs, row in zip(_asked(folder, examples).values(), (first, last), strict=True):
        losses = [-max(of[place] for place in each.right) for each, of in zip(examples, logprobs, strict=True)]
        assert row.loss == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    assert last.loss < first.loss / 2


def test_two_processes_train_together(tmp_path: Path) -> None:
    config = draft_config(tmp_path, batch_size=2, validation=0.2)
    done = together(["train", "draft", str(config)])
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "out")
    train = record.files[0].train
    assert record.outcome is not None
    assert (record.processes, record.outcome.steps) == (2, math.ceil(math.ceil(train / 2) / 2))
    assert done.stderr.count(f"step {record.outcome.steps}/{record.outcome.steps} · validation") == 1, "one process tells"
    first, *_, last = validations(read_log(tmp_path / "out/log.jsonl"))
    assert (first.step, last.step) == (0, record.outcome.steps)
    assert first.perplexity == pytest.approx(math.exp(first.loss))


@pytest.mark.parametrize("config", [SelectConfig, DraftConfig])
def test_no_default_of_the_trainer_changes_data_or_numbers(config: type[TrainConfig], tmp_path: Path) -> None:
    """In a process of its own: importing TRL takes seconds, and warns."""
    names = [
        *("max_length", "bf16", "fp16", "gradient_checkpointing", "packing", "learning_rate"),
        *("num_train_epochs", "per_device_train_batch_size", "eval_steps", "save_total_limit", "report_to"),
        *("lr_scheduler_type.value", "warmup_steps", "weight_decay", "max_grad_norm", "data_seed"),
    ]
    code = f"""
import operator, torch
from pathlib import Path
from pipeline.training.lora import config, trainer
said = config.{config.__name__}(model="m", data=("a",), device="cpu")
job = trainer.Job(config=said, model="m", train=[None] * 10, validation=[None], checkpoints=Path({str(tmp_path)!r}), checkpoint=None)
print(*operator.attrgetter(*{names!r})(trainer._arguments(job, torch.float32)))
"""
    done = subprocess.run([*COMMAND[:2], code], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    rate = "0.0001" if config is SelectConfig else "5e-05"
    expected = f"None False False False False {rate} 5 4 3 2 [] linear 0.0 0.0 1.0 0"
    assert done.stdout.split() == expected.split(), done.stderr


@pytest.mark.parametrize(("target", "says"), [("q_prj", "did you mean `q_proj`?"), ("lm_head", KNOWN), ("mlp.q_proj", KNOWN)])
def test_a_layer_that_cannot_be_trained(tmp_path: Path, target: str, says: str) -> None:
    """PEFT finds names by their ends: there is a `self_attn.q_proj`."""
    done = spawned("train", "draft", draft_config(tmp_path), "--set", f"lora.targets=[{target}]")
    what = f"error: lora.targets: bundled:tiny-draft has no linear layer `{target}` before its output layer; {says}"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, what)
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_what_was_begun_is_removed_where_nothing_was_learnt(tmp_path: Path) -> None:
    model = shutil.copytree(ROOT / "pipeline/models/tiny-draft", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(weights[:8], "little")
    (model / "model.safetensors").write_bytes(weights[:begin].ljust(len(weights), b"\xff"))  # all of them not numbers
    done = spawned("train", "draft", draft_config(tmp_path, model=str(model)))
    what = "error: the loss of the untouched model is nan; check its weights, or set precision: float32, and start again"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, what)
    assert not (tmp_path / "out").exists(), "which can be begun anew"
