"""Prompt builders of a run: what a tokenizer of the caller's own lacks is one sentence."""

from typing import Any, ClassVar

import pytest

import pipeline
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import GraphError, UsageError
from pipeline.run.prepare import load_plan
from pipeline.stages.build import builders_of
from tests.support.paths import ROOT, SIM

PLAN = load_plan(ROOT / "graphs/speccot.yaml", SIM)


def test_a_tokenizer_that_cannot_keep_texts_apart_is_refused() -> None:
    with pytest.raises(
        GraphError,
        match="engine 'draft': its tokenizer has no `special_ids`",
    ):
        builders_of(PLAN, {"draft": object()})  # type: ignore[dict-item]


def test_a_template_that_repeats_a_problem_is_named_with_its_engine() -> None:
    class Twice(SimTokenizer):
        def render(self, messages: Any) -> str:
            return 2 * super().render(messages)

    with pytest.raises(GraphError, match="engine 'draft': its chat template: shows a message of the chat 2 times, not once"):
        builders_of(PLAN, {"draft": Twice()})


class Halves:
    """An engine of one's own that lacks what the contract asks for last."""

    role, max_model_len, vocab_size = "target", 512, 512
    facts: ClassVar[dict[str, Any]] = {}

    async def generate(self, request: Any) -> Any: ...

    def statistics(self) -> Any: ...


def test_an_engine_of_one_s_own_without_a_tokenizer_is_one_sentence() -> None:
    said = r"engines: .target. has no `tokenizer`, `aclose` \(a Halves\); `pipeline.engine.Engine` describes what it needs"
    with pytest.raises(UsageError, match=f"^{said}$"):
        pipeline.solve("target", [{"problem": "1 + 1?"}], engines={"target": Halves()})
