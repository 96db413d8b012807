"""Engine `openai` against a small real server that answers as the kinds of servers do: what is sent, what comes back, keys, and the end."""

import logging
import math
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from pipeline.engine import Candidate, Completion, Request
from pipeline.engines.openai.engine import OpenAIEngine
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.errors import BadCompletion, GraphError, PipelineError, RequestRefused
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT
from tests.support.served import DIGITS, KEY, KINDS, PROMPT, THINK_CLOSE, TOKENIZER, after, answers, ask, opened, outcome, spec_of, talk
from tests.support.small_server import (
    HOSTED,
    LLAMA,
    OPENAI_FIELDS,
    SGLANG,
    VLLM,
    Kind,
    cut,
    edited,
    hang,
    small_server,
    status,
    story,
)


def written(draw: int = 0) -> str:
    return story(PROMPT, draw)


def end(candidate: Candidate) -> tuple[str, str, str | int | None]:
    return candidate.text, candidate.finish_reason, candidate.stop_reason


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


# What comes back, whatever the server.


def test_every_kind_of_server_keeps_the_contract_of_stops(kind: Kind) -> None:
    step, thought, answer, short = answers(
        kind, ask(stop=("\n\n",), stop_ids=(THINK_CLOSE,)), ask(stop_ids=(THINK_CLOSE,)), ask(), ask(max_tokens=4)
    )
    text = written().removesuffix("<|end|>")
    assert end(step.candidates[0]) == (text[: text.index("\n\n") + 2], "stop", "\n\n")
    assert end(thought.candidates[0]) == (text[: text.index("</think>") + 8], "stop", THINK_CLOSE)
    assert end(answer.candidates[0]) == (text, "stop", None)
    assert end(short.candidates[0]) == (TOKENIZER.decode(TOKENIZER.encode(text)[:4]), "length", None)
    for completion in (step, thought, answer, short):
        (candidate,) = completion.candidates
        assert TOKENIZER.decode(candidate.ids) == candidate.text
        assert candidate.cumulative_logprob == -0.5 * completion.usage.output_tokens
        assert (completion.usage.input_tokens, completion.usage.cached_input_tokens) == (len(PROMPT), 3)
    assert answer.usage.output_tokens == len(answer.candidates[0].ids) + 1


def test_candidates_draw_from_seed_and_index(kind: Kind) -> None:
    sampled = {"temperature": 0.8, "seed": 7}
    two, four, greedy, high = answers(
        kind, ask(n=2, **sampled), ask(n=4, **sampled), ask(n=3), ask(n=3, temperature=0.8, seed=(1 << 63) - 1)
    )
    texts = [candidate.text for candidate in four.candidates]
    assert texts == [written(7 + index).removesuffix("<|end|>") for index in range(4)]
    assert [candidate.text for candidate in two.candidates] == texts[:2]
    assert two.usage.input_tokens == four.usage.input_tokens == len(PROMPT)
    assert four.usage.output_tokens == sum(len(candidate.ids) + 1 for candidate in four.candidates)
    assert [candidate.text for candidate in greedy.candidates] == [written().removesuffix("<|end|>")] * 3
    assert len({candidate.text for candidate in high.candidates}) == 3


def test_options_are_read_with_what_the_server_gives(kind: Kind) -> None:
    (choice,) = answers(kind, ask(max_tokens=1, option_ids=DIGITS[1:4]))
    assert choice.option_logprobs == (-1.0, -2.0, -3.0)
    (candidate,) = choice.candidates
    assert (candidate.ids, candidate.text, candidate.cumulative_logprob) == ((DIGITS[1],), "1", -1.0)
    assert choice.usage.output_tokens == 1


