"""What engine `openai` finds out about its servers before a run, and what it refuses."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pipeline.engine import Completion
from pipeline.engines.openai.completions import AGREEING, flaw_in_prompt_tokens
from pipeline.engines.openai.engine import OpenAIEngine, examine_openai
from pipeline.engines.openai.probe import CacheConfig, cache_config
from pipeline.engines.validate import is_another_model
from pipeline.errors import GraphError, PipelineError, RequestRefused
from pipeline.system.machine import look
from tests.support.chat_models import folder_of
from tests.support.served import PROMPT, TOKENIZER, answers, ask, opened, outcome, small_servers, spec_of, talk
from tests.support.small_server import HOSTED, LLAMA, SGLANG, VLLM, Handler, Kind, edited, hang, raw, small_server, status

OTHER = str(folder_of("qwen3"))
"""A tokenizer of another model."""

# What a server can do.


@pytest.mark.parametrize(
    ("kind", "cannot"),
    [
        (VLLM, ()),
        (replace(VLLM, logprobs=False), ("options", "logprobs")),
        (replace(VLLM, seeds=False), ("seeds",)),
        (SGLANG, ("scoring",)),
        (replace(LLAMA, hides=True), ("scoring", "marks")),
        (replace(HOSTED, logprobs=False, seeds=False), ("options", "logprobs", "scoring", "top_k", "min_p", "seeds")),
    ],
    ids=lambda each: "" if isinstance(each, Kind) else "-".join(each) or "nothing",
)
def test_what_a_server_cannot_do_is_found_out(kind: Kind, cannot: tuple[str, ...]) -> None:
    """It is not sent what it does not take."""
    with small_server(kind, TOKENIZER) as server:
        assert opened(spec_of(server)).facts["cannot"] == cannot
        assert ("seeds" in cannot) == ("seed" not in server.bodies[-1] and not kind.seeds)


def test_a_server_of_another_kind_than_the_file_says_is_refused_with_its_own_words() -> None:
    with small_server(HOSTED, TOKENIZER) as server:
        said = r"asked as a server of the kind 'vllm' \(it answered 400: Unrecognized .*\); `server: generic` asks for less"
        with pytest.raises(GraphError, match=said):
            opened(spec_of(server, server="vllm"))


@pytest.mark.parametrize(
    ("card", "spec", "length"),
    [
        ({"max_model_len": 300}, None, 300),
        ({"max_model_len": 300}, 200, 200),
        ({"context_length": 300, "max_model_len": -5}, None, 300),
        ({"max_model_len": 1e300, "meta": {"n_ctx_train": 300}}, None, 300),
        ({"meta": {"n_ctx_train": 300, "n_ctx": 100}, "owned_by": 5}, None, 100),
    ],
)
def test_the_context_length_is_what_server_and_spec_allow(card: dict[str, Any], spec: int | None, length: int) -> None:
    with small_server(replace(VLLM, card=card), TOKENIZER) as server:
        assert opened(spec_of(server, max_model_len=spec, server="vllm")).max_model_len == length


# What cannot start.


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (VLLM, {"model": "tinny"}, "does not serve 'tinny'; did you mean `tiny`?"),
        (HOSTED, {"max_model_len": None}, "does not report the context length of 'tiny'; set max_model_len"),
        (VLLM, {"tokenizer": "bundled:tiny-targe"}, "did you mean `tiny-target`?"),
        (VLLM, {"base_url": ()}, "base_url must name at least one server"),
        (VLLM, {"base_url": "127.0.0.1:8000/v1"}, "is not a URL such as http://127.0.0.1:8000/v1"),
        (VLLM, {"base_url": "http://127.0.0.1:9/v1"}, "cannot be reached: All connection attempts failed; start it, or check base_url"),
    ],
    ids=str,
)
def test_what_cannot_start_says_what_to_do(kind: Kind, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError) as caught:
        answers(kind, **fields)
    assert str(caught.value).startswith("engine 'draft': ")
    assert says in str(caught.value)


def at(fails: Mapping[str, Any]) -> Any:
    """Does something to the requests of some paths, by their ends."""

    def fault(handler: Any, reply: Any) -> None:
        next((each for end, each in fails.items() if handler.path.endswith(end)), handler.__class__.send)(handler, reply)

    return fault


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (
            {"/models": status(404), "/completions": status(404)},
            r"no list of models \(not now\), and the server rejects a completion .*; base_url usually ends",
        ),
        (
            {"/models": status(500), "/completions": status(500)},
            r"no list of models \(not now\), and the server rejects a completion with 'tiny' \(status 500\): not now$",
        ),
        ({"/completions": status(404)}, "has no /completions .*; a server with only chat completions cannot continue a partial reply"),
        ({"/models": status(503, "loading", {"Retry-After": "0.01"})}, r"returns no list of models \(loading\)"),
        ({"/completions": status(429, "later")}, r"answered 429: later; it has been busy for reconnect_s=0\.2$"),
        ({"/models": hang}, r"its servers did not say .* within startup_timeout_s=0\.5; increase it if"),
        ({"": status(302, "", {"Location": "https://login.invalid/"})}, "redirects to https://login.invalid/, which is not followed"),
        (
            {"/models": raw(b'{"data": [5, null, {"id": 5}, {"id": "b"}]}'), "/completions": status(404)},
            "does not serve 'tiny'; known are `b`",
        ),
        ({"/models": raw(b"[" * 100_000), "/completions": raw(b'{"choices": []}')}, "has 0 choices, not 1"),
        ({"": raw(b'{"data": [{"id": "other"}], "choices": []}')}, "does not serve 'tiny'; "),
    ],
    ids=range(10),
)
def test_a_server_that_is_none_is_one_sentence(fails: Mapping[str, Any], says: str) -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always, hangs = at(fails), hang in fails.values()
        with pytest.raises(GraphError, match=says) as caught:
            opened(spec_of(server, reconnect_s=60 if hangs else 0.2, startup_timeout_s=0.5 if hangs else 60))
    assert len(str(caught.value)) < 800


def test_a_server_that_is_loading_is_waited_for() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.faults.extend([status(503, headers={"Retry-After": "0.01"}), status(429, headers={"Retry-After": "0.01"})])
        assert opened(spec_of(server)).facts["cannot"] == ()


def test_a_model_that_is_not_listed_is_served_where_it_answers_and_no_other_does() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.unlisted = True
        assert opened(spec_of(server, server="vllm")).facts["cannot"] == ()
        with pytest.raises(GraphError, match=r"does not serve 'tinny'; "):
            opened(spec_of(server, model="tinny"))
        server.always = at({"/models": status(500)})
        assert opened(spec_of(server, server="vllm")).facts["cannot"] == ()


# Prompts arrive as they were sent.


@pytest.mark.parametrize(
    ("changes", "fields", "says"),
    [
        ({"wraps": 11}, {}, r"reports (\d+) tokens for a prompt of (\d+): it wraps prompts in a chat template"),
        ({"keeps": 200}, {}, r"reports 200 tokens for a prompt of 448: it truncates prompts"),
        ({"owned_by": "vllm", "ids": True}, {"tokenizer": OTHER}, r"`tokenizer` does not match its model"),
        ({}, {"tokenizer": OTHER}, r"reports (\d+) tokens for a prompt of (\d+): .* `tokenizer` does not match its model"),
        ({"bos": True}, {"adds_bos": False}, r"reports (\d+) tokens for a prompt of (\d+): it wraps .* or adds special tokens"),
        ({}, {"adds_bos": True}, r"reports (\d+) tokens for a prompt of (\d+): it truncates"),
    ],
    ids=["wrapped", "shortened", "ids of another tokenizer", "another tokenizer", "a BOS", "no BOS"],
)
def test_a_server_that_reads_something_else_is_refused_before_the_run(changes: dict[str, Any], fields: dict[str, Any], says: str) -> None:
    with small_server(replace(SGLANG, **changes), TOKENIZER) as server, pytest.raises(GraphError, match=says):
        opened(spec_of(server, **fields))


@pytest.mark.parametrize(
    ("kind", "adds_bos", "counted", "sent"),
    [
        (VLLM, None, "as sent", PROMPT),
        (replace(VLLM, bos=True), None, "as sent", PROMPT),
        (SGLANG, None, "as sent", TOKENIZER.decode(PROMPT)),
        (replace(LLAMA, bos=True), None, "as sent", TOKENIZER.decode(PROMPT[1:])),
        (replace(HOSTED, bos=True), True, "as sent", TOKENIZER.decode(PROMPT[1:])),
        (replace(HOSTED, counts=False), True, "not stated", TOKENIZER.decode(PROMPT[1:])),
    ],
)
def test_a_beginning_of_sequence_is_there_once(kind: Kind, adds_bos: bool | None, counted: str, sent: object) -> None:
    """As the server's count shows, or the file says."""
    with small_server(kind, TOKENIZER) as server:

        async def conversation(engine: OpenAIEngine) -> None:
            assert engine.facts["prompt_tokens"] == counted
            await engine.generate(ask())

        talk(spec_of(server, adds_bos=adds_bos), conversation)
        assert server.bodies[-1]["prompt"] == sent


