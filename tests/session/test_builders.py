"""Prompt builders of a run: what a tokenizer of the caller's own lacks is one sentence."""

from typing import Any

import pytest

from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import GraphError
from pipeline.session.builders import _builder


class Bare:
    """An engine whose tokenizer was written for an earlier version."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer


def test_a_tokenizer_that_cannot_keep_texts_apart_is_refused() -> None:
    with pytest.raises(GraphError, match="engine 'draft': its tokenizer has no `encode_parts`"):
        _builder("draft", Bare(object()), "")  # type: ignore[arg-type]


def test_a_template_that_repeats_a_problem_is_named_with_its_engine() -> None:
    class Twice(SimTokenizer):
        def render(self, messages: Any) -> str:
            return 2 * super().render(messages)

    with pytest.raises(GraphError, match="engine 'draft': its chat template: shows a message of the chat 2 times, not once"):
        _builder("draft", Bare(Twice()), "")  # type: ignore[arg-type]
