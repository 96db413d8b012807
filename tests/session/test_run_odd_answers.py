"""Whole runs on servers of which every few answers are odd: they end as other runs do, and hold no number that cannot be true."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.analysis.summary import summarize
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.odd_replies import DEEP
from tests.support.paths import ROOT, TEST_SET
from tests.support.small_server import VLLM, Fault, Handler, Reply, cut, edited, raw, small_server, status

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
EVERY = 6
"""One answer of as many is odd."""


def counts(**numbers: int) -> Fault:
    return edited(lambda answer: answer["usage"].update(numbers))


def choice(**fields: Any) -> Fault:
    return edited(lambda answer: answer["choices"][0].update(fields))


ODD: list[Fault] = [
    counts(prompt_tokens=10**30, completion_tokens=10**30),
    raw(b"[" * DEEP),
    counts(prompt_tokens=1 << 62, completion_tokens=1 << 62),
    raw(b"\xff\xfe"),
    counts(prompt_tokens=-100, completion_tokens=-(10**6)),
    status(500, headers={"Content-Type": "text/html; charset=hex"}),
    raw(b'{"choices": [{"text": "", "token_ids": [' + b"9" * 5000 + b"]}]}"),
    status(429, headers={"Retry-After": "Sun, 06 Nov 2044 08:49:37 +99999999999999999999"}),
    choice(token_ids=[1 << 30]),
    lambda handler, reply: handler.send((307, {"Location": "http://127.0.0.2:9/v1/completions"}, b"")),
    choice(logprobs={"token_logprobs": [1e308] * 9, "top_logprobs": [{"a": 1e308}]}),
    lambda handler, reply: handler.send((200, {"Content-Encoding": "gzip"}, reply[2])),
    counts(completion_tokens=10**12),
    cut,
]


class Sometimes:
    """Makes every few answers odd, each in another way than the one before."""

    def __init__(self) -> None:
        self.answers = self.odd = 0

    def __call__(self, handler: Handler, reply: Reply) -> None:
        if handler.command == "GET":
            handler.send(reply)
            return
        self.answers += 1
        if self.answers % EVERY:
            handler.send(reply)
        else:
            self.odd += 1
            ODD[self.odd % len(ODD)](handler, reply)


@pytest.mark.slow
def test_a_run_goes_on_whatever_some_answers_are(tmp_path: Path) -> None:
    with small_server(VLLM, TOKENIZER) as one, small_server(VLLM, TOKENIZER) as other:
        urls = f"[{one.base_url}, {other.base_url}]"
        engine = f"{{backend: openai, model: tiny, base_url: {urls}, tokenizer: 'bundled:tiny-target'}}"
        (tmp_path / "engines.yaml").write_text(f"draft: &one {engine}\ntarget: *one\n")
        one.always = other.always = sometimes = Sometimes()
        for server in (one, other):
            server.faults.extend([lambda handler, reply: handler.send(reply)] * 6)  # what it can do is asked in peace
        options = RunOptions(
            graph=ROOT / "graphs/speccot.yaml", engines=tmp_path / "engines.yaml", input=TEST_SET, limit=16, output=tmp_path / "run"
        )
        result = run(options)
    assert (result.exit_code, result.done, result.error) == (0, 16, None)
    assert sometimes.odd > len(ODD)
    calls = pq.read_table(tmp_path / "run/calls").to_pylist()
    for row in calls:
        assert 0 <= (row["cached_input_tokens"] or 0) <= row["input_tokens"] <= 512
        assert 0 <= row["output_tokens"] <= row["choice_count"] * row["max_tokens"]
    assert len({row["error_message"] for row in calls if row["error_type"]}) >= 6
    summary = summarize(tmp_path / "run")
    assert all(0 <= engine.output_tokens < 10**6 for engine in summary.engines.values())
