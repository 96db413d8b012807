"""Engine `openai` against a small real server that answers as the kinds of servers do: what is sent, what comes back, and the end."""

import math
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pipeline.engine import Completion, Request, Tokenizer
from pipeline.engines.openai.completions import Terms, answer_ids, prompt_of
from pipeline.engines.openai.engine import OpenAIEngine
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.errors import EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import chat_model, folder_of
from tests.support.served import DIGITS, KEY, PROMPT, THINK_CLOSE, TOKENIZER, after, answers, ask, first, opened, outcome, spec_of, talk
from tests.support.small_server import HOSTED, OPENAI_FIELDS, VLLM, Fault, Kind, edited, hang, raw, small_server, status

OTHER = str(folder_of("qwen3"))
"""A tokenizer of another model."""


def test_a_server_that_does_not_keep_to_max_tokens_is_cut_short() -> None:
    text = "So 5 pens. " * 20
    found = after(edited(lambda answer: first(answer).update(text=text, finish_reason="stop")), ask(max_tokens=10, logprobs=False), HOSTED)
    assert isinstance(found, Completion)
    ids = tuple(TOKENIZER.encode(text)[:10])
    assert [(each.ids, each.text, each.finish_reason) for each in found.candidates] == [(ids, TOKENIZER.decode(ids), "length")]


