"""The bundled models solve the problems that they know; others they are asked only if somebody says so."""

import json
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.errors import UsageError
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan, prepare
from tests.support.paths import ROOT, SIM

KNOWN = [str(item.problem) for item in read_problems(ROOT / "datasets/arith/validation.parquet") if isinstance(item, Problem)][7:9]
REFUSED = "row 2: the bundled toy models solve only the problems of `arith`; pass "


def check(folder: Path, problems: list[str], **options: Any) -> None:
    """Prepare a run over these problems; no engine is opened."""
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps({"question": problem}) + "\n" for problem in problems))
    given = RunOptions(graph=Path("speccot"), input=(str(path),), columns={"problem": "question"}, output=folder / "run", **options)
    with prepare(given, load_plan(given.graph, given.bound_engines, given.settings)):
        pass


def test_toys_are_asked_only_what_they_know(tmp_path: Path) -> None:
    check(tmp_path, KNOWN)
    foreign = [KNOWN[0], "What is 1 + 1?"]
    with pytest.raises(UsageError, match=f"mine.jsonl, {REFUSED}--model ROLE=NAME for each role, or --engines tiny to have the toys try"):
        check(tmp_path, foreign)
    with pytest.raises(UsageError, match=f"^problems, {REFUSED}"):
        pipeline.solve("target", foreign)


@pytest.mark.parametrize(
    "options", [{"engines": Path("tiny")}, {"engines": SIM}, {"settings": ("engines.*.model=some/model",)}, {"limit": 1}]
)
def test_who_names_engines_or_models_is_not_asked_for_the_problems(tmp_path: Path, options: dict[str, Any]) -> None:
    check(tmp_path, [KNOWN[0], "What is 1 + 1?"], **options)
