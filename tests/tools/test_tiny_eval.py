"""The plain second reading of the two loops says of the bundled pair what its card says."""

import sys
from importlib import import_module
from typing import Any

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.paths import ROOT

pytestmark = pytest.mark.torch
MODELS = ROOT / "pipeline/models"


@pytest.fixture(scope="module")
def tiny_eval() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    return import_module("tiny_eval")


def test_the_target_lets_right_steps_pass_and_mends_wrong_ones(tiny_eval: Any) -> None:
    import torch

    torch.manual_seed(0)
    draft, target = (tiny_eval.load(MODELS / f"tiny-{role}") for role in ("draft", "target"))
    builder, problems = PromptBuilder(HFTokenizer(str(MODELS / "tiny-target"))), import_module("make_arith").split("validation")[:16]
    alone = tiny_eval.alone(draft, problems, builder)
    for candidates in (1, 5):
        found = tiny_eval.loop(draft, target, problems, builder, candidates)
        assert found["accuracy"] >= 15 / 16 > alone
        assert 0 < found["fallback"] < 0.5
