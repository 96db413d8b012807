"""Chat templates: what they may use, and how one that fails is told."""

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError
from tests.support.paths import MODELS


@pytest.fixture(scope="module")
def tokenizer() -> HFTokenizer:
    return HFTokenizer(str(MODELS / "tiny-draft"))


def rendered(tokenizer: HFTokenizer, source: str) -> str:
    vars(tokenizer).pop("_template", None)
    tokenizer._hf.chat_template = source
    return tokenizer.render([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ ('a' * 5000000) }}", "it writes 5,000,000 characters"),
        ("{{ 'a' * 3000000000 }}", "it takes more than 512 MiB"),
        ("{{ 'a' | center(3000000000) }}", "it takes more than 512 MiB"),
        ("{{ '%3000000000d' % 1 }}", "it takes more than 512 MiB"),
        ("{% set n = namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "it takes more than 512 MiB"),
        ("{{ raise_exception('no\n  user') }}", "no user"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
    ],
)
def test_a_template_that_fails_is_one_sentence_and_the_next_one_is_rendered(tokenizer: HFTokenizer, source: str, why: str) -> None:
    with pytest.raises(GraphError) as caught:
        rendered(tokenizer, source)
    assert str(caught.value) == f"{MODELS / 'tiny-draft'}: its chat template fails: {why}"
    assert rendered(tokenizer, "fine") == "fine"
