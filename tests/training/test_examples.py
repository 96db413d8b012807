"""Exported files as TRL's own trainers take them, in a process of its own: importing TRL takes seconds, and warns."""

import json
import subprocess
from typing import Any

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.training.examples import IGNORED
from pipeline.training.formats import Wanted
from pipeline.training.problems import HeldOutProblems
from pipeline.training.write import write_training_data
from tests.support.chat_models import chat_model, folder_of
from tests.support.commands import COMMAND
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.torch
MODEL = "bundled:tiny-draft"
PREPARE = """
import json, sys
from datasets import Dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

class AsItIs(DPOTrainer):
    def _prepare_dataset(self, dataset, *arguments):
        return dataset

folder, model, cutting = sys.argv[1:]
common = {"output_dir": folder, "use_cpu": True, "bf16": False, "report_to": "none", "max_length": None, "disable_tqdm": True}
found = {}
for name, trainer, config, tokenizer in (
    ("tokens", SFTTrainer, SFTConfig, model),
    ("response", SFTTrainer, SFTConfig, model),
    ("thought", SFTTrainer, SFTConfig, cutting),
    ("steps", DPOTrainer, DPOConfig, model),
    ("step_ids", AsItIs, DPOConfig, model),
):
    rows = Dataset.from_parquet(f"{folder}/{name}.parquet", cache_dir=f"{folder}/cache")
    made = trainer(model, args=config(**common), train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(tokenizer))
    batch = next(iter(made.get_train_dataloader()))
    found[name] = {"rows": list(made.train_dataset), "batch": {key: value.tolist() for key, value in batch.items()}}
json.dump(found, open(f"{folder}/prepared.json", "w"))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TRL makes of each file: all its rows, and a first batch."""
    folder = tmp_path_factory.mktemp("trl")
    problems = write_problems(folder, 4)
    thoughts, steps = (solve(folder, graph, graph=graph, input=problems).folder for graph in ("target", "speccot"))
    for name, run, wanted in (
        ("tokens", thoughts, Wanted(format="sft", tokens=True, model=MODEL)),
        ("response", thoughts, Wanted(format="sft", completion="response", model=MODEL)),
        ("thought", thoughts, Wanted(format="sft", model=MODEL)),
        ("steps", steps, Wanted(format="preference")),
        ("step_ids", steps, Wanted(format="preference", tokens=True)),
    ):
        write_training_data(folder / f"{name}.parquet", [run], wanted, HeldOutProblems({}))
    words = [str(folder), str(ROOT / "pipeline/models/tiny-draft"), str(folder_of("r1-distill-qwen"))]
    done = subprocess.run([*COMMAND[:2], PREPARE, *words], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    return dict(json.loads((folder / "prepared.json").read_text()))


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