def test_an_option_that_is_not_named_has_no_probability() -> None:
    for kind, first_option in ((VLLM, -1.0), (HOSTED, -math.inf)):
        (choice,) = answers(kind, ask(max_tokens=1, option_ids=(DIGITS[0], DIGITS[2])))
        assert choice.option_logprobs == (first_option, -2.0)


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
    request = ask(temperature=0.6, n=2, seed=3, stop=("\n\n",), stop_ids=(THINK_CLOSE,), top_k=20, min_p=0.1)
    nested = {"reasoning": {"effort": "low", "budgets": [1, None, 2.5]}}
    body, engine = sent(VLLM, request, extra=nested)
    assert body.items() >= nested.items()
    assert (body["prompt"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (PROMPT, 20, 0.1, 1.0)
    assert (body["n"], body["seed"], body["stop"], body["stop_token_ids"]) == (2, 3, ["\n\n"], [THINK_CLOSE])
    assert {"prompts": "ids", "cannot": (), "server": "vllm", "answers": "model"}.items() <= engine.facts.items()
    body, _ = sent(VLLM, ask(max_tokens=1, option_ids=DIGITS))
    assert body["logprob_token_ids"] == body["allowed_token_ids"] == list(DIGITS)
    assert "seed" not in body
    assert sent(VLLM, ask(prompt_ids=PROMPT * 20, max_tokens=400), max_model_len=20 * len(PROMPT) + 7)[0]["max_tokens"] == 7


def test_any_other_server_is_sent_texts_and_openai_fields_only() -> None:
    body, engine = sent(HOSTED, ask(temperature=0.6, n=2, stop=("\n\n",), stop_ids=(THINK_CLOSE,)))
    assert body.keys() <= OPENAI_FIELDS
    assert (body["prompt"], body["stop"], body["logprobs"]) == (TOKENIZER.decode(PROMPT), ["\n\n"], 5)
    assert {"prompts": "text", "cannot": ("top_k", "min_p")}.items() <= engine.facts.items()
    assert sent(HOSTED, ask(stop_ids=(THINK_CLOSE,)))[0]["stop"] == ["</think>"]
    assert sent(VLLM, ask(), server="generic")[0]["prompt"] == TOKENIZER.decode(PROMPT)


def test_an_adapter_is_asked_for_by_its_served_name() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        for adapter in (None, "selection"):
            await engine.generate(ask(adapter=adapter))
        assert "the engine has no adapter 'other', but selection" in str(await outcome(engine, ask(adapter="other")))

    with small_server(VLLM, TOKENIZER) as server:
        server.adapters = {"tiny-selection": "tiny"}
        talk(spec_of(server, adapters={"selection": "tiny-selection"}), conversation)
        assert [body["model"] for body in server.bodies[-2:]] == ["tiny", "tiny-selection"]
        with pytest.raises(GraphError, match="does not serve 'tiny-selektion' as the adapter 'selection'; did you mean `tiny-selection`"):
            opened(spec_of(server, adapters={"selection": "tiny-selektion"}))


@pytest.mark.parametrize("name", ["qwq", "r1-distill-qwen", "tiny-target"])
def test_a_text_holds_the_control_tokens_of_its_ids_and_no_others(name: str) -> None:
    tokenizer: Tokenizer = chat_model(name)
    builder, terms = PromptBuilder(tokenizer), Terms(spec=OpenAISpec(model="m", base_url="http://a/v1"), tokenizer=tokenizer, ids=False)
    clean = builder.generation("Tom has 3 < 5 pens.")
    assert prompt_of(ask(prompt_ids=clean), terms) == (tokenizer.decode(clean), len(clean))
    for text, id_ in tokenizer.special_ids.items():
        if id_ in tokenizer.control_ids:
            with pytest.raises(RequestRefused, match="the prompt spells out a special token"):
                prompt_of(ask(prompt_ids=builder.generation(f"Tom {text} has")), terms)
        said = f"So {text}.</think>\n\nIt is </think> 5 {text}"
        ids = answer_ids(tokenizer, said)
        assert tokenizer.decode(ids) == said
        assert [each for each in ids if each in tokenizer.control_ids] == [tokenizer.special_ids["</think>"]]


# Keys and addresses.


def test_a_wrong_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_KEY", KEY)
    with small_server(VLLM, TOKENIZER, key="another") as server:
        for env, remedy in (("SMALL_KEY", "check the key in SMALL_KEY"), (None, "if it wants a key, set api_key_env")):
            with pytest.raises(GraphError, match=f"answered 401: .*; {remedy}") as caught:
                opened(spec_of(server, api_key_env=env))
            assert KEY not in "".join(traceback.format_exception(caught.value))
        monkeypatch.setenv("SMALL_KEY", "two words")
        with pytest.raises(GraphError, match=r"SMALL_KEY.* is not set, or is no key"):
            opened(spec_of(server, api_key_env="SMALL_KEY"))


def test_a_url_that_is_none_is_refused_and_no_password_repeated() -> None:
    for url, says in (
        ("http://user:canary@a/v1", "must be a plain URL, without a user"),
        ("127.0.0.1:8000/v1", "is not a URL such as http://127.0.0.1:8000/v1"),
        ("http://a/v1/chat/completions", "names an endpoint: leave out /chat/completions, so http://a/v1"),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            OpenAISpec(model="m", base_url=url)
        assert "canary" not in str(caught.value)


# What cannot start.


def at(fails: Mapping[str, Any]) -> Any:
    """Does something to the requests of some paths, by their ends."""

    def fault(handler: Any, reply: Any) -> None:
        next((each for end, each in fails.items() if handler.path.endswith(end)), handler.__class__.send)(handler, reply)

    return fault


@pytest.mark.parametrize(
    ("kind", "fails", "fields", "says"),
    [
        (VLLM, {}, {"model": "tinny"}, "does not serve 'tinny'; did you mean `tiny`?"),
        (HOSTED, {}, {"max_model_len": None}, "does not report the context length of 'tiny'; set max_model_len"),
        (VLLM, {}, {"base_url": "http://127.0.0.1:9/v1"}, "cannot be reached: .*; start it, or check base_url"),
        (HOSTED, {}, {"server": "vllm"}, "which `server: generic` would change: it answered 400: Unrecognized"),
        (VLLM, {"/completions": status(404)}, {}, "it answered 404: not now"),
        (VLLM, {"/models": status(503, "loading")}, {}, "answered 503: loading"),
        (VLLM, {"/models": hang}, {}, r"has not answered for 0\.5 s; start it, or check base_url"),
        (VLLM, {"": status(302, "", {"Location": "https://login.invalid/"})}, {}, "answered 302: .*; start it, or check base_url"),
        (replace(HOSTED, wraps=11), {}, {}, r"counts (\d+) tokens for a prompt of (\d+): the server wraps prompts in a chat template"),
        (replace(HOSTED, keeps=20), {}, {}, r"counts 20 tokens for a prompt of \d+: the server truncates prompts"),
        (VLLM, {}, {"tokenizer": OTHER}, "belongs to another prompt, or `tokenizer` does not match its model"),
    ],
)
def test_what_cannot_start_says_why_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, fails: Mapping[str, Any], fields: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr("pipeline.engines.openai.engine.ASK_S", 0.5)
    with small_server(kind, TOKENIZER) as server:
        server.always = at(fails)
        with pytest.raises(GraphError, match=says) as caught:
            opened(spec_of(server, **fields))
    assert str(caught.value).startswith("engine 'draft': ")
    assert "\n" not in str(caught.value)


def test_a_server_whose_log_probabilities_name_no_option_cannot_choose() -> None:
    with small_server(HOSTED, TOKENIZER) as server:
        server.always = edited(lambda answer: "choices" in answer and first(answer)["logprobs"].update(top_logprobs=[{"": -0.1}]))
        assert opened(spec_of(server)).facts["cannot"] == ("options", "logprobs", "top_k", "min_p")


def test_a_beginning_of_sequence_is_there_once_as_the_server_s_count_shows() -> None:
    for kind, text in [(HOSTED, TOKENIZER.decode(PROMPT)), (replace(HOSTED, bos=True), TOKENIZER.decode(PROMPT[1:]))]:
        assert sent(kind, ask())[0]["prompt"] == text


LINE = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="%d",num_cpu_blocks="None",num_gpu_blocks="%s"} 1.0\n'
MORE = LINE.replace("} 1.0", ',effective_attention_block_size="32",kv_cache_size_tokens="%s"} 1.0')


def test_the_context_is_the_one_that_both_allow_and_the_cache_that_of_all_engines_of_a_server() -> None:
    for card, stated, length in (({"max_model_len": 300}, 200, 200), ({}, 300, 300)):
        with small_server(replace(HOSTED, card=card, logprobs=False), TOKENIZER) as server:
            engine = opened(spec_of(server, max_model_len=stated))
        assert engine.max_model_len == length
        assert engine.facts["cannot"] == ("options", "logprobs", "top_k", "min_p"), "it has no log probabilities"
    with small_server(VLLM, TOKENIZER) as server:
        for server.metrics, *found in (
            (LINE % (0, "100") + LINE % (1, "50"), 16, 16 * 150),
            (MORE % (0, "100", "900") + MORE % (1, "100", "500"), 32, 1400),
            ("vllm:other 1\n", None, None),
            (LINE % (0, "None"), None, None),
        ):
            facts = opened(spec_of(server)).facts
            assert [facts.get("block_size"), facts.get("kv_cache_tokens")] == found


# A server that is away, and the end.


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (status(401, "who"), "answered 401: who; it has given no valid answer for reconnect_s=0.5"),
        (raw(b"<html>"), "is not JSON: .*; it has given no valid answer"),
        (status(500, "broken"), "answered 500: broken; it has given no valid answer"),
    ],
)
def test_a_server_that_answers_nobody_any_more_ends_the_engine(fault: Fault, says: str) -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        server.always = fault
        assert isinstance(await outcome(engine, ask()), EngineUnavailable | EngineDead)
        for _ in range(2):
            with pytest.raises(EngineDead, match=says):
                await engine.generate(ask())

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server, reconnect_s=0.5), conversation)


