"""Runs with chat templates and tokenizers that fail: one sentence before a chain starts, and an interrupt that is heard."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from pipeline.engines.tokenizer import HFTokenizer
from tests.support import small_server
from tests.support.chat_models import MODELS, chat_model, folder_of, write_config
from tests.support.commands import pipeline
from tests.support.paths import ROOT, TEST_SET

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module", autouse=True)
def loaded() -> HFTokenizer:
    """Loaded on behalf of all tests."""
    return chat_model("qwq")


@contextmanager
def arguments(folder: Path, template: str, problems: Path = TEST_SET) -> Iterator[list[str]]:
    """The arguments of a run whose model, behind a server, has the tokenizer of QwQ and another chat template."""
    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_bytes((folder_of("qwq") / "tokenizer.json").read_bytes())
    write_config(folder, template, eos_token="<|im_end|>")
    with small_server.small_server(small_server.VLLM, chat_model("qwq")) as server:
        engine = {"backend": "openai", "model": "tiny", "tokenizer": str(folder), "base_url": server.base_url}
        (folder / "engines.yaml").write_text(json.dumps({"target": engine}))
        options = ["--engines", str(folder / "engines.yaml"), "--limit", "2", "--output", str(folder / "out")]
        yield ["run", str(ROOT / "graphs/target.yaml"), "--input", str(problems), *options]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "what"),
    [
        (ENDLESS, "its chat template fails: it runs for more than 2 s"),
        ("{{ raise_exception('no') }}", "its chat template fails: no"),
        ("You are good.", "its chat template: omits a message of the chat"),
        (
            "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
            "its chat template: shows a message of the chat 2 times, not once",
        ),
    ],
)
def test_a_template_that_fails_is_one_sentence_and_nothing_starts(tmp_path: Path, template: str, what: str) -> None:
    with arguments(tmp_path, template) as words:
        done = pipeline(*words)
    assert done.returncode == 2
    assert "engine 'target'" in done.stderr
    assert done.stderr.strip().endswith(what)
    assert not (tmp_path / "out" / "run.json").exists()


def runs_over(folder: Path, pattern: str) -> None:
    """Leave the tokenizer of QwQ in `folder`, with a regex that needs for ever for some texts."""
    tokenizer = Tokenizer.from_file(str(folder_of("qwq") / "tokenizer.json"))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.slow
def test_a_problem_that_the_tokenizer_fails_on_fails_alone(tmp_path: Path) -> None:
    runs_over(tmp_path, r"(a|aa)+(?=b)")
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": text}) + "\n" for text in ("a" * 99 + "c", "Tom has 3 pens.")))
    with arguments(tmp_path, MODELS["qwq"].template, problems) as words:
        done = pipeline(*words)
    chains = {row["input_row"]: row for row in pq.read_table(tmp_path / "out" / "chains").to_pylist()}
    assert done.returncode == 3
    assert (chains[1]["stop_reason"], chains[1]["error_type"]) == ("error", "RequestRefused")
    assert chains[1]["error_message"].startswith(f"the tokenizer of {tmp_path} fails: ")
    assert chains[2]["stop_reason"] != "error"