@pytest.mark.parametrize("kind", [replace(VLLM, exact=False), SGLANG, LLAMA, HOSTED], ids=lambda kind: kind.owned_by)
def test_an_option_that_was_not_seen_has_no_probability(kind: Kind) -> None:
    some, none = answers(kind, ask(max_tokens=1, option_ids=(DIGITS[0], DIGITS[2])), ask(max_tokens=1, option_ids=(DIGITS[0], 300)))
    assert some.option_logprobs == (-math.inf, -2.0)
    assert some.candidates[0].ids == (DIGITS[2],)
    assert none.option_logprobs == (-math.inf, -math.inf)


def test_tokens_of_a_prompt_are_scored_where_the_server_can() -> None:
    request = ask(prompt_ids=PROMPT[:-3], max_tokens=1, scored_ids=tuple(PROMPT[-3:]))
    (scored,) = answers(VLLM, request)
    assert (scored.candidates, scored.scored_logprobs, scored.usage.output_tokens) == ((), (-0.25,) * 3, 0)
    with pytest.raises(RequestRefused, match="returns no log probabilities of a prompt"):
        answers(SGLANG, request)


def test_what_token_level_speculation_wrote_after_a_stop_is_cut() -> None:
    def overshoot(answer: dict[str, Any]) -> None:
        (choice,) = answer["choices"]
        choice["token_ids"] += TOKENIZER.encode("Then")
        choice["logprobs"]["token_logprobs"] += [-9.0]

    completion = after(edited(overshoot), ask(stop=("\n\n",)))
    assert isinstance(completion, Completion)
    (candidate,) = completion.candidates
    assert candidate.text.endswith(" pens.\n\n")
    assert candidate.cumulative_logprob == -0.5 * len(candidate.ids)


@pytest.mark.slow
def test_a_server_that_does_not_keep_to_max_tokens_is_cut_short() -> None:
    text = "So 5 pens. " * 1000
    found = after(edited(lambda answer: first(answer).update(text=text, finish_reason="stop")), kind=HOSTED)
    assert isinstance(found, Completion)
    ids = tuple(TOKENIZER.encode(text)[:60])
    assert [(each.ids, each.text, each.finish_reason) for each in found.candidates] == [(ids, TOKENIZER.decode(ids), "length")]


def first(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]


# What is sent.


def sent(kind: Kind, request: Request, **fields: Any) -> tuple[dict[str, Any], OpenAIEngine]:
    """The body of `request` at a server of that kind, and the engine."""
    found: list[Any] = []

    async def conversation(engine: OpenAIEngine) -> None:
        await engine.generate(request)
        found.extend([server.bodies[-1], engine])

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server, **fields), conversation)
    return found[0], found[1]


