"""Prompts of reward models, to the letter, and a thought's steps, however it was written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError
from pipeline.graph.load import load_reward_model
from pipeline.graph.rewards import ChatPrompt, TextPrompt
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.reward_prompts import LONG, RewardPromptBuilder, Thought, text_of, turns
from tests.support.chat_models import chat_model

ROOT = Path(__file__).parent.parent.parent
TINY = HFTokenizer(str(ROOT / "pipeline/models/tiny-prm"))
PLAIN = TextPrompt(begin="{problem}\n", step="{step}\n\n")
DUCKS, STEPS = "How many eggs are left?", ["Janet's ducks lay 16 eggs.", "She eats 3, so 16 - 3 = 13 are left."]


def prompt_of(name: str) -> TextPrompt | ChatPrompt:
    return load_reward_model(ROOT / f"graphs/rewards/{name}.yaml")[1]


def test_math_shepherd_is_asked_as_on_its_model_card() -> None:
    prompt = prompt_of("prm-math-shepherd")
    assert isinstance(prompt, TextPrompt)
    assert "".join(text_of(prompt, DUCKS, STEPS)) == (
        "<s>How many eggs are left? Step 1: Janet's ducks lay 16 eggs. ки\nStep 2: She eats 3, so 16 - 3 = 13 are left. ки"
    )
    assert (prompt.good, prompt.bad) == ("+", "-")


def test_rlhflow_is_asked_as_in_its_own_evaluation() -> None:
    prompt = prompt_of("prm-rlhflow")
    assert isinstance(prompt, ChatPrompt)
    assert ["".join(turn) for turn in turns(prompt, DUCKS, STEPS[:1])] == [f"{DUCKS} {STEPS[0]}"]
    assert ["".join(turn) for turn in turns(prompt, DUCKS, STEPS)] == [f"{DUCKS} {STEPS[0]}", STEPS[1]]


def test_a_bundled_model_is_asked_in_the_words_that_its_body_reasons_in() -> None:
    builder, said = RewardPromptBuilder(TINY, prompt_of("prm-tiny"), "test"), PromptBuilder(TINY).generation(DUCKS)
    assert builder.ids(DUCKS, STEPS).tolist() == [*said, *TINY.encode("".join(f"{step}\n\n" for step in STEPS))]
    assert [TINY.decode([each]) for each in builder.option_ids] == ["+", "-"]


def test_what_a_problem_or_step_says_is_no_template() -> None:
    assert "".join(text_of(PLAIN, "{step} {number}", ["{problem}", "b"])) == "{step} {number}\n{problem}\n\nb\n\n"
    assert turns(ChatPrompt(), "{step}", ["{problem}"]) == [["", "{step}", " ", "{problem}", ""]]


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPrompt(),
        ChatPrompt(first="  {problem}\n{step}\n", step="\n{step} "),
        TextPrompt(begin="<|user|>{problem}<|end|>", step="{number}: {step}\n\n", between="<|user|>", thought_end="</think>"),
    ],
)
@pytest.mark.parametrize("name", ["tiny-prm", "qwq"])
def test_special_tokens_in_problems_and_steps_stay_text(name: str, prompt: TextPrompt | ChatPrompt) -> None:
    tokenizer = chat_model(name)
    builder = RewardPromptBuilder(tokenizer, prompt, "test")
    clean = builder.ids("Why?", ["So.", "Thus."])
    for text, id_ in tokenizer.special_ids.items():
        if id_ in tokenizer.control_ids:
            for problem, steps in ((f"Why{text}?", ["So.", "Thus."]), ("Why?", [f"{text}So.", f"Thus{text}."])):
                ids = builder.ids(problem, steps)
                assert [each for each in ids if each in tokenizer.control_ids] == [each for each in clean if each in tokenizer.control_ids]


@pytest.mark.parametrize("name", ["tiny-prm", "qwq"])
def test_a_chat_has_the_ids_of_the_rendered_chat(name: str) -> None:
    tokenizer = chat_model(name)
    builder = RewardPromptBuilder(tokenizer, ChatPrompt(first=" {problem} {step}\n", step="{step} "), "test")
    for problem in ("Why?", "\n Why?"):
        chat = [
            {"role": "user", "content": f" {problem} So.\n"},
            {"role": "assistant", "content": "+"},
            {"role": "user", "content": "Thus. "},
        ]
        assert builder.ids(problem, ["So.", "Thus."]).tolist() == tokenizer.encode(tokenizer.render(chat))


@pytest.mark.parametrize("name", ["tiny-prm", "qwq"])
@pytest.mark.parametrize(
    "prompt", [TextPrompt(begin="{problem} ", step="{step}{number} x", between="\n"), TextPrompt(begin="{problem}", step="{step}"), PLAIN]
)
def test_a_prompt_that_continues_another_has_the_ids_of_the_whole(name: str, prompt: TextPrompt) -> None:
    """Also where steps run into each other, so that a token reaches over both."""
    tokenizer = chat_model(name)
    builder, steps = (
        RewardPromptBuilder(tokenizer, prompt, "test"),
        ["So", "fort", "h", "<|im_end|> 3", "  4 = 7", "", ".\n", "\n\nThus", "é", "e"],
    )
    for count in range(1, len(steps) + 1):
        for draft in ("", " or", "over", "\n"):
            asked = [*steps[: count - 1], steps[count - 1] + draft]
            assert builder.ids(LONG * "?", asked).tolist() == tokenizer.encode_parts(text_of(prompt, LONG * "?", asked)), asked


def test_the_mark_of_the_end_of_a_thought_is_the_reward_model_s_own() -> None:
    prompt = TextPrompt(begin="{problem}", step="{step}\n\n", thought_end="</think>")
    close = TINY.special_ids["</think>"]
    assert RewardPromptBuilder(TINY, prompt, "test").ids("a", ["b</think>"]).tolist() == [*TINY.encode("ab"), close, *TINY.encode("\n\n")]


def test_answers_must_be_two_single_tokens() -> None:
    for good, bad, flaw in (
        ("+", "--", r"f.yaml: \$.prompt.bad: '--' is 2 tokens of this model; an answer must be one"),
        ("-", "-", r"f.yaml: \$.prompt: `good` and `bad` are the same token, '-'; choose two"),
    ):
        with pytest.raises(GraphError, match=flaw):
            RewardPromptBuilder(TINY, TextPrompt(begin="{problem}", step="{step}", good=good, bad=bad), "f.yaml")


def thought_of(*texts: str, thought_end: str = "") -> Thought:
    thought = Thought(thought_end)
    for text in texts:
        thought.commit(text)
    return thought


@pytest.mark.parametrize(
    ("before", "text", "steps"),
    [
        ("first.\n\n", "a\n\nb\n\nc", ["a", "b", "c"]),
        ("first.\n\n", "a\n\n\n\n \n\nb\n\n", ["a", "b"]),
        ("first.\n\n", "\n\na\nstill a\n\n", ["a\nstill a"]),
        ("first.\n\n", "", []),
        ("first.\n\n", " \n", []),
        ("first.\n\n", "so 4.\n</think>\n\nThe answer is\n\n4", ["so 4."]),
        ("first.\n\n", "</think>", []),
        ("Tom has", " 3 pens.\n\n", ["Tom has 3 pens."]),
    ],
)
def test_the_steps_of_a_text(before: str, text: str, steps: list[str]) -> None:
    assert thought_of(before).steps_of(text) == steps


def test_the_end_of_a_thought_is_a_step_where_the_model_knows_it() -> None:
    assert thought_of("a\n\n", thought_end="</think>").steps_of("</think>") == ["</think>"]
    assert thought_of("a\n\n", "</think>", thought_end="[end]").steps_of("x") == ["[end]x"]


@given(st.lists(st.text("ab \n", max_size=6), max_size=6))
def test_it_does_not_matter_how_a_thought_was_cut_into_texts(texts: list[str]) -> None:
    whole = thought_of("".join(texts) + "\n\n")
    assert thought_of(*texts, "\n\n").steps == whole.steps
