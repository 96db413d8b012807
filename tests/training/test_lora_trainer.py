"""The training itself, merging what it made, and what TRL's own trainers make of exported files: on a CPU, with the bundled models."""

import math
import os
import random
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipeline.engines.models import adapter_folder, read_card, read_json, resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.training.examples import IGNORED
from pipeline.training.formats import Wanted
from pipeline.training.lora.merge import merge
from pipeline.training.problems import HeldOutProblems
from pipeline.training.write import write_training_data
from tests.support.adapters import TARGET
from tests.support.bench import Bench, request
from tests.support.chat_models import chat_model, folder_of
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.runs import solve, write_problems
from tests.training.trained import TORCHRUN, Training, chosen, draft_config, log_of, train, training

pytestmark = [pytest.mark.long, pytest.mark.torch]
DRAFT = "bundled:tiny-draft"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
CASES = [((0,), 2), ((0, 2), 2), ((2,), 2), ((1,), None), ((0, 1, 2), None)]
"""Right options among three, and the one that rejects all."""


def test_an_adapter_is_learnt_that_engines_take(trained: Training) -> None:
    there = {path.name for path in trained.folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "training.yaml", "trainer_state.json"} <= there
    assert {name for name in there if name.startswith("checkpoint")} == {"checkpoint-24", "checkpoint-26"}
    config = read_json(trained.folder / "adapter_config.json")
    assert (config["r"], config["base_model_name_or_path"], {*config["target_modules"]}) == (8, "bundled:tiny-target", {"q_proj", "v_proj"})


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