def test_vllm_is_sent_ids_and_values_that_leave_nothing_to_the_models_own_defaults() -> None:
    body, engine = sent(VLLM, ask(temperature=0.6, n=2, seed=3, stop=("\n\n",), stop_ids=(THINK_CLOSE,), priority=5, top_k=20, min_p=0.1))
    assert (body["prompt"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (PROMPT, 20, 0.1, 1.0)
    assert (body["n"], body["seed"], body["stop"], body["stop_token_ids"], body["priority"]) == (2, 3, ["\n\n"], [THINK_CLOSE], 5)
    stated = {"prompts": "ids", "outputs": "ids", "options": "exact", "stops": "reported by the server", "replicas": 1, "cannot": ()}
    assert (stated | {"server": "vllm", "server_version": "0.32.0", "answers": "model"}).items() <= engine.facts.items()
    body, _ = sent(VLLM, ask(max_tokens=1, option_ids=DIGITS))
    assert body["logprob_token_ids"] == body["allowed_token_ids"] == list(DIGITS)
    assert "seed" not in body


@pytest.mark.slow
def test_a_hosted_server_is_sent_openai_fields_only() -> None:
    body, engine = sent(HOSTED, ask(temperature=0.6, n=2, stop=("\n\n",), stop_ids=(THINK_CLOSE,)))
    assert body.keys() <= OPENAI_FIELDS
    assert (body["prompt"], body["stop"], body["logprobs"]) == (TOKENIZER.decode(PROMPT), ["\n\n"], 5)
    assert {"prompts": "text", "options": "among the top 5 tokens"}.items() <= engine.facts.items()
    assert str(engine.facts["stops"]).startswith("assumed: ")
    assert sent(HOSTED, ask(stop_ids=(THINK_CLOSE,)))[0]["stop"] == ["</think>"]
    assert "stop" not in sent(HOSTED, ask())[0]


@pytest.mark.slow
def test_other_servers_are_sent_what_they_need() -> None:
    assert sent(SGLANG, ask(stop=("\n\n",), stop_ids=(THINK_CLOSE,)))[0]["stop"] == ["\n\n", "</think>"]  # it says which stop it was
    body, engine = sent(LLAMA, ask(temperature=0.6, n=3, seed=1 << 40))
    assert ("n" in body, engine.facts["candidates"]) == (False, "a request each")
    assert sent(VLLM, ask(prompt_ids=PROMPT * 20, max_tokens=400), max_model_len=20 * len(PROMPT) + 7)[0]["max_tokens"] == 7
    body, engine = sent(VLLM, ask(), server="generic")
    assert (body["prompt"], engine.facts["outputs"]) == (TOKENIZER.decode(PROMPT), "text, encoded here")


def test_further_fields_go_with_every_request_and_those_that_a_request_has_are_refused() -> None:
    nested = {"reasoning": {"effort": "low", "budgets": [1, None, 2.5]}}
    with small_server(VLLM, TOKENIZER) as server:
        opened(spec_of(server, extra=nested))
        assert all(body.items() >= nested.items() for body in server.bodies)
    for extra, said in [
        ({"seed": 1}, "extra must not hold `seed`: each request has its own"),
        ({"chat_template_kwargs": {}}, "the template is rendered here"),
        ({"x": {"y": [float("nan")]}}, r"extra\.x\.y\[0\] is nan"),
        ({"x": {1: 2}}, "extra.x has the key 1"),
    ]:
        with pytest.raises(ValueError, match=said):
            OpenAISpec(model="m", base_url="http://127.0.0.1:1/v1", extra=extra)


def test_an_adapter_is_asked_for_by_its_served_name() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        for adapter in (None, "selection"):
            await engine.generate(ask(adapter=adapter))
        refused = await outcome(engine, ask(adapter="other"))
        assert "the engine has no adapter 'other', but selection" in str(refused)

    with small_server(VLLM, TOKENIZER) as server:
        server.adapters = {"tiny-selection": "tiny", "other-selection": "huge"}
        talk(spec_of(server, adapters={"selection": "tiny-selection"}), conversation)
        assert [body["model"] for body in server.bodies[-2:]] == ["tiny", "tiny-selection"]
        for name, said in [
            ("tiny-selektion", "does not serve 'tiny-selektion' as the adapter 'selection'; did you mean `tiny-selection`"),
            ("other-selection", "serves 'other-selection', configured as the adapter 'selection' of 'tiny', as an adapter of 'huge'"),
        ]:
            with pytest.raises(GraphError, match=said):
                opened(spec_of(server, adapters={"selection": name}))


# Keys.


def test_a_key_goes_into_a_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SMALL_LOGIN", KEY + "\n")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv("OPENAI_ORG_ID", "another")
    said: list[str] = []

    async def conversation(engine: OpenAIEngine) -> None:
        said.extend([repr(engine.facts), repr(engine)])
        for fault in (
            status(400, f"your key {KEY} is odd"),
            status(500, f"Bearer {KEY}"),
            cut,
        ):
            server.faults.append(fault)
            error = await outcome(engine, ask())
            assert isinstance(error, PipelineError)
            said.extend([repr(error), repr(vars(error)), repr(error.__context__), *traceback.format_exception(error)])

    with small_server(VLLM, TOKENIZER, key=KEY) as server:
        spec = spec_of(server, api_key_env="SMALL_LOGIN", server="vllm")
        talk(spec, conversation)
        assert all(seen.headers["Authorization"] == f"Bearer {KEY}" for seen in server.seen)
        assert not any("OpenAI-Organization" in seen.headers for seen in server.seen)
    assert not [text for text in [*said, repr(spec), caplog.text] if KEY in text]


@pytest.mark.parametrize(("env", "remedy"), [("SMALL_KEY", "does not accept the key in SMALL_KEY"), (None, "requires a key: set")])
def test_a_wrong_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch, env: str | None, remedy: str) -> None:
    monkeypatch.setenv("SMALL_KEY", KEY)
    with small_server(VLLM, TOKENIZER, key="another") as server, pytest.raises(GraphError, match=remedy) as caught:
        opened(spec_of(server, api_key_env=env))
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert env or "Authorization" not in server.seen[0].headers


def test_a_key_in_place_of_its_variables_name_is_refused_and_not_repeated(tmp_path: Path) -> None:
    engine = f"{{backend: openai, model: tiny, base_url: 'http://127.0.0.1:9/v1', api_key_env: '{KEY}'}}"
    (tmp_path / "engines.yaml").write_text(f"draft: &one {engine}\ntarget: *one\n")
    with pytest.raises(GraphError, match="is the name of the environment variable that holds the key, such as OPENAI_API_KEY") as caught:
        load_plan(ROOT / "graphs/speccot.yaml", tmp_path / "engines.yaml")
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("value", "says"), [("  \n", "is not set or is empty"), ("two words", "is not a valid key"), ("schlüssel", "is not")]
)
def test_a_variable_that_holds_no_key_is_named(monkeypatch: pytest.MonkeyPatch, value: str, says: str) -> None:
    monkeypatch.setenv("SMALL_KEY", value)
    with pytest.raises(GraphError, match=f"SMALL_KEY.* {says}"):
        answers(VLLM, api_key_env="SMALL_KEY")


