"""Prompt builders of a run: what a tokenizer of the caller's own lacks is one sentence."""

from typing import Any

import pytest

from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import GraphError
from pipeline.session.preflight import load_plan
from pipeline.stages.build import builders_of
from tests.support.paths import ROOT, SIM

PLAN = load_plan(ROOT / "graphs/speccot.yaml", SIM)


def test_a_tokenizer_that_cannot_keep_texts_apart_is_refused() -> None:
    with pytest.raises(
        GraphError,
        match="engine 'draft': its tokenizer is a object without `special_ids`",
    ):
        builders_of(PLAN, {"draft": object()})  # type: ignore[dict-item]


def test_a_template_that_repeats_a_problem_is_named_with_its_engine() -> None:
    class Twice(SimTokenizer):
        def render(self, messages: Any) -> str:
            return 2 * super().render(messages)

    with pytest.raises(GraphError, match="engine 'draft': its chat template: shows a message of the chat 2 times, not once"):
        builders_of(PLAN, {"draft": Twice()})
