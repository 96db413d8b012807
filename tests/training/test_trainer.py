"""The training itself: on a CPU, with the bundled models."""

import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipeline.engines.models import read_json
from tests.support.bench import Bench, request
from tests.support.paths import ROOT
from tests.training.trained import Training, chosen, draft_config, log_of, train, training

pytestmark = [pytest.mark.long, pytest.mark.torch]
DRAFT = "bundled:tiny-draft"
CASES = [(0,), (0, 2), (2,), (1,), (0, 1, 2)]
"""Right options among three."""


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """One undisturbed training, which several tests look at."""
    made = training(tmp_path_factory.mktemp("trained"))
    done = train(*made.words(made.folder))
    assert done.returncode == 0, done.stderr
    return made


def test_an_adapter_is_learnt_that_engines_take(trained: Training) -> None:
    there = {path.name for path in trained.folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "trainer_state.json", "checkpoint-13", "checkpoint-26"} <= there
    config = read_json(trained.folder / "adapter_config.json")
    assert (config["r"], config["base_model_name_or_path"], {*config["target_modules"]}) == (8, "bundled:tiny-target", {"q_proj", "v_proj"})


def test_what_was_measured_is_what_the_engine_chooses(trained: Training) -> None:
    """Left padding, the last position alone, and loss: all against one request for each example."""
    rows, (steps, validations) = trained.validation(), log_of(trained.folder)
    assert [row["step"] for row in validations] == [0, 13, 26]
    assert [row["step"] for row in steps] == [10, 20]
    found = asked(trained.folder, rows)
    for logprobs, figures in zip(found, (validations[0], validations[-1]), strict=True):
        losses = [min(-of[place] for place in row["right"]) for row, of in zip(rows, logprobs, strict=True)]
        assert figures["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        assert figures["eval_mass"] == pytest.approx(sum(sum(map(math.exp, of)) for of in logprobs) / len(logprobs), rel=1e-3)
        hits = [chosen(of) in row["right"] for row, of in zip(rows, logprobs, strict=True)]
        assert figures["eval_accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert list(map(chosen, found[0])) == [0] * len(rows), "untouched, it rejects every thought"
    assert validations[-1]["eval_loss"] < validations[0]["eval_loss"] / 2


def asked(folder: Path, rows: Sequence[dict[str, Any]]) -> list[list[Sequence[float]]]:
    """What the engine makes of the options of each row, without the adapter in `folder` and with it."""
    bench = Bench(adapters={"mine": str(folder)})
    requests = (
        [request(row["input_ids"], adapter=name, option_ids=row["option_ids"], max_tokens=1) for row in rows] for name in (None, "mine")
    )
    return [[answer.option_logprobs for answer in bench.run(each)] for each in requests]


def test_a_training_that_ended_early_goes_on_to_the_same_adapter(trained: Training, tmp_path: Path) -> None:
    """What comes after its checkpoint is not there; nor is the end of a later one."""
    folder = tmp_path / "ended"
    shutil.copytree(trained.folder, folder)
    for name in ("adapter_config.json", "adapter_model.safetensors", "trainer_state.json", "checkpoint-26/trainer_state.json"):
        (folder / name).unlink()
    refused = train(*trained.words(folder))
    assert (refused.returncode, "already exists; add --resume to continue the training in it" in refused.stderr) == (2, True)
    done = train(*trained.words(folder, "--resume"))
    assert (done.returncode, "continuing from step 13" in done.stderr) == (0, True), done.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() == (trained.folder / "adapter_model.safetensors").read_bytes()
    assert [row["eval_loss"] for row in log_of(folder)[1]] == [row["eval_loss"] for row in log_of(trained.folder)[1]]


@pytest.mark.parametrize("task", ["draft", "select"])
def test_two_small_batches_make_the_step_of_a_large_one(tmp_path: Path, task: str) -> None:
    common = {"lora": {"dropout": 0.0}, "learning_rate": 1e-3, "epochs": 0.2 if task == "select" else 1}
    config = draft_config(tmp_path, 16, **common) if task == "draft" else training(tmp_path, **common).config
    for name, size, more in (("one", 4, 1), ("two", 2, 2)):
        settings = ("--set", f"batch_size={size}", "--set", f"gradient_accumulation={more}")
        done = train("train", task, config, "--output", tmp_path / name, *settings)
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two"))
    assert any(abs(matrix).max() > 1e-4 for name, matrix in one.items() if "lora_B" in name), "something was learnt"
    for name, matrix in one.items():
        assert matrix == pytest.approx(two[name], rel=1e-3, abs=1e-6), name


def test_a_draft_learns_thoughts(tmp_path: Path) -> None:
    done = train("train", "draft", draft_config(tmp_path))
    assert done.returncode == 0, done.stderr
    _, [first, last] = log_of(tmp_path / "out")
    assert last["eval_loss"] < first["eval_loss"]


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    model = shutil.copytree(ROOT / "pipeline/models/tiny-draft", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(weights[:8], "little")
    (model / "model.safetensors").write_bytes(weights[:begin].ljust(len(weights), b"\xff"))  # all of them not numbers
    done = train("train", "draft", draft_config(tmp_path, model=str(model)))
    what = "error: the loss is nan at step 0; check the weights of the model"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, what)


def test_what_cannot_be_trained_leaves_nothing(tmp_path: Path) -> None:
    done = train("train", "draft", draft_config(tmp_path), "--set", "lora.targets=[q_proj, v_prj]")
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

    from pipeline.training.trainer import PADDING, least, option_logprobs, outcomes

    rows, ids = [logits(seed) for seed in range(len(CASES))], [[7, 3, 5, PADDING]] * len(CASES)
    logprobs = option_logprobs(torch.tensor(rows), torch.tensor(ids))
    right = torch.tensor([[index in of for index in range(4)] for of in CASES])
    assert torch.isneginf(logprobs[:, 3]).all()
    found = outcomes(least(logprobs, right), logprobs, right)
    for place, of in enumerate(CASES):
        options = [probability(rows[place], id_) for id_ in (7, 3, 5)]
        said = (min(-math.log(options[index]) for index in of), sum(options), float(options.index(max(options)) in of))
        assert found[place].tolist() == pytest.approx(said, abs=1e-5)


def test_only_the_likeliest_right_option_has_a_gradient() -> None:
    import torch

    from pipeline.training.trainer import least, option_logprobs

    values = torch.tensor([[1.0, 2.0, 0.5, 0.0]], requires_grad=True)
    right = torch.tensor([[True, True, False]])
    least(option_logprobs(values, torch.tensor([[0, 1, 2]])), right).sum().backward()
    assert values.grad is not None
    assert {index for index, slope in enumerate(values.grad[0].tolist()) if slope < 0} == {1}