@pytest.mark.parametrize("url", ["http://user:canary@127.0.0.1:9/v1", "http://canary@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key=canary"])
def test_a_url_that_holds_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="base_url must be a plain URL, without a user, a password or a query") as caught:
        OpenAISpec(model="m", base_url=("http://127.0.0.1:8/v1", url))
    assert "canary" not in str(caught.value)


# Sizes, and the end.


def test_an_answer_that_never_ends_is_dropped() -> None:
    def flood(handler: Any, reply: Any) -> None:
        handler.send((200, {"Content-Length": str(1 << 40)}, b""))
        with suppress(OSError):
            while True:
                handler.wfile.write(b"x" * (64 << 10))

    found = after(flood)
    assert type(found) is BadCompletion
    assert "its answer is longer than 1,0" in str(found)


def test_cancelling_closes_the_connection() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        server.faults.append(hang)
        before = len(server.bodies)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, ask())
            await anyio.to_thread.run_sync(server.wait_for, lambda seen: len(server.bodies) > before)
            assert (engine.statistics().running, engine.statistics().waiting) == (1, 0)
            tasks.cancel_scope.cancel()
        assert engine.statistics().running == 0
        await anyio.to_thread.run_sync(server.wait_until_alone)

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


def test_closing_ends_what_waits_and_refuses_what_comes() -> None:
    died: list[Completion | PipelineError] = []

    async def expect_death(engine: OpenAIEngine) -> None:
        died.append(await outcome(engine, ask()))

    async def conversation(engine: OpenAIEngine) -> None:
        server.faults.append(hang)
        before = len(server.bodies)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_death, engine)
            await anyio.to_thread.run_sync(server.wait_for, lambda seen: len(server.bodies) > before)
            await engine.aclose()
        await expect_death(engine)
        await engine.aclose()

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)
    assert [str(error) for error in died] == ["engine 'draft' died: it was closed"] * 2


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(GraphError, match=r'pip install "speculative-pipeline\[openai\]"'):
        answers(VLLM)
