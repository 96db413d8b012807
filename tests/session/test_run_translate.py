"""Whole runs of two engines whose tokenizers differ: steps are handed over as text, and nothing of an answer changes."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.engines.models import resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.runs import SolveTestSet

ROOT = Path(__file__).parent.parent.parent
ENGINES = """
draft: {{backend: torch, model: "{draft}"}}
target: {{backend: torch, model: "bundled:tiny-target"}}
"""


@pytest.fixture(scope="module")
def renumbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled draft with the same tokens under other numbers: another tokenizer, the same texts."""
    folder = tmp_path_factory.mktemp("models") / "renumbered"
    shutil.copytree(resolve("draft", "bundled:tiny-draft"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ordinary = tokenizer["model"]["vocab"]
    config = json.loads((folder / "config.json").read_text())
    new = np.arange(config["vocab_size"])
    new[: len(ordinary)] = np.random.default_rng(0).permutation(len(ordinary))
    tokenizer["model"]["vocab"] = {text: int(new[number]) for text, number in ordinary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _renumber_weights(folder / "model.safetensors", new)
    return folder


def _renumber_weights(path: Path, new: Any) -> None:
    import torch
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    weights = load(path)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            moved = torch.empty_like(weights[name])
            moved[torch.from_numpy(new)] = weights[name]
            weights[name] = moved
    save(weights, path, metadata={"format": "pt"})


GREEDY = ("temperature=0", "candidates=1")


def tables(run: Path) -> dict[str, list[dict[str, Any]]]:
    return {table: pq.read_table(run / table).to_pylist() for table in ("chains", "steps", "calls")}


def solve(folder: Path, draft: str) -> dict[str, list[dict[str, Any]]]:
    """Tables of a run without randomness."""
    folder.mkdir()
    engines = folder / "engines.yaml"
    engines.write_text(ENGINES.format(draft=draft))
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        input=ROOT / "datasets/arith/test.parquet",
        limit=60,
        engines=engines,
        settings=GREEDY,
        output=folder / "out",
    )
    assert run(options).exit_code == 0
    return tables(folder / "out")


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, renumbered: Path, solve_test_set: SolveTestSet
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("runs")
    solve_test_set(folder / "ids", limit=60, settings=GREEDY)
    return {"shared ids": tables(folder / "ids"), "text": solve(folder / "text", str(renumbered))}


def texts(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], str]:
    return {(row["chain_id"], row["step_index"]): row["step_text"] for row in rows}


@pytest.mark.torch
def test_the_tokenizers_do_differ(renumbered: Path) -> None:
    ours, theirs = HFTokenizer(resolve("draft", "bundled:tiny-draft")), HFTokenizer(str(renumbered))
    assert ours.vocabulary != theirs.vocabulary
    assert ours.encode("Tom has 3 pens.") != theirs.encode("Tom has 3 pens.")


@pytest.mark.torch
def test_chains_are_the_same_as_with_shared_ids(runs: dict[str, Any]) -> None:
    ids, text = (texts(runs[name]["steps"]) for name in ("shared ids", "text"))
    assert len(ids) > 200
    same = sum(text.get(key) == value for key, value in ids.items())
    assert same >= 0.98 * len(ids), f"{same} of {len(ids)} steps"
    answers = [{row["chain_id"]: row["answer"] for row in runs[name]["chains"]} for name in ("shared ids", "text")]
    assert sum(answers[0][key] == answers[1][key] for key in answers[0]) >= 58


@pytest.mark.torch
def test_every_step_is_kept_in_the_vocabulary_of_its_writer(runs: dict[str, Any], renumbered: Path) -> None:
    tokenizers = {"draft": HFTokenizer(str(renumbered)), "target": HFTokenizer(resolve("target", "bundled:tiny-target"))}
    steps = runs["text"]["steps"]
    assert {row["source_engine"] for row in steps} == {"draft", "target"}
    for row in steps:
        assert tokenizers[row["source_engine"]].decode(row["step_token_ids"]) == row["step_text"]
