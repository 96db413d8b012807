"""The training itself: on a CPU, with the bundled models."""

import json
import math
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipeline.engines.models import read_json
from tests.support.bench import Bench, request
from tests.support.commands import pipeline
from tests.support.paths import ROOT
from tests.support.training_data import choices, replies, write_config, write_lines

pytestmark = [pytest.mark.long, pytest.mark.torch]
ROWS = choices(120)
"""Choices among whole thoughts, which the bundled target was never taught."""


def config(folder: Path, task: str, **values: Any) -> Path:
    """The file of a training of a bundled model, with its data: of the target 26 steps, of the draft fewer."""
    chosen: dict[str, Any] = {"model": "bundled:tiny-target", "learning_rate": 3e-3, "epochs": 2, "batch_size": 8}
    if task == "draft":
        chosen = {"model": "bundled:tiny-draft", "epochs": 1}
    data = write_lines(folder / "data.jsonl", ROWS if task == "select" else replies(16))
    return write_config(folder / f"{task}.yaml", data=[str(data)], output=str(folder / "out"), **chosen | values)


def train(*words: str | Path) -> CompletedProcess[str]:
    """Carry a command out in this process, which loads TRL once; TRL warns of much that is not ours."""
    import torch

    torch.set_num_threads(1)  # as every training has it, results are the same to the bit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline("train", *words)


def log_of(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """What the trainer logged of its steps, and of its validations."""
    rows = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [row for row in rows if "loss" in row], [row for row in rows if "eval_loss" in row]


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed training, beside its config."""
    done = train("select", config(folder := tmp_path_factory.mktemp("trained"), "select"))
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_an_adapter_is_learnt_and_what_was_measured_is_what_the_engine_chooses_with_it(trained: Path) -> None:
    """Left padding, the last position alone, and loss: all against one request for each example."""
    adapter = read_json(trained / "adapter_config.json")
    assert (adapter["r"], adapter["base_model_name_or_path"]) == (8, "bundled:tiny-target")
    assert {*adapter["target_modules"]} == {"q_proj", "v_proj"}
    rows, (steps, validations) = [row for row in ROWS if row["split"] == "validation"], log_of(trained)
    assert [[row["step"] for row in logged] for logged in (steps, validations)] == [[10, 20], [0, 13, 26]]
    bench, chosen = Bench(adapters={"mine": str(trained)}), []
    for name, figures in ((None, validations[0]), ("mine", validations[-1])):
        asked = [request(row["input_ids"], adapter=name, option_ids=row["option_ids"], max_tokens=1) for row in rows]
        found: list[Sequence[float]] = [answer.option_logprobs for answer in bench.run(asked)]
        losses = [min(-of[place] for place in row["right"]) for row, of in zip(rows, found, strict=True)]
        assert figures["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        assert figures["eval_mass"] == pytest.approx(sum(sum(map(math.exp, of)) for of in found) / len(found), rel=1e-3)
        chosen.append([max(range(len(of)), key=of.__getitem__) for of in found])
        hits = [choice in row["right"] for row, choice in zip(rows, chosen[-1], strict=True)]
        assert figures["eval_accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert chosen[0] == [0] * len(rows), "untouched, it rejects every thought"
    assert validations[-1]["eval_loss"] < validations[0]["eval_loss"] / 2


def test_a_training_that_ended_early_goes_on_to_the_same_adapter(trained: Path, tmp_path: Path) -> None:
    """What comes after its checkpoint is not there; nor is the end of a later one."""
    folder = shutil.copytree(trained, tmp_path / "ended")
    for name in ("adapter_config.json", "adapter_model.safetensors", "trainer_state.json", "checkpoint-26/trainer_state.json"):
        (folder / name).unlink()
    done = train("select", trained.parent / "select.yaml", "--output", folder, "--resume")
    assert (done.returncode, "continuing from step 13" in done.stderr) == (0, True), done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (trained / "adapter_model.safetensors").read_bytes()
    assert [row["eval_loss"] for row in log_of(folder)[1]] == [row["eval_loss"] for row in log_of(trained)[1]]


@pytest.mark.parametrize(("task", "epochs"), [("draft", 1), ("select", 0.2)])
def test_two_small_batches_make_the_step_of_a_large_one_and_something_is_learnt(tmp_path: Path, task: str, epochs: float) -> None:
    file = config(tmp_path, task, lora={"dropout": 0.0}, learning_rate=1e-3, epochs=epochs)
    for name, size, more in (("one", 4, 1), ("two", 2, 2)):
        settings = ("--set", f"batch_size={size}", "--set", f"gradient_accumulation={more}")
        done = train(task, file, "--output", tmp_path / name, *settings)
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two"))
    for name, matrix in one.items():
        assert matrix == pytest.approx(two[name], rel=1e-3, abs=1e-6), name
    first, *_, last = log_of(tmp_path / "one")[1]
    assert last["eval_loss"] < first["eval_loss"]


def test_what_cannot_be_trained_is_one_sentence(tmp_path: Path) -> None:
    done = train("draft", config(tmp_path, "draft"), "--set", "lora.targets=[q_proj, v_prj]")
    what = "lora.targets: bundled:tiny-draft has no linear layer `v_prj` before its output layer; did you mean `v_proj`?"
    assert (done.returncode, done.stderr.splitlines()[-1], (tmp_path / "out").exists()) == (2, f"error: {what}", False)
    model = shutil.copytree(ROOT / "pipeline/models/tiny-draft", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(weights[:8], "little")
    (model / "model.safetensors").write_bytes(weights[:begin].ljust(len(weights), b"\xff"))  # all of them not numbers
    done = train("draft", config(tmp_path, "draft", model=str(model)))
    what = "the loss is nan at step 0; check the weights of the model"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"error: {what}")


def test_only_the_likeliest_right_option_is_made_likelier() -> None:
    import torch

    from pipeline.training.trainer import PADDING, least, option_logprobs

    logits = torch.tensor([[0.3, 2.0, 1.0, -1.0, 0.5]], requires_grad=True)
    logprobs = option_logprobs(logits, torch.tensor([[3, 1, 2, PADDING]]))
    loss = least(logprobs, torch.tensor([[True, False, True, False]]))
    loss.sum().backward()
    assert (logprobs[0, 3], loss[0]) == (-math.inf, -logits.log_softmax(1)[0, 2])
    assert logits.grad is not None
    assert (logits.grad[0] < 0).tolist() == [False, False, True, False, False]
