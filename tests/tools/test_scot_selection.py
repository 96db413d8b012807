"""SCoT's published selection data, as rows of choices that are asked for as in serving."""

import sys
from importlib import import_module
from typing import Any

from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import chat_model
from tests.support.paths import ROOT

ASKED = "Choose the best reasoning path. \n\nQuestion: 2 pens and 3 pens?\n\nOr so?\n\nHere are the reasoning paths:"
DRAFTS = ("It is 2 + 3.\n\nSo 5.", "So 6.")
PUBLISHED = "\n\n".join(
    [ASKED, *(f"Reason {place}: {each}" for place, each in enumerate([*DRAFTS, "All reasoning paths above are wrong.\n\nNumber: "], 1))]
)


def rows(*labels: list[int]) -> list[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    builder = PromptBuilder(chat_model("tiny-target"), DEFAULT_PROMPTS)
    published = [{"input": PUBLISHED, "label": label} for label in labels]
    return list(import_module("scot_selection").selection_rows(published, builder, "bundled:tiny-target", 0.0))


def test_right_options_are_those_of_the_label_and_the_last_one_is_none() -> None:
    found = rows([1], [1, 2], [3])
    assert [[row.options[place] for place in row.right] for row in found] == [["1"], ["1", "2"], ["0"]]
    assert {(row.split, row.model, row.correct) for row in found} == {("train", "bundled:tiny-target", None)}


def test_the_prompt_asks_about_the_question_and_each_draft() -> None:
    [row] = rows([1])
    tokenizer = chat_model("tiny-target")
    assert tokenizer.decode(row.input_ids) == row.prompt
    assert row.prompt.count("2 pens and 3 pens?\n\nOr so?") == 1
    assert all(row.prompt.count(each) == 1 for each in DRAFTS)
    assert "All reasoning paths above are wrong" not in row.prompt
    assert [tokenizer.decode([each]) for each in row.option_ids] == ["0", "1", "2"]
