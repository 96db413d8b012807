"""Prompts as token ids, over the bundled tokenizer and over a template that drops thoughts."""

from pathlib import Path

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, RequestRefused
from pipeline.graph.prompts import (
    CHOOSE_PREFILL,
    DEFAULT_PROMPTS,
    DELIMITER,
    INSTRUCTION,
    Message,
    Prompts,
)
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import chat_model, with_template

R1_STYLE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}{% else %}"
    "{% set c = m['content'] %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "<|assistant|>{{ c }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> HFTokenizer:
    return chat_model("tiny-target")


@pytest.fixture(params=["own", "drops-thoughts", "no-open-thought"])
def builder(tmp_path: Path, tokenizer: HFTokenizer, request: pytest.FixtureRequest) -> PromptBuilder:
    if request.param == "own":
        return PromptBuilder(tokenizer)
    opens = request.param == "drops-thoughts"
    template = R1_STYLE if opens else R1_STYLE.replace("<|assistant|><think>\n{%", "<|assistant|>{%")
    return PromptBuilder(with_template(tmp_path, "tiny-target", template))


def context_of(builder: PromptBuilder) -> list[int]:
    return builder.generation("Tom has 3 pens. How many?") + builder.tokenizer.encode("Tom has 3.\n\n</think>, so" + DELIMITER)


def test_a_choice_starts_with_exactly_the_ids_of_the_context(builder: PromptBuilder) -> None:
    context = context_of(builder)
    assert builder.tokenizer.decode(context).startswith(f"<|user|>Tom has 3 pens. How many?{INSTRUCTION}<|assistant|><think>\nTom has 3.")
    candidates = [builder.tokenizer.encode(text) for text in ("Tom buys 2.\n\n", "</think>", "cut off")]
    prompt = builder.choose(context, candidates)
    assert list(prompt.ids[: len(context)]) == context
    turn = builder.tokenizer.decode(prompt.ids[len(context) :])
    assert turn.startswith("<|end|><|user|>")
    assert "[1] Tom buys 2.\n\n[2] </think>\n\n[3] cut off\n\n" in turn
    assert turn.endswith("<|assistant|><think>\n\n</think>\n\n" + CHOOSE_PREFILL)
    assert [builder.tokenizer.decode([id_]) for id_ in prompt.option_ids] == ["0", "1", "2", "3"]


def test_a_template_without_thoughts_needs_none(tmp_path: Path) -> None:
    plain = with_template(tmp_path, "tiny-target", R1_STYLE.replace("<think>\n", ""))
    del plain.special_ids["<think>"], plain.special_ids["</think>"]
    builder = PromptBuilder(plain)
    assert builder.think_close_id is None
    assert plain.decode(builder.generation("Hi")).endswith("<|assistant|>")
    assert plain.decode(builder.choose([], [plain.encode("a")]).ids).endswith("<|assistant|>" + CHOOSE_PREFILL)


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("You are good.", "omits a message of the chat"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "omits a message of the chat"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "shows a message of the chat 2 times, not once"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "omits a message of the chat"),
    ],
)
def test_a_template_that_drops_or_doubles_a_problem_is_refused_at_the_start(tmp_path: Path, template: str, what: str) -> None:
    with pytest.raises(GraphError, match=f"engine 'draft': its chat template: {what}"):
        PromptBuilder(with_template(tmp_path, "qwq", template), where="engine 'draft': its chat template")


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{{ messages[0].content }}", "omits a message of the chat"),
        ("{% for m in messages | reverse %}{{ m.content }}{% endfor %}", "changes the order of the messages"),
    ],
)
def test_a_template_without_turns_can_draft_and_cannot_judge(tmp_path: Path, template: str, what: str) -> None:
    builder = PromptBuilder(with_template(tmp_path, "qwq", template))
    assert builder.tokenizer.decode(builder.generation("Hi")) == f"Hi{INSTRUCTION}<think>\n"
    for judge in (
        lambda: builder.flaw(DEFAULT_PROMPTS.score, DEFAULT_PROMPTS.score.labels),
        lambda: builder.choose([], [[1]]),
        lambda: builder.score([], [1]),
    ):
        with pytest.raises(GraphError, match=f"its chat template: {what}"):
            judge()


@pytest.mark.slow
@pytest.mark.parametrize("said", ["m.content | trim", "m.content.strip('\\n')", "m.content.rstrip()", "m.content"])
def test_a_problem_has_the_ids_of_the_rendered_chat(tmp_path: Path, said: str) -> None:
    """Also with white space around it, which some templates strip, some keep and some strip in part."""
    template = f"{{% for m in messages %}}<|im_start|>{{{{ {said} }}}}<|im_end|>{{% endfor %}}"
    tokenizer = with_template(tmp_path, "qwq", template)
    builder = PromptBuilder(tokenizer, Prompts(problem="{{problem}}"))
    for margin in ("", " ", "\n", "\n\n", " \n ", "\t", "\xa0", "\u2003\n"):
        for problem in (f"{margin}Tom has  3\npens.", f"Tom has 3{margin}", f"{margin}pens{margin}"):
            chat = [{"role": "user", "content": problem}]
            assert builder.generation(problem) == tokenizer.encode(f"{tokenizer.render(chat)}<think>\n")


HISTORY = (Message("system", "Be brief."), Message("user", "1+1?\n"), Message("assistant", "2"))


def test_the_chat_before_a_problem_is_said_as_the_template_says_it(tmp_path: Path) -> None:
    template = R1_STYLE.replace("{% else %}{% set c", "{% elif m['role'] == 'system' %}[{{ m['content'] }}]{% else %}{% set c", 1)
    tokenizer = with_template(tmp_path, "tiny-target", template)
    builder = PromptBuilder(tokenizer, Prompts(system="The graph's."))
    text = tokenizer.decode(builder.generation("2+2?", ("3", "4"), HISTORY))
    asked = f"<|user|>1+1?\n<|assistant|>2<|end|><|user|>{DEFAULT_PROMPTS.asked('2+2?', ('3', '4'))}<|assistant|><think>\n"
    assert text == f"[Be brief.]{asked}", "its message of the system replaces the graph's"
    assert tokenizer.decode(builder.generation("2+2?")).startswith("[The graph's.]")


def test_a_template_that_knows_no_message_of_the_system_fails_the_chain_alone(tmp_path: Path) -> None:
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    builder = PromptBuilder(with_template(tmp_path, "tiny-target", refusal + R1_STYLE))
    assert builder.generation("2+2?", (), HISTORY[1:])
    with pytest.raises(RequestRefused, match=r"cannot render the messages before the problem \(system, user, assistant\): .*no system"):
        builder.generation("2+2?", (), HISTORY)
