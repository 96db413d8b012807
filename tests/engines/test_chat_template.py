"""Chat templates: what they may use, and how one that fails is told."""

from pathlib import Path

import pytest

from pipeline.errors import GraphError
from tests.support.chat_models import with_template

CHAT = [{"role": "user", "content": "a"}]


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
def test_a_template_that_fails_is_one_sentence_and_the_next_one_is_rendered(tmp_path: Path, source: str, why: str) -> None:
    with pytest.raises(GraphError) as caught:
        with_template(tmp_path, "tiny-draft", source).render(CHAT)
    assert str(caught.value) == f"{tmp_path}: its chat template fails: {why}"
    assert with_template(tmp_path, "tiny-draft", "fine").render(CHAT) == "fine"


EVERYTHING = """{%- set who = messages[0].role -%}
{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
{{ bos_token }}{{ m | tojson }}{{ m | tojson(indent=1) }}{{ strftime_now('%%') }}
{% endfor %}
{%- generation %}{{ who }} {% set who = 'it' %}{% endgeneration -%}
{{ who }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ undefined_name is defined }}"""


def test_a_template_may_use_what_transformers_gives_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    chat = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "\u6c49 'x' & \n"}]
    ours = with_template(tmp_path, "qwq", EVERYTHING).render(chat)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
