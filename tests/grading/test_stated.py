"""Which answer a text states, by hand and against the labels published with SCoT."""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.grading.stated import Form, stated, stated_in
from tests.support.grading_pairs import at_once

DRAFTS: list[tuple[Form | None, str, str | None]] = [
    ("number", "Tom collects 2, so 13 + 2 = 15.\n\nTom drops 2, so 15 - 2 = 13.\n\n</think>", "13"),
    ("number", "Adding 30 and 15 gives a total of 45 rodents.", "45"),
    ("number", "So she pays $8.00 minus $1.00 equals $7.00.", "$7.00"),
    ("number", "Therefore, the house cost $90,000.", "$90,000"),
    ("number", "That is 25% of 80.\n\nSo 20 are red, or 25%.", "25%"),
    ("number", "She is short: $20 - $30 = -$10.", "-$10"),
    ("number", "The answer is 25. Wait, let me check 8 years on: 55 - 22 = 33, no.", "25"),
    ("number", "So the final answer is: 3 + 4 = 7 apples", "7"),
    ("number", "**Final Answer**\nThe plane needs \\boxed{5} hours for 2000 miles.", "5"),
    ("number", "Long-answer: 60% of 5 is 3 questions.\n\nShe scores 8 + 18 + 15 = 41 points.", "41"),
    ("number", "### Answer\nAnna has **12** left.", "12"),
    ("number", "1. **Define**: x is 4.\n\nSo it is **73**.", "73"),
    ("number", "Natalia sold 48/2 = 24 in May.\n#### 72", "72"),
    ("number", "It was the 3rd of the 12 days.", "12"),
    ("number", "So \\frac{1}{2} of it", "\\frac{1}{2}"),
    ("number", "the total is 6.02 \\times 10^{23}.", "6.02 \\times 10^{23}"),
    ("number", "共计４２个", "42"),
    ("number", "in all 2\u202f602 books", "2602"),
    ("number", "I do not know.\n\n</think>", None),
    ("number", "", None),
    ("number", "The price is 40.\n</think>\nIt costs 45 dollars.", "45"),
    ("number", "So \\boxed{40}.\n</think>\nThat is all.", "40"),
    ("letter", "A car needs fuel, so B is wrong. Therefore (C).", "C"),
    ("letter", "The answer is **B**.", "B"),
    ("letter", "Final Answer: **(D) mitosis**", "D"),
    ("letter", "I think option A fits best", "A"),
    ("letter", "Photosynthesis takes light.", None),
    ("letter", "The correct answer is A or B.", "A or B"),
    ("expression", "x = 3, hence \\boxed{7}. Let me check: 3 + 4 = 7", "7"),
    ("expression", "So y = \\frac{1}{2}\n</think>", "\\frac{1}{2}"),
    ("expression", "Thus the roots are $x = 1 \\pm \\sqrt{2}$.", "x = 1 \\pm \\sqrt{2}"),
    ("expression", "The answer is $(2, 3]$, because 2 is left out.", "$(2, 3]$"),
    ("expression", "Hence the answer is:\n\\[\n\\frac{n(n+1)}{2}\n\\]", "\\frac{n(n+1)}{2}"),
    ("expression", "and so =", None),
    (None, "about 12 eggs, then 14", "14"),
    (None, "The answer is (B) 12 metres.", "B"),
    (None, "So the curve is $y = x$", "y = x"),
    (None, "nothing to see", None),
]


@pytest.mark.parametrize(("form", "text", "answer"), DRAFTS)
def test_what_a_draft_states(form: Form | None, text: str, answer: str | None) -> None:
    assert stated(text, form) == answer


MARKS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
    ("<|channel>thought", "<channel|>"),
]


@pytest.mark.parametrize(("begin", "end"), MARKS)
@pytest.mark.parametrize("answer", ["The answer is **5**.", "\\boxed{5}", "5", "<answer>5</answer>", "It costs 5 dollars."])
def test_what_is_thought_is_no_answer(begin: str, end: str, answer: str) -> None:
    text = f"{begin}Maybe \\boxed{{4}}.{end}{answer}"
    assert {stated(text, "number"), stated_in(text, "", "number"), stated_in("", text, "number")} == {"5"}
    assert stated_in(f"{begin}Maybe \\boxed{{4}}.{end}", "") == "4", "where nothing else is said"


@pytest.mark.parametrize("box", [r"\boxed\frac12", r"\boxed 7", r"\boxed\sqrt2", r"\boxed\pi", r"\boxed{7", r"\fbox{7}"])
def test_a_box_without_braces_is_one_in_a_thought_too(box: str) -> None:
    content = re.sub(r"\\f?box(ed)?[ {]?|}$", "", box)
    assert stated_in("", f"So {box}", "number") == stated_in(f"So {box}", "", "number") == content


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"name": "add", "arguments": {"x": 5}}</tool_call>',
        '[TOOL_CALLS][{"name": "add", "arguments": {"x": 5}}]',
        '```json\n{"name": "add", "parameters": {"x": 5}}\n```',
        "<|python_tag|>add(x=5)",
        "<function=add>5</function>",
    ],
)
def test_what_is_asked_of_a_tool_is_no_answer(call: str) -> None:
    assert stated_in(call, "") is None
    assert stated_in(call, "so \\boxed{5}") == "5"


@given(st.text(), st.sampled_from(["number", "letter", "expression", None]))
def test_any_text_is_read(text: str, form: Form | None) -> None:
    assert stated(text, form) != ""


def published(shared: Path) -> Iterator[tuple[str, str, bool]]:
    """The drafts of SCoT's selection data, each with the reference of its problem and its label."""
    rows = [json.loads(line) for line in (shared / "data/gsm8k.jsonl").read_text().splitlines()]
    references = {row["question"].strip(): row["answer"].rpartition("####")[2].strip() for row in rows}
    for line in (shared / "data/scot/selection-500x5.jsonl").read_text().splitlines():
        row = json.loads(line)
        problem, _, rest = row["input"].partition("Question: ")[2].partition("\n\nHere are the reasoning paths:\n\n")
        for number in range(1, 6):
            thought, _, rest = rest.removeprefix(f"Reason {number}: ").partition(f"\n\nReason {number + 1}: ")
            yield thought, references[problem.strip()], number in row["label"]


@pytest.mark.slow
def test_drafts_published_with_scot_have_their_labels(shared: Path) -> None:
    """The published labels compare the last number of a draft with the reference as text: 105 of them call `$7.00` wrong where the
    reference is 7, and `90,000` where it is 90000. Compared as text, and compared by value with these set right, 97 % have to agree."""
    drafts = list(published(shared))
    as_text = by_value = misprints = 0
    for thought, reference, label in drafts:
        found = stated(thought, "number")
        said = "" if found is None else found.strip("\\$% ")
        as_text += (said == reference) == label
        value = _value(said)
        misprint = not label and value is not None and said != reference and value == _value(reference)
        misprints += misprint
        by_value += (at_once("math", said, reference) is True) == (label or misprint)
    assert len(drafts) == 2500
    assert as_text / len(drafts) > 0.98
    assert by_value / len(drafts) > 0.98
    assert misprints <= 0.045 * len(drafts)


def _value(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None
