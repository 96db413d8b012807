"""SCoT's published selection data, as rows of choices that are asked for as in serving."""

from typing import Any

from scot_selection import selection_rows

from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import chat_model

ASKED = "Choose the best reasoning path. \n\nQuestion: 2 pens and 3 pens?\n\nOr so?\n\nHere are the reasoning paths:"
DRAFTS = ("It is 2 + 3.\n\nSo 5.", "So 6.")
PUBLISHED = "\n\n".join(
    [ASKED, *(f"Reason {place}: {each}" for place, each in enumerate([*DRAFTS, "All reasoning paths above are wrong.\n\nNumber: "], 1))]
)


def rows(*labels: list[int]) -> list[Any]:
    builder = PromptBuilder(chat_model("tiny-target"), DEFAULT_PROMPTS)
    published = [{"input": PUBLISHED, "label": label} for label in labels]
    return list(selection_rows(published, builder, "bundled:tiny-target", 0.0))


def test_the_prompt_asks_about_the_question_and_each_draft_and_right_options_are_those_of_the_label() -> None:
    found, tokenizer = rows([1], [1, 2], [3]), chat_model("tiny-target")
    assert [[row.options[place] for place in row.right] for row in found] == [["1"], ["1", "2"], ["0"]]
    assert {(row.split, row.model, row.correct) for row in found} == {("train", "bundled:tiny-target", None)}
    prompt = tokenizer.decode(found[0].input_ids)
    assert prompt == found[0].prompt
    assert [prompt.count(each) for each in ("2 pens and 3 pens?\n\nOr so?", *DRAFTS, "All reasoning paths above are wrong")] == [1, 1, 1, 0]
    assert [tokenizer.decode([each]) for each in found[0].option_ids] == ["0", "1", "2"]