def test_a_training_that_ended_early_goes_on_to_the_same_adapter(trained: Training, tmp_path: Path) -> None:
    """Ended behind a checkpoint, and behind the last one: what comes later is not there."""
    folder = tmp_path / "ended"
    shutil.copytree(trained.folder, folder)

    def end(*later: str) -> None:
        for name in ("adapter_config.json", "adapter_model.safetensors", "trainer_state.json"):
            (folder / name).unlink()
        for name in later:
            shutil.rmtree(folder / name)

    end("checkpoint-26")
    refused = train(*trained.words(folder))
    assert (refused.returncode, "already holds a training; add --resume to continue it" in refused.stderr) == (2, True)
    refused = train(*trained.words(folder, "--resume", "--set", "seed=3"))
    assert (refused.returncode, "is no longer the same training: seed was 0 and is 3; undo that" in refused.stderr) == (2, True)
    for step, later in ((24, ()), (26, ("checkpoint-24",))):
        done = train(*trained.words(folder, "--resume"))
        assert (done.returncode, f"continuing from step {step}" in done.stderr) == (0, True), done.stderr
        assert (folder / "adapter_model.safetensors").read_bytes() == (trained.folder / "adapter_model.safetensors").read_bytes()
        assert [row["eval_loss"] for row in log_of(folder)[1]] == [row["eval_loss"] for row in log_of(trained.folder)[1]]
        again = train(*trained.words(folder, "--resume"))
        assert (again.returncode, "is already finished; nothing to do" in again.stderr) == (0, True)
        end(*later)


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
    done = train("train", "draft", draft_config(tmp_path, evaluate_every=2))
    assert done.returncode == 0, done.stderr
    _, [first, *_, last] = log_of(tmp_path / "out")
    assert first["eval_perplexity"] == pytest.approx(math.exp(first["eval_loss"]))
    assert last["eval_loss"] < first["eval_loss"]


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    model = shutil.copytree(ROOT / "pipeline/models/tiny-draft", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(weights[:8], "little")
    (model / "model.safetensors").write_bytes(weights[:begin].ljust(len(weights), b"\xff"))  # all of them not numbers
    done = train("train", "draft", draft_config(tmp_path, model=str(model)))
    what = "error: the loss of the untouched model is nan; check its weights, or set precision: float32, and start again"
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


def last_logits(folder: Path | str, adapter: Path | None, prompts: list[list[int]]) -> Any:
    """The logits of the last positions by transformers, with an adapter beside the model or without."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.inference_mode():
        return torch.stack([model.eval()(torch.tensor([prompt])).logits[0, -1] for prompt in prompts])


def test_the_merged_model_is_the_model_with_its_adapter(trained: Training, tmp_path: Path) -> None:
    import torch

    rows = trained.validation()[:6]
    prompts = [row["input_ids"] for row in rows]
    beside, base = last_logits(TARGET, trained.folder, prompts), last_logits(TARGET, None, prompts)
    merge(str(trained.folder), tmp_path / "exact", dtype="float32")
    assert torch.allclose(last_logits(tmp_path / "exact", None, prompts), beside, atol=2e-4)
    assert not torch.allclose(base, beside, atol=0.1)
    merge(str(trained.folder), tmp_path / "saved")
    card = read_card(str(tmp_path / "saved"))
    assert (card.dtype, card.layers) == ("bfloat16", read_card(str(TARGET)).layers)
    asked = [{"prompt": row["input_ids"], "option_ids": row["option_ids"], "max_tokens": 1} for row in rows]
    answers = Bench(model=str(tmp_path / "saved")).run([request(**each) for each in asked])
    with_adapter = Bench(adapters={"mine": str(trained.folder)}).run([request(**each, adapter="mine") for each in asked])
    assert [chosen(one.option_logprobs) for one in answers] == [chosen(two.option_logprobs) for two in with_adapter]
    merge("bundled:tiny-selection", tmp_path / "bundled", dtype="float32")
    beside = last_logits(TARGET, adapter_folder("bundled:tiny-selection"), [[5, 6, 7]])
    assert torch.allclose(last_logits(tmp_path / "bundled", None, [[5, 6, 7]]), beside, atol=2e-4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TRL makes of each file: all its rows, and a first batch."""
    folder = tmp_path_factory.mktemp("trl")
    problems = write_problems(folder, 4)
    thoughts, steps = (solve(folder, graph, graph=graph, input=problems).folder for graph in ("target", "speccot"))
    for name, run, wanted in (
        ("tokens", thoughts, Wanted(format="sft", tokens=True, model=DRAFT)),
        ("response", thoughts, Wanted(format="sft", completion="response", model=DRAFT)),
        ("thought", thoughts, Wanted(format="sft", model=DRAFT)),
        ("steps", steps, Wanted(format="preference")),
        ("step_ids", steps, Wanted(format="preference", tokens=True)),
    ):
        write_training_data(folder / f"{name}.parquet", [run], wanted, HeldOutProblems({}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: trl_batch(folder / f"{name}.parquet", name) for name in ("tokens", "response", "thought", "steps", "step_ids")}


def trl_batch(path: Path, name: str) -> dict[str, Any]:
    """All rows of a file as TRL's trainer has them, and its first batch."""
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from datasets import Dataset

    class AsItIs(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *arguments: Any) -> Any:
            return dataset

    trainer, config = {"steps": (DPOTrainer, DPOConfig), "step_ids": (AsItIs, DPOConfig)}.get(name, (SFTTrainer, SFTConfig))
    common: Any = {"use_cpu": True, "bf16": False, "report_to": "none", "max_length": None, "disable_tqdm": True}
    model = resolve("draft", DRAFT)
    made = trainer(
        model,
        args=config(output_dir=str(path.parent), **common),
        train_dataset=Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache")),
        processing_class=AutoTokenizer.from_pretrained(folder_of("r1-distill-qwen") if name == "thought" else model),
    )
    batch = next(iter(made.get_train_dataloader()))
    return {"rows": list(made.train_dataset), "batch": {key: value.tolist() for key, value in batch.items()}}


def learnt(row: dict[str, Any], tokenizer: HFTokenizer) -> str:
    """The tokens of a row that have a label, as text."""
    assert len(row["labels"]) == len(row["input_ids"])
    return tokenizer.decode([label for label in row["labels"] if label != IGNORED])


def test_token_ids_are_learnt_as_they_are(prepared: dict[str, Any]) -> None:
    for row in prepared["tokens"]["rows"]:
        said = learnt(row, chat_model("tiny-draft"))
        assert said.endswith("</think>")
        assert "Problem number" not in said
        begin = row["labels"].count(IGNORED)
        assert begin > 0
        assert row["labels"][begin:] == row["input_ids"][begin:]
    batch = prepared["tokens"]["batch"]
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        assert labels[0] == IGNORED
        assert all(label in (IGNORED, id_) for id_, label in zip(ids, labels, strict=True))


def test_whole_responses_are_learnt_where_the_template_keeps_thoughts(prepared: dict[str, Any]) -> None:
    for row in prepared["response"]["rows"]:
        [said] = row["completion"]
        assert learnt(row, chat_model("tiny-draft")) == said["content"].removeprefix("<think>\n") + "<|end|>"


def test_of_thoughts_that_the_template_cuts_nothing_is_learnt(prepared: dict[str, Any]) -> None:
    """Which is why the guide sends thoughts to TRL as token ids."""
    tokenizer = chat_model("r1-distill-qwen")
    assert all(row["completion"][0]["content"].startswith("<think>\n") for row in prepared["thought"]["rows"])
    assert {learnt(row, tokenizer) for row in prepared["thought"]["rows"]} == {tokenizer.decode([*tokenizer.eos_ids])}


def test_steps_are_learnt_as_text_without_an_end(prepared: dict[str, Any]) -> None:
    tokenizer, rows = chat_model("tiny-draft"), prepared["steps"]["rows"]
    for row in rows:
        for name in ("chosen", "rejected"):
            [asked], [said] = row["prompt"], row[name]
            assert tokenizer.decode([*row["prompt_ids"], *row[f"{name}_ids"]]) == asked["content"] + said["content"]
            assert not tokenizer.eos_ids & {*row[f"{name}_ids"]}


def test_steps_are_learnt_as_token_ids_where_the_trainer_leaves_them(prepared: dict[str, Any]) -> None:
    rows, batch = prepared["step_ids"]["rows"], prepared["step_ids"]["batch"]
    assert len(batch["input_ids"]) == 2 * min(len(rows), 8), "chosen and rejected"
    masked = [
        [id_ for id_, is_learnt in zip(ids, mask, strict=True) if is_learnt]
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    assert all(ids in [row["chosen_ids"] for row in rows] for ids in masked[: len(masked) // 2])
    assert all(ids in [row["rejected_ids"] for row in rows] for ids in masked[len(masked) // 2 :])
