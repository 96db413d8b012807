"""Chat templates rendered within limits: what they may use, and how one that computes without end is ended."""

import resource
import sys
import threading

import pytest

from pipeline.engines.chat_template import ChatTemplate
from pipeline.errors import GraphError

SAID = [{"role": "user", "content": "a"}]


def rendered(source: str, **variables: str) -> str:
    return ChatTemplate("some/model", source, variables).render(SAID)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", "<s>a"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "a"}]'),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("a\n{% if add_generation_prompt %}\n  {% generation %}b{% endgeneration %}\n{% endif %}\n", "a\nb"),
        ("{{ strftime_now('%Y') | length }}{{ tools is none }}{{ documents is none }}", "4TrueTrue"),
    ],
)
def test_a_template_has_what_transformers_gives_it(source: str, text: str) -> None:
    assert rendered(source, bos_token="<s>") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it runs for more than 2 s"),
        ("{{ 'a' * 100000000000 }}", "it uses too much memory"),
        ("{{ messages[0].content.center(100000000000) }}", "it uses too much memory"),
        ("{{ ('a' * 5000000) }}", "it writes 5,000,000 characters"),
        ("{{ raise_exception('no\n  user') }}", "no user"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
    ],
)
def test_a_template_beyond_its_limits_is_one_sentence_and_the_next_one_is_rendered(source: str, why: str) -> None:
    limits, trace = resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()
    with pytest.raises(GraphError) as caught:
        rendered(source)
    assert str(caught.value) == f"some/model: its chat template fails: {why}"
    assert rendered("fine") == "fine"
    assert (resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()) == (limits, trace)


@pytest.mark.slow
def test_a_limit_holds_in_any_thread() -> None:
    failed: list[str] = []

    def work() -> None:
        try:
            rendered("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
        except GraphError as error:
            failed.append(error.what)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == ["it runs for more than 2 s"] * 2
