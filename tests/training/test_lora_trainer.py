"""The training itself, in processes of its own: on a CPU, with the bundled models."""

import math
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.model_card import read_card
from pipeline.engines.models import resolve
from tests.support.bench import Bench, request
from tests.support.commands import COMMAND, spawned
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.trained import TORCHRUN, Training, chosen, draft_config, log_of, training

pytestmark = pytest.mark.torch
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
CASES = [((0,), 2), ((0, 2), 2), ((2,), 2), ((1,), None), ((0, 1, 2), None)]
"""Right options among three, and the one that rejects all."""


def test_an_adapter_is_learnt_that_engines_take(trained: Training) -> None:
    there = {path.name for path in trained.folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "training.yaml", "trainer_state.json"} <= there
    assert {name for name in there if name.startswith("checkpoint")} == {"checkpoint-24", "checkpoint-26"}
    adapter, card = read_adapter(str(trained.folder)), read_card(resolve("target", "bundled:tiny-target"))
    assert [*adapter_findings("target", {"mine": adapter}, card)] == []
    assert (adapter.flaw, adapter.rank, adapter.base_model, adapter.unusual) == (None, 8, "bundled:tiny-target", ())
    assert sorted({name.split(".")[-3] for name in adapter.tensors}) == ["q_proj", "v_proj"]


