"""What a server states of its prompts is held against what it was sent: before a run, and with every answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis import summary_tables
from pipeline.analysis.ledger import ledger
from pipeline.analysis.summary import summarize
from pipeline.cli.author.diagnosis import examine
from pipeline.engine import Fact, Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.stated import AGREEING, flaw_in_prompt_tokens
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import is_another_model
from pipeline.errors import GraphError, PipelineError, RequestRefused
from pipeline.export.otlp import export, to_file
from pipeline.machine import look
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.paths import ROOT
from tests.support.runs import rows, write_problems
from tests.support.small_server import HOSTED, LLAMA, SGLANG, VLLM, Handler, Kind, SmallServer, edited, small_server

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
PROMPT = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": "Tom has 3 pens."}]))
REQUEST = Request(request_id="r", prompt_ids=PROMPT, max_tokens=8)
TEXT = (SGLANG, LLAMA, HOSTED)


def spec_of(small: SmallServer, **fields: Any) -> OpenAISpec:
    return OpenAISpec(**{"model": "tiny", "base_url": small.base_url, "tokenizer": "bundled:tiny-target", "max_model_len": 512} | fields)


def opened(kind: Kind, **fields: Any) -> dict[str, Fact]:
    """The facts of an engine over such a server."""

    async def main(small: SmallServer) -> dict[str, Fact]:
        async with open_openai({"draft": spec_of(small, **fields)}) as engines:
            await engines["draft"].generate(REQUEST)
            return dict(engines["draft"].facts)

    with small_server(kind, TOKENIZER) as small:
        return anyio.run(main, small)


@pytest.mark.parametrize(
    ("changes", "fields", "says"),
    [
        ({"wraps": 11}, {}, r"reports (\d+) tokens for a prompt of (\d+): it wraps prompts in a chat template"),
        ({"keeps": 200}, {}, r"reports 200 tokens for a prompt of 448: it truncates prompts"),
        ({"owned_by": "vllm", "ids": True}, {"tokenizer": "bundled:wordy-target"}, r"`tokenizer` does not match its model"),
        ({}, {"tokenizer": "bundled:wordy-target"}, r"reports (\d+) tokens for a prompt of (\d+): .* `tokenizer` does not match its model"),
        ({"bos": True}, {"adds_bos": False}, r"reports (\d+) tokens for a prompt of (\d+): it wraps .* or adds special tokens"),
        ({}, {"adds_bos": True}, r"reports (\d+) tokens for a prompt of (\d+): it truncates"),
        ({"bos": True, "wraps": 11}, {"adds_bos": True}, r"reports (\d+) tokens for a prompt of (\d+): it wraps"),
    ],
    ids=["wrapped", "shortened", "ids of another tokenizer", "another tokenizer", "a BOS", "no BOS", "wrapped after a BOS"],
)
def test_a_server_that_reads_something_else_is_refused_before_the_run(changes: dict[str, Any], fields: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        opened(replace(SGLANG, **changes), **fields)


@pytest.mark.parametrize("kind", [VLLM, *TEXT], ids=lambda kind: kind.owned_by)
def test_a_server_that_reads_what_it_is_sent_is_none(kind: Kind) -> None:
    assert opened(kind)["prompt_tokens"] == "as sent"
    assert opened(replace(kind, bos=True))["prompt_tokens"] == "as sent"
    assert "doubts" not in opened(replace(kind, bos=True), adds_bos=kind != VLLM)


@pytest.mark.slow
def test_where_nothing_is_stated_a_run_and_doctor_say_that_it_cannot_be_known() -> None:
    silent = replace(SGLANG, counts=False, bos=True)
    facts = opened(silent)
    assert facts["prompt_tokens"] == "not stated"
    assert "whether the server truncates prompts, or prepends a token (which `adds_bos` would state), cannot be determined" in str(facts)
    assert "adds_bos" not in str(opened(silent, adds_bos=True))
    assert "adds_bos" not in str(opened(replace(VLLM, counts=False))["doubts"])
    with small_server(silent, TOKENIZER) as small:
        found = anyio.run(examine, {"draft": spec_of(small)}, look())["draft"]
        assert found is not None
        assert any("prompt tokens not stated" in finding.remedy for finding in found.findings)


@pytest.mark.parametrize(("counts", "bos", "sent"), [(True, True, PROMPT[1:]), (True, False, PROMPT), (False, None, PROMPT[1:])])
def test_a_beginning_of_sequence_is_there_once(counts: bool, bos: bool | None, sent: list[int]) -> None:
    """As the server's count shows, or the file says."""

    async def main(small: SmallServer) -> None:
        async with open_openai({"draft": spec_of(small, adds_bos=None if counts else True)}) as engines:
            await engines["draft"].generate(REQUEST)

    with small_server(replace(LLAMA, takes_ids=False, counts=counts, bos=bool(bos)), TOKENIZER) as small:
        anyio.run(main, small)
        assert small.bodies[-1]["prompt"] == TOKENIZER.decode(sent)


