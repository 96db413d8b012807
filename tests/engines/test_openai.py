"""Engine `openai` against a small real server that answers, and fails, as the kinds of servers do."""

import gzip
import logging
import math
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet
import pytest

from pipeline.engine import Candidate, Completion, Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.engine import OpenAIEngine
from pipeline.engines.openai.request import Capabilities, shared_capabilities
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import BadCompletion, ContextOverflow, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused
from pipeline.session.preflight import load_plan
from tests.support.paths import ROOT
from tests.support.small_server import (
    HOSTED,
    LLAMA,
    OLD_VLLM,
    OPENAI_FIELDS,
    SGLANG,
    VLLM,
    WAIT_S,
    Fault,
    Kind,
    SmallServer,
    cut,
    edited,
    hang,
    raw,
    small_server,
    status,
    story,
)

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
PROMPT = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": "Tom has 3 pens and buys 2. How many?"}]))
THINK_CLOSE = TOKENIZER.special_ids["</think>"]
DIGITS = tuple(TOKENIZER.encode(digit)[-1] for digit in "0123456789")
KINDS = {"vllm": VLLM, "old-vllm": OLD_VLLM, "sglang": SGLANG, "llama": LLAMA, "hosted": HOSTED}
CANARY = "sk-canary/7f3a+9"

Ask = Callable[[OpenAIEngine], Awaitable[None]]


def ask(**fields: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": PROMPT, "max_tokens": 60, "logprobs": True} | fields)


def spec_of(*servers: SmallServer, **fields: Any) -> OpenAISpec:
    urls = tuple(server.base_url for server in servers)
    defaults = {"model": "tiny", "base_url": urls, "tokenizer": "bundled:tiny-target", "max_model_len": 512}
    return OpenAISpec(**defaults | fields)


def talk(spec: OpenAISpec, conversation: Ask) -> None:
    """Open an engine over servers and talk to it; nothing takes longer than `WAIT_S`."""

    async def main() -> None:
        with anyio.fail_after(WAIT_S):
            async with open_openai({"draft": spec}) as engines:
                await conversation(engines["draft"])

    anyio.run(main)


def answers(kind: Kind, *requests: Request, **fields: Any) -> list[Completion]:
    """What an engine over one server of that kind answers."""
    given: list[Completion] = []

    async def conversation(engine: OpenAIEngine) -> None:
        given.extend([await engine.generate(request) for request in requests])

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server, **fields), conversation)
    return given


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
        kind,
        ask(stop=("\n\n",), stop_ids=(THINK_CLOSE,)),
        ask(stop_ids=(THINK_CLOSE,)),
        ask(),
        ask(max_tokens=4),
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


def test_a_step_that_closes_the_thought_ends_there_whatever_the_server(kind: Kind) -> None:
    given: list[Completion] = []

    async def conversation(engine: OpenAIEngine) -> None:
        given.append(await engine.generate(ask(stop=("\n\n",), stop_ids=(THINK_CLOSE,))))

    with small_server(kind, TOKENIZER) as server:
        server.script = lambda prompt, draw: "5.</think>\n\nThe answer is 5.<|end|>"
        talk(spec_of(server), conversation)
    assert end(given[0].candidates[0]) == ("5.</think>", "stop", THINK_CLOSE)


def test_candidates_draw_from_seed_and_index(kind: Kind) -> None:
    two, four, greedy = answers(kind, ask(n=2, temperature=0.8, seed=7), ask(n=4, temperature=0.8, seed=7), ask(n=3))
    texts = [candidate.text for candidate in four.candidates]
    assert texts == [written(7 + index).removesuffix("<|end|>") for index in range(4)]
    assert [candidate.text for candidate in two.candidates] == texts[:2]
    assert two.usage.input_tokens == four.usage.input_tokens == len(PROMPT)
    assert four.usage.output_tokens == sum(len(candidate.ids) + 1 for candidate in four.candidates)
    assert [candidate.text for candidate in greedy.candidates] == [written().removesuffix("<|end|>")] * 3