def test_what_was_measured_is_what_the_engine_chooses(trained: Training) -> None:
    """Left padding, the last position alone, classes and loss: all against one request for each example."""
    rows, (steps, validations) = trained.validation(), log_of(trained.folder)
    assert [row["step"] for row in validations] == [0, 6, 12, 18, 24, 26]
    assert [row["step"] for row in steps] == list(range(2, 27, 2))
    found = asked(trained.folder, rows)
    for logprobs, figures in zip(found, (validations[0], validations[-1]), strict=True):
        losses = [-math.log(sum(math.exp(of[place]) for place in row["right"])) for row, of in zip(rows, logprobs, strict=True)]
        assert figures["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        assert figures["eval_mass"] == pytest.approx(sum(sum(map(math.exp, of)) for of in logprobs) / len(logprobs), rel=1e-3)
        for number in (1, 2):
            hits = [chosen(of) in row["right"] for row, of in zip(rows, logprobs, strict=True) if (row["right"] == [0]) == (number == 2)]
            assert figures[f"eval_class_{number}_examples"] == len(hits)
            assert figures[f"eval_class_{number}_accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert list(map(chosen, found[0])) == [0] * len(rows), "untouched, it rejects every thought"
    assert validations[-1]["eval_loss"] < validations[0]["eval_loss"] / 2


def asked(folder: Path, rows: Sequence[dict[str, Any]]) -> list[list[Sequence[float]]]:
    """What the engine makes of the options of each row, without the adapter in `folder` and with it."""
    bench = Bench(adapters={"mine": str(folder)})
    requests = (
        [request(row["input_ids"], adapter=name, option_ids=row["option_ids"], max_tokens=1) for row in rows] for name in (None, "mine")
    )
    return [[answer.option_logprobs for answer in bench.run(each)] for each in requests]


def test_a_killed_training_goes_on_to_the_same_adapter(trained: Training, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = [*COMMAND, *trained.words(folder)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("step 12/26 · validation loss") for line in process.stderr)
        process.send_signal(signal.SIGKILL)
    assert not (folder / "adapter_config.json").exists()
    refused = spawned(*trained.words(folder))
    assert (refused.returncode, "already holds a training; add --resume to continue it" in refused.stderr) == (2, True)
    refused = spawned(*trained.words(folder, "--resume", "--set", "seed=3"))
    assert (refused.returncode, "is no longer the same training: seed was 0 and is 3; undo that" in refused.stderr) == (2, True)
    done = spawned(*trained.words(folder, "--resume"))
    assert (done.returncode, "continuing from step " in done.stderr) == (0, True), done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (trained.folder / "adapter_model.safetensors").read_bytes()
    assert [row["eval_loss"] for row in log_of(folder)[1]] == [row["eval_loss"] for row in log_of(trained.folder)[1]]
    again = spawned(*trained.words(folder, "--resume"))
    assert (again.returncode, "is already finished; nothing to do" in again.stderr) == (0, True)
    for name in ("adapter_config.json", "adapter_model.safetensors", "trainer_state.json"):  # killed after the last checkpoint
        (folder / name).unlink()
    done = spawned(*trained.words(folder, "--resume"))
    assert done.returncode == 0, done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (trained.folder / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("task", ["draft", "select"])
def test_two_small_batches_make_the_step_of_a_large_one(tmp_path: Path, task: str) -> None:
    common = {"lora": {"dropout": 0.0}, "learning_rate": 1e-3, "epochs": 0.2 if task == "select" else 1}
    config = draft_config(tmp_path, 16, **common) if task == "draft" else training(tmp_path, **common).config
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
    assert any(abs(matrix).max() > 1e-4 for name, matrix in one.items() if "lora_B" in name), "something was learnt"
    large, small = ([(row["step"], row["loss"], row["grad_norm"]) for row in log_of(tmp_path / name)[0]] for name in ("one", "two"))
    assert large == [pytest.approx(row, rel=1e-3) for row in small], "AdamW makes nothing of the scale of gradients"
    for name, matrix in one.items():
        assert matrix == pytest.approx(two[name], rel=1e-3, abs=1e-6), name


def test_two_processes_learn_together(tmp_path: Path) -> None:
    """With the default loss, `least`, as the engine computes it."""
    made = training(tmp_path, epochs=1)
    done = together(made.words(made.folder))
    assert (done.returncode, done.stderr.count("step 0/")) == (0, 1), "one process tells"
    _, [first, *_, last] = log_of(made.folder)
    rows = made.validation()
    for logprobs, figures in zip(asked(made.folder, rows), (first, last), strict=True):
        losses = [-max(of[place] for place in row["right"]) for row, of in zip(rows, logprobs, strict=True)]
        assert figures["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)


def together(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command that two processes carry out."""
    return subprocess.run([*TORCHRUN, *words], cwd=ROOT, env=ONE_THREAD, capture_output=True, text=True, timeout=HANGS_S)


def test_a_draft_is_measured_by_the_token(tmp_path: Path) -> None:
    done = spawned("train", "draft", draft_config(tmp_path, evaluate_every=2))
    assert done.returncode == 0, done.stderr
    _, [first, *_, last] = log_of(tmp_path / "out")
    assert first["eval_perplexity"] == pytest.approx(math.exp(first["eval_loss"]))
    assert last["eval_loss"] < first["eval_loss"]


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    model = shutil.copytree(ROOT / "pipeline/models/tiny-draft", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(weights[:8], "little")
    (model / "model.safetensors").write_bytes(weights[:begin].ljust(len(weights), b"\xff"))  # all of them not numbers
    done = spawned("train", "draft", draft_config(tmp_path, model=str(model)))
    what = "error: the loss of the untouched model is nan; check its weights, or set precision: float32, and start again"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, what)


def test_what_cannot_be_trained_leaves_nothing(tmp_path: Path) -> None:
    done = spawned("train", "draft", draft_config(tmp_path), "--set", "lora.targets=[q_proj, v_prj]")
    what = "error: lora.targets: bundled:tiny-draft has no linear layer `v_prj` before its output layer; did you mean `v_proj`?"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, what)
    assert not (tmp_path / "out").exists()


def logits(seed: int, size: int = 9) -> list[float]:
    draw = random.Random(seed)
    return [draw.uniform(-3, 3) for _ in range(size)]


def probability(values: list[float], index: int) -> float:
    return math.exp(values[index]) / sum(map(math.exp, values))


def test_losses_and_outcomes_against_plain_arithmetic() -> None:
    import torch

    from pipeline.training.lora.trainer import CLASS_1, CLASS_2, PADDING, SCORED, least, option_logprobs, outcomes, summed

    rows, ids = [logits(seed) for seed in range(len(CASES))], [[7, 3, 5, PADDING]] * len(CASES)
    logprobs = option_logprobs(torch.tensor(rows), torch.tensor(ids))
    right = torch.tensor([[index in of for index in range(4)] for of, _ in CASES])
    assert torch.isneginf(logprobs[:, 3]).all()
    found = outcomes(least(logprobs, right), logprobs, right, torch.tensor([-1 if none is None else none for _, none in CASES]))
    for place, (of, none) in enumerate(CASES):
        options = [probability(rows[place], id_) for id_ in (7, 3, 5)]
        every = [options[index] for index in of]
        expected = set(of) - {none} or set(of)
        assert summed(logprobs, right)[place].item() == pytest.approx(-math.log(sum(every)), abs=1e-5)
        number = SCORED if none is None else CLASS_1 if set(of) - {none} else CLASS_2
        is_right = float(options.index(max(options)) in expected)
        said = (min(-math.log(p) for p in every), sum(options), is_right, number, len(expected) / 3)
        assert found[place].tolist() == pytest.approx(said, abs=1e-5)


def test_only_the_likeliest_right_option_has_a_gradient() -> None:
    import torch

    from pipeline.training.lora.trainer import least, option_logprobs, summed

    values = torch.tensor([[1.0, 2.0, 0.5, 0.0]], requires_grad=True)
    right = torch.tensor([[True, True, False]])
    for loss, raised in ((least, {1}), (summed, {0, 1})):
        values.grad = None
        loss(option_logprobs(values, torch.tensor([[0, 1, 2]])), right).sum().backward()
        assert values.grad is not None
        assert {index for index, slope in enumerate(values.grad[0].tolist()) if slope < 0} == raised
