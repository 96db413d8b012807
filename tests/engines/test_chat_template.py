"""Chat templates rendered within limits: what they may use, and how one that computes without end is ended."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engines import chat_template
from pipeline.engines.chat_template import ChatTemplate, end_rendering
from pipeline.errors import GraphError

pytestmark = pytest.mark.slow
SAID = [{"role": "user", "content": "a"}]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    end_rendering()


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


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it runs for more than 2 s"),
        (
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
            "it uses too much memory",
        ),
        ("{{ ('a' * 5000000) }}", "it writes 5,000,000 characters"),
        ("{{ raise_exception('no\n  user') }}", "no user"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
    ],
)
def test_a_template_beyond_its_limits_is_one_sentence_and_the_next_one_is_rendered(source: str, why: str) -> None:
    with pytest.raises(GraphError) as caught:
        rendered(source)
    assert str(caught.value) == f"some/model: its chat template fails: {why}"
    assert rendered("fine") == "fine"


def test_a_worker_that_is_killed_is_one_sentence_and_another_one_starts() -> None:
    assert rendered("fine") == "fine"
    process = chat_template._RENDERER._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    with pytest.raises(GraphError, match="its worker was lost"):
        rendered("fine")
    assert rendered("fine") == "fine"


def test_rendering_can_be_ended_from_another_thread() -> None:
    assert rendered("fine") == "fine"
    failed: list[GraphError] = []

    def work() -> None:
        try:
            rendered("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
        except GraphError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not chat_template._RENDERER._lock.locked():
        time.sleep(0)
    began = time.process_time()
    end_rendering()
    thread.join(60)
    assert not thread.is_alive()
    assert [str(error) for error in failed] == ["some/model: its chat template fails: its worker was lost (killed by SIGKILL)"]
    assert time.process_time() - began < chat_template.LIMIT_S
    assert chat_template._RENDERER._process is None


def test_a_worker_does_not_run_code_of_the_folder_that_the_user_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit('foreign code')")
    monkeypatch.chdir(tmp_path)
    assert rendered("fine") == "fine"
