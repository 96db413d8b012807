"""The training itself, in processes of its own: on a CPU, with the bundled models."""

import json
import math
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.model_card import read_card
from pipeline.engines.models import resolve
from pipeline.training.lora.config import DraftConfig, SelectConfig, TrainConfig
from pipeline.training.lora.log import StepRow, ValidationRow, read_log, validations
from pipeline.training.lora.output import last_checkpoint, read_record
from tests.support.bench import Bench, request
from tests.support.commands import COMMAND, spawned
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.trained import TORCHRUN, Training, chosen, draft_config

pytestmark = pytest.mark.torch


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
    bench = Bench(adapters={"mine": str(trained.folder)})
    found: dict[str | None, list[int]] = {}
    for adapter, row in ((None, rows[0]), ("mine", rows[-1])):
        asked = [request(each.ids, adapter=adapter, option_ids=each.option_ids, max_tokens=1) for each in examples]
        logprobs = [answer.option_logprobs for answer in bench.run(asked)]
        picked = found[adapter] = [chosen(each) for each in logprobs]
        losses = [-math.log(sum(math.exp(of[place]) for place in each.right)) for each, of in zip(examples, logprobs, strict=True)]
        assert row.loss == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        assert row.mass == pytest.approx(sum(sum(map(math.exp, of)) for of in logprobs) / len(logprobs), rel=1e-3)
        _check_classes(row, [(each.none, each.right, place) for each, place in zip(examples, picked, strict=True)])
    assert found[None] != found["mine"], "with the adapter it chooses otherwise"


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
    _, step = last_checkpoint(folder)
    assert 0 < step < 26
    refused = spawned(*trained.words(folder))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "already holds a training; add --resume to go on with it" in refused.stderr
    done = spawned(*trained.words(folder, "--resume"))
    assert (done.returncode, f"going on from step {step}" in done.stderr) == (0, True), done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (trained.folder / "adapter_model.safetensors").read_bytes()
    assert rows_of(folder) == rows_of(trained.folder)
    again = spawned(*trained.words(folder, "--resume"))
    assert (again.returncode, again.stderr) == (0, f"{folder}: is finished already; nothing to do\n")
    assert len(read_record(folder).commands) == 2


def test_two_processes_train_together(tmp_path: Path) -> None:
    config = draft_config(tmp_path, batch_size=2, validation=0.2)
    command = [*TORCHRUN, "train", "draft", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS_S)
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


def test_a_layer_that_is_not_there(tmp_path: Path) -> None:
    done = spawned("train", "draft", draft_config(tmp_path), "--set", "lora.targets=[q_prj]")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "error: lora.targets: bundled:tiny-draft has no linear layer `q_prj`; did you mean `q_proj`?",
    )
    assert not (tmp_path / "out").exists(), "nothing was begun"
