"""Chat templates: what they may use, and how one that computes without end is ended."""

import sys
import threading

import pytest

from pipeline.engines import tokenizer as module
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
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it runs for more than 0.1 s"),
        ("{{ ('a' * 5000000) }}", "it writes 5,000,000 characters"),
        ("{{ raise_exception('no\n  user') }}", "no user"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
    ],
)
def test_a_template_beyond_its_limits_is_one_sentence_and_the_next_one_is_rendered(
    tokenizer: HFTokenizer, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    """In whatever thread."""
    if "runs for" in why:  # a busy machine is no flaw of the others
        monkeypatch.setattr(module, "LIMIT_S", 0.1)
    trace, failed = sys.gettrace(), list[str]()

    def work() -> None:
        with pytest.raises(GraphError) as caught:
            rendered(tokenizer, source)
        failed.append(str(caught.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    work()
    assert failed == [f"{MODELS / 'tiny-draft'}: its chat template fails: {why}"] * 2
    assert rendered(tokenizer, "fine") == "fine"
    assert sys.gettrace() is trace