@pytest.mark.slow
def test_where_nothing_is_stated_a_run_and_doctor_say_that_it_cannot_be_known() -> None:
    with small_server(replace(SGLANG, counts=False, bos=True), TOKENIZER) as server:
        said = "whether the server truncates prompts, or prepends a token (which `adds_bos` would state), cannot be determined"
        assert said in str(opened(spec_of(server)).facts["doubts"])
        assert "adds_bos" not in str(opened(spec_of(server, adds_bos=True)).facts)
        found = anyio.run(examine_openai, {"draft": spec_of(server)}, look())
    assert any("prompt tokens not stated" in finding.remedy for finding in found.findings)


@pytest.mark.parametrize("kind", [VLLM, SGLANG, LLAMA], ids=lambda kind: kind.owned_by)
@pytest.mark.parametrize("times", [1, 2])
def test_an_answer_to_another_prompt_fails_its_request_with_both_numbers(kind: Kind, times: int) -> None:
    """It is not asked for again; a server that counts the prompt once for each candidate is right."""
    found: list[Completion | PipelineError] = []

    async def conversation(engine: OpenAIEngine) -> None:
        count = len(PROMPT) * 2 if times == 2 else len(PROMPT) - 5
        server.faults.append(edited(lambda answer: answer["usage"].update(prompt_tokens=count)))
        found.append(await outcome(engine, ask(n=times, temperature=1.0)))

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server), conversation)
    if times == 2 and kind.many:
        assert isinstance(found[0], Completion)
    else:
        assert isinstance(found[0], RequestRefused)
        assert f"tokens for a prompt of {len(PROMPT)}: " in str(found[0])


