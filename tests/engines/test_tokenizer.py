"""A Hugging Face tokenizer: its control tokens, texts that stay text, and failures that are one sentence."""

import re
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, RequestRefused
from tests.support.chat_models import BUNDLED, MODELS, chat_model, folder_of, with_template

NAMES = (*MODELS, *BUNDLED)
FOLDED = "＜think＞"  # noqa: RUF001 - characters that NFKC makes ASCII
"""`<think>` for a tokenizer that folds texts before it looks for its tokens."""


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """All tokenizers are loaded on behalf of all tests."""
    for name in NAMES:
        chat_model(name).encode_parts(["", "<think><|im_end|>[INST]"])


def controls_of(tokenizer: HFTokenizer) -> list[str]:
    return [text for text, id_ in tokenizer.special_ids.items() if id_ in tokenizer.control_ids]


def pieces_of(tokenizer: HFTokenizer) -> list[str]:
    """Texts that tokenizers stumble over: whole and cut control tokens, look-alikes, white space."""
    controls = controls_of(tokenizer)
    halves = [half for text in controls for half in (text[: len(text) // 2], text[len(text) // 2 :])]
    white = [" ", "\n", "\n\n", "  "]
    return [*controls, *halves, *white, "<", ">", "|", "[", "▁", "a", "Tom has 3 pens", "\\boxed{5}", "汉", FOLDED, "K"]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_models_publish_as_special_or_as_tags_controls_a_chat_and_no_word_does(name: str) -> None:
    tokenizer = chat_model(name)
    if name in BUNDLED:
        expected = {"<|end|>", "<|user|>", "<|assistant|>", "<think>", "</think>"}
        assert {"\n\n", "\\boxed{", "Score: ", "[1] "} <= tokenizer.special_ids.keys() - expected
    else:
        expected = {*MODELS[name].special, *MODELS[name].added}
    assert set(controls_of(tokenizer)) == expected


def test_tokens_that_the_template_names_control_a_chat_and_added_words_and_digits_do_not(tmp_path: Path) -> None:
    words = ["0", "user", "content", "[1]", "<=>", "{%"]
    for file in folder_of("qwen3").iterdir():
        (tmp_path / file.name).write_text(file.read_text().replace("<|im_end|>", "~over~"))
    changed = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    changed.add_tokens(words)
    changed.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HFTokenizer(str(tmp_path))
    assert "~over~" in controls_of(tokenizer)
    assert set(words) <= tokenizer.special_ids.keys() - set(controls_of(tokenizer))
    assert tokenizer.encode_parts(["", "10 user [1]"]) == tokenizer.encode("10 user [1]")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_no_parts_that_others_wrote_give_a_control_token(name: str, data: st.DataObject) -> None:
    """In whatever way texts of control tokens are cut over a text, its neighbours and the template's own parts."""
    tokenizer = chat_model(name)
    said = st.lists(st.sampled_from(pieces_of(tokenizer)), max_size=5).map("".join)
    ours = st.lists(st.sampled_from(["", *controls_of(tokenizer), "user\n", "\n"]), max_size=3).map("".join)
    parts = data.draw(st.tuples(ours, said, ours, said, ours))
    expected = [id_ for part in parts[::2] for id_ in tokenizer.encode(part) if id_ in tokenizer.control_ids]
    ids = tokenizer.encode_parts(parts)
    assert [id_ for id_ in ids if id_ in tokenizer.control_ids] == expected
    if name in BUNDLED or MODELS[name].kind in ("bytes", "whole words"):
        assert tokenizer.decode(ids) == "".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_parts_without_control_tokens_keep_their_ids(name: str, data: st.DataObject) -> None:
    tokenizer = chat_model(name)
    words = [piece for piece in pieces_of(tokenizer) if not any(mark in piece for mark in "<>[]") and piece != FOLDED]
    said = st.lists(st.sampled_from([*words, "< ", "3 > 2", "汉字"]), max_size=6).map("".join)
    before, after = data.draw(st.sampled_from([("", ""), *((text, text) for text in controls_of(tokenizer))]))
    parts = [before, data.draw(said), after]
    assert tokenizer.encode_parts(parts) == tokenizer.encode("".join(parts))


def test_a_tokenizer_that_is_damaged_or_whose_regex_runs_over_is_one_sentence(tmp_path: Path) -> None:
    copytree(folder_of("qwq"), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    changed = Tokenizer.from_file(str(file))
    changed.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"(a|aa)+$"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    changed.save(str(file))
    spoilt = HFTokenizer(str(tmp_path))
    assert spoilt.encode("a")
    with pytest.raises(RequestRefused, match=f"the tokenizer of {re.escape(str(tmp_path))} fails: [^\n]*$"):
        spoilt.encode_parts(["", "a" * 200 + "b"])
    for content in ("{", '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}}}'):
        file.write_text(content)
        with pytest.raises(GraphError, match=rf"^{re.escape(str(tmp_path))}: [^\n]*$"):
            HFTokenizer(str(tmp_path))
    file.unlink()
    with pytest.raises(GraphError, match=r"its tokenizer cannot be read: no tokenizer\.json; write one: AutoTokenizer"):
        HFTokenizer(str(tmp_path))


CHAT = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "\u6c49 'x' & \n"}]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "its tokenizer has no chat template; use an instruction or reasoning model"),
        ("{{ raise_exception('no user') }}", "its chat template fails: no user"),
        ("{{ ''.__class__.__mro__ }}", "its chat template fails: access to attribute '__class__' of 'str' object is unsafe."),
        ("{% if %}", "its chat template fails: Expected an expression, got 'end of statement block'"),
    ],
)
def test_a_template_that_fails_is_one_sentence(tmp_path: Path, source: str, why: str) -> None:
    with pytest.raises(GraphError) as caught:
        with_template(tmp_path, "tiny-draft", source).render(CHAT)
    assert str(caught.value) == f"{tmp_path}: {why}"


EVERYTHING = """{%- set who = messages[0].role -%}
{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
{{ bos_token }}{{ m | tojson }}{{ m | tojson(indent=1) }}{{ strftime_now('%%') }}
{% endfor %}
{%- generation %}{{ who }} {% set who = 'it' %}{% endgeneration -%}
{{ who }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ undefined_name is defined }}"""


def test_a_template_may_use_what_transformers_gives_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = with_template(tmp_path, "qwq", EVERYTHING).render(CHAT)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