@pytest.mark.parametrize("kind", [VLLM, *TEXT], ids=lambda kind: kind.owned_by)
@pytest.mark.parametrize("times", [1, 2])
def test_an_answer_to_another_prompt_fails_its_request_with_both_numbers(kind: Kind, times: int) -> None:
    """It is not asked for again; a server that counts the prompt once for each candidate is right."""

    async def main(small: SmallServer) -> PipelineError | None:
        async with open_openai({"draft": spec_of(small)}) as engines:
            count = len(PROMPT) * 2 if times == 2 else len(PROMPT) - 5
            small.faults.append(edited(lambda answer: answer["usage"].update(prompt_tokens=count)))
            try:
                await engines["draft"].generate(Request(request_id="r", prompt_ids=PROMPT, max_tokens=8, n=times, temperature=1.0))
            except PipelineError as error:
                return error
            return None

    with small_server(kind, TOKENIZER) as small:
        error = anyio.run(main, small)
    if times == 2 and kind.many:
        assert error is None
    else:
        assert isinstance(error, RequestRefused)
        assert f"tokens for a prompt of {len(PROMPT)}: " in str(error)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.booleans())
def test_the_tolerance_is_one_for_all(sent: int, stated: int, exact: bool) -> None:
    flaw = flaw_in_prompt_tokens(sent, stated, exact=exact)
    assert (flaw is None) == (abs(stated - sent) <= (0 if exact else sent // AGREEING))
    assert flaw is None or (f"{sent:,}" in flaw and f"{stated:,}" in flaw)


@pytest.mark.parametrize(
    ("asked", "answered", "another"),
    [
        *((asked, answered, False) for asked, answered in [("a", None), ("a", "a"), ("A", "a"), ("gpt-4o", "gpt-4o-2024-08-06")]),
        *((asked, answered, False) for asked, answered in [("openai/gpt-4o", "gpt-4o"), ("target", "/models/target"), ("a", "a:latest")]),
        *((asked, answered, False) for asked, answered in [("mistral-large-latest", "mistral-large-2411"), ("a/b:free", "a/b")]),
        *((asked, answered, True) for asked, answered in [("gpt-4o", "gpt-4o-mini"), ("gpt-4o-mini", "gpt-4o"), ("qwen3:8b", "qwen3:4b")]),
        *((asked, answered, True) for asked, answered in [("a/x", "b/x"), ("target", "draft"), ("qwen2.5-7b", "qwen2.5-72b")]),
    ],
)
def test_names_of_models(asked: str, answered: str | None, another: bool) -> None:
    assert is_another_model(asked, answered) is another


@pytest.mark.slow
@pytest.mark.parametrize("states", [True, False])
def test_what_is_not_stated_is_null_in_every_table(tmp_path: Path, states: bool) -> None:
    """Of the cache, as of a vLLM server without --enable-prompt-tokens-details; another model than asked for is named once."""

    def silent(answer: dict[str, Any]) -> None:
        answer |= {"model": "other" if states else None}
        if not states:
            answer["usage"]["prompt_tokens_details"] = None

    with small_server(VLLM, TOKENIZER) as small:
        small.always = lambda handler, reply: (edited(silent) if handler.command == "POST" else Handler.send)(handler, reply)
        engines = tmp_path / "engines.yaml"
        engines.write_text(f"target: {{backend: openai, model: tiny, base_url: '{small.base_url}', tokenizer: 'bundled:tiny-target'}}\n")
        told: list[str] = []
        options = RunOptions(graph=ROOT / "graphs/target.yaml", engines=engines, input=write_problems(tmp_path, 3), output=tmp_path / "run")
        result = run(options, Observer(tell=told.append))
    assert result.exit_code == 0
    calls = rows(result, "calls")
    assert {row["cached_input_tokens"] for row in calls} == {3 if states else None}
    assert {row["recomputed_input_tokens"] for row in calls} <= ({0} if states else {None})
    assert {row["response_model"] for row in calls} == {"other" if states else None}
    assert [sentence for sentence in told if "'other' where 'tiny' is asked for" in sentence] == told[-2:] * states
    target = summarize(tmp_path / "run").engines["target"]
    assert (target.cached_input_tokens, target.answered_by) == ((9, {"other": 3}) if states else (None, {}))
    assert summary_tables.engines(summarize(tmp_path / "run")).rows[0][3] == (f"{9 / target.input_tokens:.1%}" if states else "-")
    assert result.run.sessions[-1].engine_statistics["target"].cached_input_tokens == (9 if states else None)
    tokens = ledger(tmp_path / "run").engines["target"]
    assert (tokens.input["unstated"] == target.input_tokens) is not states
    export(tmp_path / "run", to_file(tmp_path / "spans.jsonl"))
    spans = (tmp_path / "spans.jsonl").read_text()
    assert ("gen_ai.usage.cache_read.input_tokens" in spans, "gen_ai.response.model" in spans) == (states, states)