@pytest.mark.parametrize(
    ("sent", "stated", "exact", "fine"), [(AGREEING, AGREEING + 1, False, True), (9, 8, False, False), (999, 998, True, False)]
)
def test_the_tolerance_is_one_for_all(sent: int, stated: int, exact: bool, fine: bool) -> None:
    assert (flaw_in_prompt_tokens(sent, stated, exact=exact) is None) is fine


# What servers state of themselves.

LINE = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="%d",num_cpu_blocks="None",num_gpu_blocks="%s"} 1.0\n'
OTHERS = '# TYPE vllm:cache_config_info gauge\nvllm:num_requests_running{engine="0",model_name="tiny"} 0.0\n'
MORE = LINE.replace("} 1.0", ',effective_attention_block_size="32",kv_cache_size_tokens="%s"} 1.0')


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (OTHERS + LINE % (0, "100") + LINE % (1, "50"), CacheConfig(16, 16 * 150)),
        (MORE % (0, "100", "900") + MORE % (1, "100", "500"), CacheConfig(32, 1400)),
        (MORE % (0, "100", "None"), CacheConfig(32, 3200)),
        *((odd, None) for odd in ("", OTHERS, LINE % (0, "None"), LINE % (0, "9") + LINE % (1, "0"), LINE.replace("16", "0") % (0, "9"))),
    ],
)
def test_the_size_of_a_cache_is_read_of_all_engines_of_a_server(metrics: str, found: CacheConfig | None) -> None:
    assert cache_config(metrics) == found


def test_a_server_that_answers_as_another_model_is_doubted() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = lambda handler, reply: (edited(named) if handler.command == "POST" else Handler.send)(handler, reply)
        [doubt] = opened(spec_of(server)).facts["doubts"]
    assert doubt == f"{server.base_url} answers as the model 'other' where 'tiny' is asked for"


def named(answer: dict[str, Any]) -> None:
    answer["model"] = "other"


@pytest.mark.slow
def test_caches_of_replicas_add_up_where_all_state_their_size() -> None:
    with ExitStack() as stack:
        one, other = small_servers(stack, 2)
        one.metrics = LINE % (0, "100")
        assert "kv_cache_tokens" not in opened(spec_of(one, other)).facts
        other.metrics = LINE % (0, "25")
        assert {"kv_cache_tokens": 2000, "block_size": 16}.items() <= opened(spec_of(one, other)).facts.items()


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