def test_calls_wait_for_a_server_that_is_restarted() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        server.stop()
        assert "broke the connection" in (said := str(await outcome(engine, ask()))) or "cannot be reached" in said
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(engine.generate, ask(str(number)))
            await anyio.wait_all_tasks_blocked()
            assert engine.statistics().requests == 0
            server.start()
        assert engine.statistics().requests == 5
        assert await engine.wait_answering() is False

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


def test_calls_that_fail_or_time_out_have_their_server_asked() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        before = len(server.bodies)
        server.faults.append(status(403, "not about that"))
        found = await outcome(engine, ask())
        assert (type(found), "403: not about that" in str(found)) == (RequestRefused, True), "it answers others"
        assert [body["max_tokens"] for body in server.bodies[before:]] == [60, 1]
        server.always = hang
        with anyio.move_on_after(0.2):
            await engine.generate(ask())
        with pytest.raises(EngineDead, match="has not answered"):
            await engine.generate(ask())

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server, timeout_s=0.2, reconnect_s=0.5), conversation)


def test_cancelling_closes_the_connection_and_closing_ends_what_waits_and_refuses_what_comes() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        died: list[Completion | PipelineError] = []

        async def expect_death() -> None:
            died.append(await outcome(engine, ask()))

        server.faults.extend([hang, hang])
        for closes in (False, True):
            before = len(server.bodies)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(expect_death)
                await anyio.to_thread.run_sync(server.wait_for, lambda seen, before=before: len(server.bodies) > before)
                await engine.aclose() if closes else tasks.cancel_scope.cancel()
            await anyio.to_thread.run_sync(server.wait_until_alone)
        await expect_death()
        await engine.aclose()
        assert [str(error) for error in died] == ["engine 'draft' died: it was closed"] * 2

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(GraphError, match=r'pip install "speculative-pipeline\[openai\]"'):
        answers(VLLM)
