"""Prompts as token ids, over the bundled tokenizer and over a template that drops thoughts."""

import json
import re
from pathlib import Path

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError
from pipeline.reasoning.prompts import (
    CHOOSE_INTRO,
    CHOOSE_PREFILL,
    CHOOSE_QUESTION,
    DELIMITER,
    LABELS,
    SCORE_PREFILL,
    SCORE_QUESTION,
    PromptBuilder,
)

R1_STYLE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}{% else %}"
    "{% set c = m['content'] %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "<|assistant|>{{ c }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


BOS, USER, ASSISTANT, EOS = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"  # noqa: RUF001
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '" + USER + "' + m['content'] }}{% else %}"
    "{{ '" + ASSISTANT + "' + m['content'].split('</think>')[-1] + '" + EOS + "' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "<think>\\n' }}{% endif %}"
)
"""Renders what the template of the R1-Distill models does (their tokenizer_config.json on the hub, tools aside)."""


@pytest.fixture(scope="module")
def tokenizer(root: Path) -> HFTokenizer:
    return HFTokenizer(str(root / "pipeline/models/tiny-target"))


@pytest.fixture(params=["own", "drops-thoughts", "no-open-thought"])
def builder(root: Path, request: pytest.FixtureRequest) -> PromptBuilder:
    tokenizer = HFTokenizer(str(root / "pipeline/models/tiny-target"))
    if request.param == "drops-thoughts":
        tokenizer._hf.chat_template = R1_STYLE
    if request.param == "no-open-thought":
        tokenizer._hf.chat_template = R1_STYLE.replace("<|assistant|><think>\n{%", "<|assistant|>{%")
    return PromptBuilder(tokenizer)


def context_of(builder: PromptBuilder) -> list[int]:
    return builder.generation("Tom has 3 pens. How many?") + builder.tokenizer.encode("Tom has 3.\n\n</think>, so" + DELIMITER)


def test_generation_ends_in_an_opened_thought(builder: PromptBuilder) -> None:
    text = builder.tokenizer.decode(builder.generation("Tom has 3 pens."))
    assert text == "<|user|>Tom has 3 pens." + builder.instruction + "<|assistant|><think>\n"


def test_a_choice_starts_with_exactly_the_ids_of_the_context(builder: PromptBuilder) -> None:
    context = context_of(builder)
    candidates = [builder.tokenizer.encode(text) for text in ("Tom buys 2.\n\n", "</think>", "cut off")]
    prompt = builder.choose(context, candidates)
    assert list(prompt.ids[: len(context)]) == context
    turn = builder.tokenizer.decode(prompt.ids[len(context) :])
    assert turn.startswith("<|end|><|user|>")
    assert "[1] Tom buys 2.\n\n[2] </think>\n\n[3] cut off\n\n" in turn
    assert turn.endswith("<|assistant|><think>\n\n</think>\n\n" + CHOOSE_PREFILL)
    assert [builder.tokenizer.decode([id_]) for id_ in prompt.option_ids] == ["0", "1", "2", "3"]


def test_a_score_shows_the_candidate_in_its_place(builder: PromptBuilder) -> None:
    context = context_of(builder)
    candidate = builder.tokenizer.encode("Tom buys 2.\n\n")
    prompt = builder.score(context, candidate)
    assert list(prompt.ids[: len(context) + len(candidate)]) == context + candidate
    assert builder.tokenizer.decode(prompt.ids).endswith(SCORE_PREFILL)
    assert [builder.tokenizer.decode([id_]) for id_ in prompt.option_ids] == list("0123456789")


@pytest.fixture
def r1(root: Path) -> PromptBuilder:
    """The bundled tokenizer with the special tokens and the template of R1-Distill."""
    tokenizer = HFTokenizer(str(root / "pipeline/models/tiny-target"))
    hf = tokenizer._hf
    hf.add_special_tokens({"bos_token": BOS, "eos_token": EOS, "additional_special_tokens": [USER, ASSISTANT, "<think>", "</think>"]})
    hf.chat_template = R1
    tokenizer.special_ids = dict(hf.get_added_vocab())
    return PromptBuilder(tokenizer)


def test_r1_s_template_keeps_the_thought_in_a_verification(r1: PromptBuilder) -> None:
    """Rendered anew, the assistant's turn would lose all that stands before `</think>`."""
    decode, encode = r1.tokenizer.decode, r1.tokenizer.encode
    context = r1.generation("Tom has 3 pens.") + encode("Tom has 3.\n\nSo 3.\n\n</think>\n\nThe")
    lost = r1.tokenizer.render([{"role": "user", "content": "q"}, {"role": "assistant", "content": "Tom has 3.</think>\n\nThe"}])
    assert "Tom has 3" not in lost
    asked = f"{BOS}{USER}Tom has 3 pens.{r1.instruction}{ASSISTANT}<think>\nTom has 3.\n\nSo 3.\n\n</think>\n\nThe"
    reply = f"{ASSISTANT}<think>\n\n</think>\n\n"
    choice = r1.choose(context, [encode("Tom buys 2.\n\n")])
    said = f"{asked}{EOS}{USER}{CHOOSE_INTRO}[1] Tom buys 2.\n\n{CHOOSE_QUESTION}{reply}{CHOOSE_PREFILL}"
    assert (list(choice.ids[: len(context)]), decode(choice.ids)) == (context, said)
    score = r1.score(context, encode("Tom buys 2.\n\n"))
    assert decode(score.ids) == f"{asked}Tom buys 2.\n\n{EOS}{USER}{SCORE_QUESTION}{reply}{SCORE_PREFILL}"


def test_every_label_and_digit_is_one_token(tokenizer: HFTokenizer) -> None:
    builder = PromptBuilder(tokenizer)
    assert builder.most_candidates == len(LABELS) - 1
    assert builder.can_score


def test_a_template_without_thoughts_needs_none(tokenizer: HFTokenizer) -> None:
    plain = HFTokenizer(tokenizer._hf.name_or_path)
    plain._hf.chat_template = R1_STYLE.replace("<think>\n", "")
    del plain.special_ids["<think>"], plain.special_ids["</think>"]
    builder = PromptBuilder(plain)
    assert builder.think_close_id is None
    assert plain.decode(builder.generation("Hi")).endswith("<|assistant|>")
    assert plain.decode(builder.choose([], [plain.encode("a")]).ids).endswith("<|assistant|>" + CHOOSE_PREFILL)


@pytest.mark.parametrize("text", ["plain", "汉字 and ümläuts", "12345 tokens\n\n\nof \\boxed{7}", "\x00\x7f", "<think>"])
def test_any_text_is_encoded_and_decoded_back(tokenizer: HFTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def copied(root: Path, folder: Path) -> Path:
    """The bundled tokenizer, to be spoilt."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_bytes((root / "pipeline/models/tiny-target" / name).read_bytes())
    return folder


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ raise_exception('no user here') }}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_runs_in_a_sandbox_and_its_failure_is_one_sentence(root: Path, tmp_path: Path, template: str) -> None:
    config = json.loads((copied(root, tmp_path) / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    with pytest.raises(GraphError, match="its chat template fails: ") as caught:
        PromptBuilder(HFTokenizer(str(tmp_path)))
    assert "\n" not in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}}}'])
def test_a_damaged_tokenizer_is_one_sentence(root: Path, tmp_path: Path, content: str) -> None:
    (copied(root, tmp_path) / "tokenizer.json").write_text(content)
    with pytest.raises(GraphError, match=re.escape(str(tmp_path))) as caught:
        HFTokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)