def test_seeds_near_the_largest_do_not_overflow(kind: Kind) -> None:
    (high,) = answers(kind, ask(n=3, temperature=0.8, seed=(1 << 63) - 1))
    assert len({candidate.text for candidate in high.candidates}) == 3


def test_options_are_read_with_what_the_server_gives(kind: Kind) -> None:
    (choice,) = answers(kind, ask(max_tokens=1, option_ids=DIGITS[1:4]))
    assert choice.option_logprobs == (-1.0, -2.0, -3.0)
    (candidate,) = choice.candidates
    assert (candidate.ids, candidate.text, candidate.cumulative_logprob) == ((DIGITS[1],), "1", -1.0)
    assert choice.usage.output_tokens == 1


@pytest.mark.parametrize("kind", [OLD_VLLM, SGLANG, LLAMA, HOSTED], ids=lambda kind: kind.owned_by)
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


# What is sent.


def sent(kind: Kind, request: Request, **fields: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The body of `request` at a server of that kind, and what the engine states about the server."""
    bodies: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}

    async def conversation(engine: OpenAIEngine) -> None:
        await engine.generate(request)
        bodies.extend(server.bodies)
        facts.update(engine.facts)

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server, **fields), conversation)
    return bodies[-1], facts


def test_vllm_is_sent_ids_and_values_that_leave_nothing_to_the_models_own_defaults() -> None:
    body, facts = sent(VLLM, ask(temperature=0.6, n=2, seed=3, stop=("\n\n",), stop_ids=(THINK_CLOSE,), priority=5))
    assert body["prompt"] == PROMPT
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert (body["n"], body["seed"], body["stop"], body["stop_token_ids"], body["priority"]) == (2, 3, ["\n\n"], [THINK_CLOSE], 5)
    assert {
        "prompts": "ids",
        "outputs": "ids",
        "options": "exact",
        "stops": "reported by the server",
        "replicas": 1,
    }.items() <= facts.items()
    assert (facts["server"], facts["server_version"]) == ("vllm", "0.32.0")
    body, _ = sent(VLLM, ask(max_tokens=1, option_ids=DIGITS))
    assert body["logprob_token_ids"] == body["allowed_token_ids"] == list(DIGITS)
    assert "seed" not in body


def test_a_hosted_server_is_sent_openai_fields_only() -> None:
    body, facts = sent(HOSTED, ask(temperature=0.6, n=2, stop=("\n\n",), stop_ids=(THINK_CLOSE,)))
    assert body.keys() <= OPENAI_FIELDS
    assert (body["prompt"], body["stop"], body["logprobs"]) == (TOKENIZER.decode(PROMPT), ["\n\n"], 1)
    assert {"prompts": "text", "options": "among the top 5 tokens"}.items() <= facts.items()
    assert str(facts["stops"]).startswith("assumed: ")
    assert sent(HOSTED, ask(stop_ids=(THINK_CLOSE,)))[0]["stop"] == ["</think>"]
    assert "stop" not in sent(HOSTED, ask())[0]


def test_sampling_is_sent_where_the_server_knows_the_field_and_stated_where_not() -> None:
    body, facts = sent(VLLM, ask(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1))
    assert (body["top_p"], body["top_k"], body["min_p"]) == (0.9, 20, 0.1)
    assert {"top_k", "min_p"} & set(facts["cannot"]) == set()
    assert {"top_k", "min_p"} <= set(sent(HOSTED, ask())[1]["cannot"])


def test_a_server_that_says_which_stop_it_was_is_sent_all_of_them() -> None:
    assert sent(SGLANG, ask(stop=("\n\n",), stop_ids=(THINK_CLOSE,)))[0]["stop"] == ["\n\n", "</think>"]


def test_a_server_that_gives_one_candidate_at_a_time_is_asked_for_each() -> None:
    body, facts = sent(LLAMA, ask(temperature=0.6, n=3, seed=1 << 40))
    assert "n" not in body
    assert facts["candidates"] == "a request each"


def test_max_tokens_is_cut_to_what_the_context_leaves() -> None:
    body, _ = sent(VLLM, ask(prompt_ids=PROMPT * 20, max_tokens=400), max_model_len=20 * len(PROMPT) + 7)
    assert body["max_tokens"] == 7


@pytest.mark.parametrize(
    ("kind", "prompts", "way"),
    [(VLLM, "text", ("text", "ids")), (OLD_VLLM, "ids", ("ids", "text, encoded here")), (LLAMA, "ids", ("ids", "text, encoded here"))],
    ids=["vllm", "old", "llama"],
)
def test_the_spec_can_force_a_way(kind: Kind, prompts: str, way: tuple[str, str]) -> None:
    body, facts = sent(kind, ask(), prompts=prompts)
    assert isinstance(body["prompt"], list) == (prompts == "ids")
    assert (facts["prompts"], facts["outputs"]) == way


def test_a_beginning_of_sequence_that_the_server_adds_is_not_sent_twice() -> None:
    body, _ = sent(replace(LLAMA, bos=True), ask())
    assert body["prompt"] == TOKENIZER.decode(PROMPT[1:])


# Answers that are none.


def after(fault: Fault, request: Request | None = None, kind: Kind = VLLM) -> Completion | PipelineError:
    """What becomes of a request on which the server does this."""
    outcome: list[Completion | PipelineError] = []

    async def conversation(engine: OpenAIEngine) -> None:
        server.faults.append(fault)
        try:
            outcome.append(await engine.generate(request or ask(temperature=0.5)))
        except PipelineError as error:
            outcome.append(error)
        assert (engine.statistics().running, engine.statistics().waiting) == (0, 0)
        assert len((await engine.generate(ask())).candidates) == 1

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server), conversation)
    return outcome[0]


CHOICE = ask(max_tokens=1, option_ids=DIGITS[:2])
PAIR = ask(n=2, temperature=0.5)


def first(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (cut, EngineUnavailable, "broke the connection: "),
        (raw(b'{"choices": [{"te'), EngineUnavailable, "sent an answer that is not JSON"),
        (status(400, "bad\nluck"), RequestRefused, "answered 400: bad luck"),
        (status(404, "no such model"), EngineUnavailable, "answered 404: no such model"),
        (status(400, "too long", code="context_length_exceeded"), ContextOverflow, f"a prompt of {len(PROMPT)} tokens leaves no room"),
        (status(400, "too long", type="exceed_context_size_error", n_ctx=64), ContextOverflow, "in a context of 64"),
        (status(400, "This model's maximum context length is 99 tokens."), ContextOverflow, "in a context of 99"),
        (raw(b"{}"), BadCompletion, "is not a completion: "),
        (edited(lambda answer: first(answer).update(token_ids=None)), BadCompletion, "has no token ids"),
        (edited(lambda answer: first(answer).update(token_ids=[-1])), BadCompletion, "is not a completion: "),
        (edited(lambda answer: first(answer).update(token_ids=[5] * 61)), BadCompletion, "a candidate of 61 tokens, more than max_tokens"),
        (edited(lambda answer: first(answer).update(logprobs=None)), BadCompletion, "has log probabilities for 0 tokens, not "),
        (
            edited(lambda answer: first(answer).update(stop_reason="Next")),
            BadCompletion,
            "at 'Next', which was not a requested stop string",
        ),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_an_answer_that_is_none_is_an_error_of_its_kind(fault: Fault, error: type[PipelineError], says: str) -> None:
    outcome = after(fault)
    assert type(outcome) is error
    assert says in str(outcome)
    assert "\n" not in str(outcome)


@pytest.mark.parametrize("headers", [{}, {"Transfer-Encoding": "chunked"}], ids=["of known length", "chunked"])
def test_an_answer_that_never_ends_is_dropped(headers: dict[str, str]) -> None:
    def flood(handler: Any, reply: Any) -> None:
        chunk = b"x" * (64 << 10)
        handler.send((200, headers or {"Content-Length": str(1 << 40)}, b""))
        with suppress(OSError):
            while True:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if headers else chunk)

    outcome = after(flood)
    assert type(outcome) is BadCompletion
    assert re.search(r"sent an answer of more than 1,\d+ KiB, the maximum for this request", str(outcome))


def test_a_compressed_answer_is_refused_unread() -> None:
    outcome = after(lambda handler, reply: handler.send((200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * 1000))))
    assert type(outcome) is BadCompletion
    assert "sent a compressed answer, which was not requested" in str(outcome)


@pytest.mark.parametrize(
    ("fault", "request_", "says"),
    [
        (edited(lambda answer: answer["choices"].pop()), PAIR, "has 1 choices, not 2"),
        (edited(lambda answer: answer["choices"][1].update(index=0)), PAIR, "numbers its choices in an unexpected way"),
        (edited(lambda answer: first(answer).update(token_ids=[DIGITS[5]])), CHOICE, "which is not one of the options"),
        (
            edited(lambda answer: first(answer)["logprobs"].update(top_logprobs=[])),
            CHOICE,
            "lacks the requested log probabilities of the options",
        ),
        (edited(lambda answer: first(answer)["logprobs"]["top_logprobs"][0].popitem()), CHOICE, "lacks the log probabilities of some"),
    ],
    ids=["too few", "same index", "not an option", "no options", "one option less"],
)
def test_an_answer_to_something_else_is_refused(fault: Fault, request_: Request, says: str) -> None:
    outcome = after(fault, request_)
    assert type(outcome) is BadCompletion
    assert str(outcome).startswith("engine 'draft' gave no valid answer to request 'r': its answer ")
    assert says in str(outcome)


def test_a_text_that_was_cut_at_max_tokens_is_an_answer() -> None:
    (completion,) = answers(LLAMA, ask(max_tokens=3, stop=("\n\n",)))
    assert (completion.candidates[0].finish_reason, completion.candidates[0].stop_reason) == ("length", None)


def test_a_server_says_when_to_come_back() -> None:
    for value, least, most in (
        ("7", 7, 7),
        ("1.5", 1.5, 1.5),
        (format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True), 50, 60),
        (format_datetime(datetime.now(UTC) - timedelta(seconds=60), usegmt=True), 0, 0),
    ):
        outcome = after(status(429, headers={"Retry-After": value}))
        assert isinstance(outcome, EngineUnavailable)
        assert least <= (outcome.retry_after_s or 0) <= most
    for headers in ({}, {"Retry-After": "soon"}):
        outcome = after(status(503, headers=headers))
        assert isinstance(outcome, EngineUnavailable)
        assert outcome.retry_after_s is None


# Starting.


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (VLLM, {"model": "tinny"}, "does not serve 'tinny'; did you mean `tiny`?"),
        (HOSTED, {"max_model_len": None}, "does not report the context length of 'tiny'; set max_model_len"),
        (HOSTED, {"prompts": "ids"}, "does not accept `prompts: ids` (prompt must be a string)"),
        (VLLM, {"tokenizer": "bundled:tiny-targe"}, "did you mean `tiny-target`?"),
        (VLLM, {"base_url": ()}, "base_url must name at least one server"),
        (VLLM, {"base_url": "http://user:pass@127.0.0.1/v1"}, "base_url must be a plain URL, http://127.0.0.1/v1"),
        (VLLM, {"base_url": "http://127.0.0.1/v1?key=1"}, "base_url must be a plain URL, http://127.0.0.1/v1"),
        (VLLM, {"base_url": "127.0.0.1:8000/v1"}, "is not a URL such as http://127.0.0.1:8000/v1"),
        (VLLM, {"base_url": "http://127.0.0.1:9/v1"}, "cannot be reached: All connection attempts failed; start it, or check base_url"),
        (VLLM, {"api_key_env": "NO_SUCH_KEY"}, "the environment variable NO_SUCH_KEY, named by api_key_env, is not set or is empty"),
    ],
    ids=str,
)
def test_what_cannot_start_says_what_to_do(kind: Kind, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError) as caught:
        answers(kind, **fields)
    assert str(caught.value).startswith("engine 'draft': ")
    assert says in str(caught.value)


@pytest.mark.slow
@pytest.mark.torch  # transformers loads it where it is installed
def test_a_model_whose_name_is_no_tokenizer_needs_one_named(tmp_path: Path) -> None:
    with small_server(VLLM, TOKENIZER, model=str(tmp_path)) as server:
        spec = spec_of(server, model=str(tmp_path), tokenizer=None)
        with pytest.raises(GraphError, match="set tokenizer to the folder or the hub name of the model's own"):
            talk(spec, untouched)


def test_a_server_that_only_chats_cannot_be_used() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.completions = "/v1/chat/completions"
        with pytest.raises(GraphError, match="a server with only chat completions cannot continue a partial reply"):
            talk(spec_of(server), untouched)


async def untouched(engine: OpenAIEngine) -> None:
    raise AssertionError("the engine must not open")


def test_a_url_without_v1_is_pointed_out() -> None:
    with (
        small_server(VLLM, TOKENIZER) as server,
        pytest.raises(GraphError, match=r"returns no list of models.*base_url usually ends with /v1"),
    ):
        talk(spec_of(server, base_url=server.base_url.removesuffix("/v1")), untouched)


def test_a_server_that_is_still_loading_is_waited_for() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        assert len((await engine.generate(ask())).candidates) == 1

    with small_server(VLLM, TOKENIZER) as server:
        server.faults.extend([status(503, headers={"Retry-After": "0.01"}), status(429, headers={"Retry-After": "0.01"})])
        talk(spec_of(server), conversation)


def test_a_server_that_never_finishes_loading_is_an_error() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = status(503, "loading", headers={"Retry-After": "0.01"})
        with pytest.raises(GraphError, match=r"returns no list of models \(loading\)"):
            talk(spec_of(server, reconnect_s=0.05), untouched)


@pytest.mark.parametrize(
    ("card", "spec", "length"),
    [
        ({"max_model_len": 300}, None, 300),
        ({"max_model_len": 300}, 200, 200),
        ({"max_model_len": 300}, 400, 300),
        ({"context_length": 300}, None, 300),
        ({"meta": {"n_ctx_train": 300}}, None, 300),
        ({"meta": {"n_ctx_train": 300}}, 400, 400),
        ({"meta": {"n_ctx_train": 300, "n_ctx": 100}}, None, 100),
    ],
)
def test_the_context_length_is_what_server_and_spec_allow(card: dict[str, Any], spec: int | None, length: int) -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        assert engine.max_model_len == length

    with small_server(replace(VLLM, card=card), TOKENIZER) as server:
        talk(spec_of(server, max_model_len=spec), conversation)


# Keys.


def test_a_key_goes_into_a_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SMALL_KEY", CANARY + "\n")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv("OPENAI_ORG_ID", "another")
    said: list[str] = []

    async def conversation(engine: OpenAIEngine) -> None:
        said.extend([repr(engine.facts), repr(engine), repr(vars(engine))])
        for fault in (
            status(400, f"your key {CANARY} is odd"),
            status(500, f"Bearer {CANARY}"),
            edited(lambda answer: first(answer).update(stop_reason=CANARY)),
            hang_up,
        ):
            server.faults.append(fault)
            with pytest.raises(PipelineError) as caught:
                await engine.generate(ask())
            error = caught.value
            said.extend([repr(error), repr(vars(error)), repr(error.__context__), *traceback.format_exception(error)])

    with small_server(VLLM, TOKENIZER, key=CANARY) as server:
        spec = spec_of(server, api_key_env="SMALL_KEY")
        talk(spec, conversation)
        assert all(seen.headers["Authorization"] == f"Bearer {CANARY}" for seen in server.seen)
        assert not any("OpenAI-Organization" in seen.headers for seen in server.seen)
    assert len(said) > 10
    assert not [text for text in [*said, repr(spec), caplog.text] if CANARY in text]


@pytest.mark.slow
def test_a_run_leaves_no_key_behind(tmp_path: Path) -> None:
    """Chains that fail with words of the server, one that a retry saves, one whose text repeats the key, and a server that is named after
    it: in folder, report and log there is no key, whatever the name of its variable."""
    with small_server(replace(VLLM, card={"max_model_len": 512, "owned_by": f"{CANARY} Inc."}), TOKENIZER, key=CANARY) as server:
        engine = (
            f"{{backend: openai, model: tiny, base_url: {server.base_url}, tokenizer: 'bundled:tiny-target', api_key_env: SMALL_LOGIN}}"
        )
        (tmp_path / "engines.yaml").write_text(f"draft: &one {engine}\ntarget: *one\n")
        server.always = Echo()
        server.script = lambda prompt, draw: f"Key {CANARY}.\n\n</think>\n\nThe answer is \\boxed{{{CANARY}}}.<|end|>"
        words = f"{ROOT}/graphs/speccot.yaml --input {ROOT}/datasets/arith/test.parquet --engines {tmp_path}/engines.yaml --limit 3"
        run = command("run", *words.split(), "--debug", "--output", str(tmp_path / "run"))
    report = command("report", str(tmp_path / "run"), "--output", str(tmp_path / "report.html"))
    assert (run.returncode, report.returncode) == (3, 0), run.stderr + report.stderr
    tables = {path.parent.name: pyarrow.parquet.read_table(path).to_pylist() for path in (tmp_path / "run").rglob("*.parquet")}
    said = str(tables)
    for expected in ("answered 400: no ***", "answered 429: later ***", "The answer is \\\\boxed{***}.", "Key ***.\\n\\n"):
        assert expected in said
    decoded = [TOKENIZER.decode(ids) for row in tables["calls"] for ids in row["output_token_ids"]]
    page = (tmp_path / "report.html").read_text()
    assert "*** Inc." in (tmp_path / "run/run.json").read_text()
    said = [run.stdout, run.stderr, report.stderr, page, (tmp_path / "run/run.json").read_text(), said, *decoded]
    assert not [text for text in said if CANARY in text]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from pipeline.cli.main import main; main()", *words],
        env=os.environ | {"SMALL_LOGIN": CANARY},
        capture_output=True,
        text=True,
    )


class Echo:
    """Refuses the first and the third call of a run with the key in its words, and turns the second one away."""

    def __init__(self) -> None:
        self.faults = [
            status(400, f"no {CANARY}"),
            status(429, f"later {CANARY}", headers={"Retry-After": "0.01"}),
            status(400, f"no {CANARY}"),
        ]

    def __call__(self, handler: Any, reply: Any) -> None:
        if handler.body.get("max_tokens", 0) > 1 and self.faults:
            self.faults.pop(0)(handler, reply)
        else:
            handler.send(reply)


def hang_up(handler: Any, reply: Any) -> None:
    """Close without a word."""
    handler.close_connection = True


@pytest.mark.parametrize(("env", "remedy"), [("SMALL_KEY", "does not accept the key in SMALL_KEY"), (None, "requires a key: set")])
def test_a_wrong_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch, env: str | None, remedy: str) -> None:
    monkeypatch.setenv("SMALL_KEY", CANARY)
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    with small_server(VLLM, TOKENIZER, key="another") as server, pytest.raises(GraphError, match=remedy) as caught:
        talk(spec_of(server, api_key_env=env), untouched)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert env or "Authorization" not in server.seen[0].headers


def test_a_key_in_place_of_its_variables_name_is_refused_and_not_repeated(tmp_path: Path) -> None:
    engine = f"{{backend: openai, model: tiny, base_url: 'http://127.0.0.1:9/v1', api_key_env: '{CANARY}'}}"
    (tmp_path / "engines.yaml").write_text(f"draft: &one {engine}\ntarget: *one\n")
    with pytest.raises(GraphError, match="is the name of the environment variable that holds the key, such as OPENAI_API_KEY") as caught:
        load_plan(ROOT / "graphs/speccot.yaml", tmp_path / "engines.yaml")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("value", ["", "  \n", "two words", "schlüssel"])
def test_a_variable_that_holds_no_key_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SMALL_KEY", value)
    with pytest.raises(GraphError, match="SMALL_KEY"):
        answers(VLLM, api_key_env="SMALL_KEY")


# Ending.


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
    async def conversation(engine: OpenAIEngine) -> None:
        server.faults.append(hang)
        before = len(server.bodies)
        died: list[EngineDead] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_death, engine, died)
            await anyio.to_thread.run_sync(server.wait_for, lambda seen: len(server.bodies) > before)
            await engine.aclose()
        await expect_death(engine, died)
        await engine.aclose()
        assert [str(error) for error in died] == ["engine 'draft' died: it was closed"] * 2

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


async def expect_death(engine: OpenAIEngine, died: list[EngineDead]) -> None:
    with pytest.raises(EngineDead) as caught:
        await engine.generate(ask())
    died.append(caught.value)


def test_statistics_count_what_was_answered() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        async with anyio.create_task_group() as tasks:
            for seed in range(8):
                tasks.start_soon(engine.generate, ask(n=2, temperature=0.5, seed=seed))
        statistics = engine.statistics()
        assert (statistics.requests, statistics.input_tokens, statistics.cached_input_tokens) == (8, 8 * len(PROMPT), None)
        assert statistics.busy_s > 0

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


# Replicas.


def test_a_chain_stays_with_its_replica() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        before = [len(server.bodies) for server in servers]
        for _ in range(3):
            for chain in "abcd":
                await engine.generate(ask(affinity=chain))
        assert [len(server.bodies) - count for server, count in zip(servers, before, strict=True)] == [6, 6]
        assert (engine.facts["replicas"], engine.facts["answers"]) == (2, "model")
        assert engine.facts["servers"] == tuple(server.base_url for server in servers)

    with ExitStack() as stack:
        servers = [stack.enter_context(small_server(VLLM, TOKENIZER)) for _ in range(2)]
        talk(spec_of(*servers), conversation)


@pytest.mark.slow
def test_a_chain_moves_when_its_replica_dies_and_new_ones_go_there_when_it_is_back() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        await engine.generate(ask(affinity="a"))
        home, other = sorted(servers, key=lambda server: -len(server.bodies))
        home.stop()
        with pytest.raises(EngineUnavailable, match=f"at {home.base_url} "):
            await engine.generate(ask(affinity="a"))
        before = len(other.bodies)
        for chain in "aab":
            await engine.generate(ask(affinity=chain))
        assert len(other.bodies) == before + 3
        before, moved = len(home.bodies), len(other.bodies)
        home.start()
        for chain in range(1_000_000):  # until the replica counts as found again
            await engine.generate(ask(affinity=str(chain)))
            if len(home.bodies) > before:
                break
        await engine.generate(ask(affinity="a"))
        assert len(other.bodies) > moved

    with ExitStack() as stack:
        servers = [stack.enter_context(small_server(VLLM, TOKENIZER)) for _ in range(2)]
        talk(spec_of(*servers), conversation)


def test_calls_wait_for_a_server_that_is_restarted() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        server.stop()
        with pytest.raises(EngineUnavailable, match=r"cannot be reached|broke the connection"):
            await engine.generate(ask())
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(engine.generate, ask())
            await anyio.lowlevel.checkpoint()
            assert (engine.statistics().running, engine.statistics().waiting) == (0, 5)
            server.start()
        assert engine.statistics().requests == 5

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


def test_an_engine_is_dead_when_no_replica_comes_back() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        for server in servers:
            server.stop()
        for server in servers:
            with pytest.raises(EngineUnavailable, match="at http://"):
                await engine.generate(ask(affinity=server.base_url))
        died: list[EngineDead] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(expect_death, engine, died)
        await expect_death(engine, died)
        assert len(died) == 4
        assert {str(error).partition("; ")[2] for error in died} == {"none of its servers has answered for reconnect_s=2"}

    with ExitStack() as stack:
        servers = [stack.enter_context(small_server(VLLM, TOKENIZER)) for _ in range(2)]
        talk(spec_of(*servers, reconnect_s=2.0), conversation)


def test_a_busy_replica_is_not_a_lost_one() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        asked = len(server.seen)
        server.faults.extend([status(503), status(429), status(500)])
        for _ in range(3):
            with pytest.raises(EngineUnavailable):
                await engine.generate(ask())
        await engine.generate(ask())
        assert all(seen.method == "POST" for seen in server.seen[asked:])

    with small_server(VLLM, TOKENIZER) as server:
        talk(spec_of(server), conversation)


def test_the_weaker_replica_counts_for_all() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        assert engine.max_model_len == 256
        assert {"prompts": "ids", "outputs": "ids", "options": "among the top 20 tokens"}.items() <= engine.facts.items()
        assert "scoring" in engine.facts["cannot"]
        for chain in "ab":
            assert (await engine.generate(ask(max_tokens=1, option_ids=DIGITS[:2], affinity=chain))).option_logprobs[1] == -1.0

    older = replace(VLLM, exact=False, card={"max_model_len": 256})
    with small_server(VLLM, TOKENIZER) as one, small_server(older, TOKENIZER) as other:
        talk(spec_of(one, other), conversation)


def test_a_replica_with_another_model_is_named() -> None:
    with small_server(VLLM, TOKENIZER) as one, small_server(VLLM, TOKENIZER, model="huge") as other:
        both = spec_of(one, other)
        with pytest.raises(GraphError, match=f"{other.base_url} does not serve 'tiny'; known are `huge`"):
            talk(both, untouched)


def test_all_roles_open_together_and_close_together() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            specs = {"draft": spec_of(one), "target": spec_of(other)}
            engines = await stack.enter_async_context(open_openai(specs))
            assert list(engines) == ["draft", "target"]
            for engine in engines.values():
                await engine.generate(ask())
        for engine in engines.values():
            with pytest.raises(EngineDead):
                await engine.generate(ask())

    with small_server(VLLM, TOKENIZER) as one, small_server(SGLANG, TOKENIZER) as other:
        anyio.run(main)


def test_two_servers_can_do_what_both_can() -> None:
    one = Capabilities(prompts="ids", fields=frozenset("ab"), top_logprobs=20, reports_stop=True)
    other = Capabilities(prompts="text", fields=frozenset("bc"), top_logprobs=5)
    assert shared_capabilities(one, other) == Capabilities(prompts="text", fields=frozenset("b"), top_logprobs=5)
    assert shared_capabilities(one, one) == one


def test_the_package_is_loaded_only_when_a_server_is_opened() -> None:
    code = "import sys, pipeline.engines.openai.backend, pipeline.engines.registry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"openai", "httpx", "httpx2"}.isdisjoint(loaded)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(GraphError, match=r'pip install "speculative-pipeline\[openai\]"'):
        answers(VLLM)
