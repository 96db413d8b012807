"""Whatever a server sends ends as an answer, as a bad completion or as a refusal, over real HTTP."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, event, given, settings
from msgspec import structs

from pipeline.engine import Completion, Fact, Request, Timing, Usage
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.client import Server
from pipeline.engines.openai.engine import Deployment, OpenAIEngine
from pipeline.engines.openai.probe import ProbedServer, find_model, probe_server
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_completion
from pipeline.errors import BadCompletion, ContextOverflow, EngineUnavailable, GraphError, PipelineError, RequestRefused
from tests.support.odd_replies import Members, OddReply, Token, encoded, members_of, odd_replies, places
from tests.support.paths import ROOT
from tests.support.small_server import (
    HOSTED,
    LLAMA,
    SGLANG,
    VLLM,
    WAIT_S,
    Fault,
    Handler,
    Kind,
    Reply,
    SmallServer,
    Writer,
    edited,
    late,
    raw,
    small_server,
    status,
)

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
PROMPT = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": "Tom has 3 pens and buys 2. How many?"}]))
THINK_CLOSE = TOKENIZER.special_ids["</think>"]
DIGITS = tuple(TOKENIZER.encode(digit)[-1] for digit in "0123456789")
KEY = "sk-canary/7f3a+9"
MOST_CHARS = 800
"""Longest message of an error."""


def ask(**fields: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": PROMPT, "max_tokens": 60, "logprobs": True} | fields)


WRITE = ask(n=2, temperature=0.5, stop=("\n\n",), stop_ids=(THINK_CLOSE,))
CHOOSE = ask(max_tokens=1, option_ids=DIGITS[:3])
SCORE = ask(prompt_ids=PROMPT[:-3], max_tokens=1, scored_ids=tuple(PROMPT[-3:]))
CASES: dict[str, tuple[Kind, Request]] = {
    "ids": (VLLM, WRITE),
    "choice": (VLLM, CHOOSE),
    "scores": (VLLM, SCORE),
    "text": (HOSTED, WRITE),
    "text that tells": (SGLANG, WRITE),
    "text choice": (SGLANG, CHOOSE),
    "one at a time": (LLAMA, ask(stop=("\n\n",))),
}
TIMES = {
    "metrics": {"time_to_first_token_ms": 2.5, "generation_time_ms": 10, "queue_time_ms": 1},
    "timings": {"prompt_ms": 2, "predicted_ms": 1},
}


class Case(NamedTuple):
    """A server, a request, and an engine over the server which has asked it what it can do."""

    portal: BlockingPortal
    small: SmallServer
    server: Server
    opened: OpenAIEngine
    spec: OpenAISpec
    request: Request
    valid: bytes
    """The body of the server's own answer to the request."""

    def outcome(self, fault: Fault, **changes: Any) -> Completion | PipelineError:
        """What becomes of the request, with these changes, where the server does this with it."""
        self.small.always = None
        self.small.faults.clear()
        self.small.faults.append(fault)
        return self.portal.call(self._generate, structs.replace(self.request, **changes))

    async def _generate(self, request: Request) -> Completion | PipelineError:
        deployment = Deployment("draft", self.spec, [self.server], 512)
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                engine = OpenAIEngine(deployment, self.opened.tokenizer, self.opened.can, self.opened.facts, tasks)
                try:
                    return await engine.generate(request)
                except PipelineError as error:
                    return error
                finally:
                    tasks.cancel_scope.cancel()


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Case]]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALL_LOGIN", KEY)
        portal = stack.enter_context(start_blocking_portal())
        made = {}
        for name, (kind, request) in CASES.items():
            small = stack.enter_context(small_server(kind, TOKENIZER, key=KEY))
            spec = spec_of(small)
            engines: AbstractContextManager[Any] = portal.wrap_async_context_manager(open_openai({"draft": spec}))
            opened = stack.enter_context(engines)["draft"]
            server = portal.call(_server, small.base_url)
            stack.callback(portal.call, server.aclose)
            portal.call(opened.generate, request)
            body = msgspec.json.decode(Writer(small, small.bodies[-1]).reply()[2])
            made[name] = Case(portal, small, server, opened, spec, request, msgspec.json.encode(body | TIMES))
        yield made


def spec_of(small: SmallServer) -> OpenAISpec:
    return OpenAISpec(
        model="tiny",
        base_url=small.base_url,
        tokenizer="bundled:tiny-target",
        max_model_len=512,
        api_key_env="SMALL_LOGIN",
    )


async def _server(url: str) -> Server:
    return Server("engine 'draft'", url, KEY, 4)


def check(request: Request, outcome: Completion | PipelineError) -> None:
    """Hold an outcome to the promise: an answer that can be kept, or an error of one line that a retry or a chain's row can take."""
    assert KEY not in repr(outcome)
    if isinstance(outcome, Completion):
        flaw = validate_completion(outcome, request, 1 << 20)
        assert flaw is None or len(flaw) < MOST_CHARS
        if flaw is None:
            msgspec.json.encode(outcome)
            for candidate in outcome.candidates:
                assert TOKENIZER.decode(candidate.ids) == candidate.text
            assert max(outcome.usage.input_tokens, outcome.usage.output_tokens) < 1 << 20
        return
    assert isinstance(outcome, EngineUnavailable | RequestRefused)
    says = str(outcome)
    assert len(says) < MOST_CHARS
    assert "\n" not in says
    if isinstance(outcome, EngineUnavailable):
        assert 0 <= (outcome.retry_after_s or 0) <= 3600


# What was found, one by one.


def in_json(name: str, token: str) -> Fault:
    """The valid answer with `token`, written as it is, in place of the first value of that name."""

    def fault(handler: Handler, reply: Reply) -> None:
        answer = members_of(reply[2])
        holder, place = next(
            (holder, place) for holder, place in places([answer]) if isinstance(holder, Members) and holder[place][0] == name
        )
        holder[place] = (name, Token(token))
        handler.send((200, {}, encoded(answer)))

    return fault


DEEP = "[" * 100_000 + "]" * 100_000
MANY_DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (raw(DEEP.encode()), BadCompletion, "its answer is not a completion: "),
        (raw(b'{"choices": ' + DEEP.encode() + b"}"), BadCompletion, "its answer is not a completion: "),
        (raw(b'{"odd": ' + DEEP.encode() + b"}"), BadCompletion, "its answer is not a completion: it is nested too deeply"),
        (raw(b"\xff\xfe{}"), EngineUnavailable, "sent an answer that is not JSON: "),
        (raw(b"<html>502 Bad Gateway</html>"), EngineUnavailable, "sent an answer that is not JSON: "),
        (raw(b""), EngineUnavailable, "sent an answer that is not JSON: "),
        (in_json("finish_reason", '"\udcff"'), EngineUnavailable, "sent an answer that is not JSON: 'utf-8' codec can't decode"),
        (in_json("finish_reason", '"\udced\udca0\udc80"'), EngineUnavailable, "sent an answer that is not JSON: 'utf-8' codec can't"),
        (in_json("finish_reason", '"\\ud800"'), EngineUnavailable, "sent an answer that is not JSON: "),
        (in_json("finish_reason", f'"{"x" * 100_000}"'), BadCompletion, "ended a candidate with finish_reason 'xxx"),
        (in_json("token_ids", f"[{MANY_DIGITS}]"), BadCompletion, "its answer is not a completion: Integer value out of range"),
        (in_json("token_ids", f"[{(1 << 31) - 1}]"), BadCompletion, "has log probabilities for "),
        (in_json("token_logprobs", "[1e400]"), BadCompletion, "its answer is not a completion: Number out of range"),
        (in_json("token_logprobs", "[NaN]"), EngineUnavailable, "sent an answer that is not JSON: "),
        (in_json("token_logprobs", "[5.0]"), BadCompletion, "has a log probability of 5.0"),
        (status(500, headers={"Content-Type": "text/html; charset=hex"}), EngineUnavailable, "answered 500: not now"),
        (status(400, headers={"Content-Type": "text/html; charset=idna"}), RequestRefused, "answered 400: not now"),
        (status(400, [10**30], code=DEEP), RequestRefused, "answered 400: [1000000000000000000000000000000]"),
        (status(400, {"a": None}, n_ctx="x"), RequestRefused, 'answered 400: {"a": null}'),
        (status(400, None), RequestRefused, "answered 400: status 400"),
        (status(400, f"context length is {MANY_DIGITS}"), ContextOverflow, "in a context of 512"),
        (status(400, "too long", code="context_length_exceeded", n_ctx=10**30), ContextOverflow, "in a context of 512"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:40]),
)
def test_what_was_found_is_an_error_of_its_kind(cases: dict[str, Case], fault: Fault, error: type[PipelineError], says: str) -> None:
    outcome = cases["ids"].outcome(fault)
    check(cases["ids"].request, outcome)
    assert type(outcome) is error
    assert says in str(outcome)


@pytest.mark.parametrize("usage", ["null", "[]", '"x"', "{}", '{"prompt_tokens": 1e400}', '{"completion_tokens": 12.5}'])
def test_counts_that_cannot_be_read_are_counted_here(cases: dict[str, Case], usage: str) -> None:
    counted_here(cases["ids"], in_json("usage", usage))


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "cached_tokens"])
@pytest.mark.parametrize("number", [-5, 10**30, 1 << 62, 1 << 31, 10**4])
def test_counts_that_cannot_be_true_are_counted_here(cases: dict[str, Case], field: str, number: int) -> None:
    outcome = cases["text"].outcome(in_json(field, str(number)))
    if field == "prompt_tokens" and number == 10**4:
        assert isinstance(outcome, RequestRefused)
        assert "reports 10,000 tokens for a prompt of " in str(outcome)
    else:
        counted_here(cases["text"], in_json(field, str(number)))


def counted_here(case: Case, fault: Fault) -> None:
    outcome = case.outcome(fault)
    assert isinstance(outcome, Completion)
    sampled = sum(len(candidate.ids) for candidate in outcome.candidates)
    assert outcome.usage == Usage(input_tokens=len(PROMPT), output_tokens=sampled)


def test_times_that_cannot_be_true_are_set_aside(cases: dict[str, Case]) -> None:
    for times in ('{"queue_time_ms": 1e300}', '{"queue_time_ms": 1e400}', '{"queue_time_ms": "1"}', "5"):
        outcome = cases["ids"].outcome(in_json("system_fingerprint", f'"x", "metrics": {times}'))
        assert isinstance(outcome, Completion)
        assert outcome.timing == Timing()


@pytest.mark.parametrize(
    "value",
    [
        *("9" * 400, "1e400", "nan", "-1", "\u0665"),
        *("Fri, 31 Dec 9999 23:59:59 -9999", "Mon, 01 Jan 0001 00:00:00 +9999", "Sun, 06 Nov 2044 08:49:37 +99999999999999999999", ", ,"),
    ],
)
def test_an_absurd_time_to_come_back_is_none(cases: dict[str, Case], value: str) -> None:
    outcome = cases["ids"].outcome(lambda handler, reply: status(429, headers={"Retry-After": value})(handler, reply))
    assert isinstance(outcome, EngineUnavailable)
    assert outcome.retry_after_s is None


def test_the_answer_to_another_request_is_none(cases: dict[str, Case]) -> None:
    """A reply that was sent twice is read as the answer to the next request on its connection, whose own answer is still to come."""
    case = cases["ids"]
    once = case._replace(server=case.portal.call(_server, case.small.base_url))

    def twice(handler: Handler, reply: Reply) -> None:
        handler.wfile.write((b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply[2]) + reply[2]) * 2)

    assert isinstance(once.outcome(twice), Completion)
    outcome = once.outcome(late(0.3), prompt_ids=PROMPT[:-1])
    once.portal.call(once.server.aclose)
    assert type(outcome) is BadCompletion
    assert str(outcome).endswith("its answer belongs to another prompt")


@pytest.mark.parametrize("odd", ["null", '"x"', "[1.5]", MANY_DIGITS], ids=lambda odd: odd[:5])
def test_a_prompt_that_cannot_be_read_is_not_another(cases: dict[str, Case], odd: str) -> None:
    assert isinstance(cases["ids"].outcome(in_json("prompt_token_ids", odd)), Completion)


# Text that is too long.


@pytest.mark.parametrize("name", ["text", "text that tells"])
def test_a_server_that_does_not_keep_to_max_tokens_is_cut_short(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    long = "So 5 pens. " * 1000
    outcome = case.outcome(edited(lambda answer: [choice.update(text=long, finish_reason="length") for choice in answer["choices"]]))
    assert isinstance(outcome, Completion)
    for candidate in outcome.candidates:
        assert candidate.ids == tuple(TOKENIZER.encode(long)[: case.request.max_tokens])
        assert (candidate.text, candidate.finish_reason) == (TOKENIZER.decode(candidate.ids), "length")
    assert validate_completion(outcome, case.request, 1 << 20) is None


def test_a_stop_far_behind_max_tokens_does_not_end_a_text(cases: dict[str, Case]) -> None:
    case = cases["text"]
    text = "pens " * 5000 + "\n\n"
    outcome = case.outcome(edited(lambda answer: [choice.update(text=text, finish_reason="stop") for choice in answer["choices"]]))
    assert isinstance(outcome, Completion)
    assert {(len(each.ids), each.finish_reason, each.stop_reason) for each in outcome.candidates} == {(60, "length", None)}


def test_twenty_megabytes_of_text_are_not_read(cases: dict[str, Case]) -> None:
    outcome = cases["text"].outcome(edited(lambda answer: answer["choices"][0].update(text="x" * (20 << 20))))
    assert type(outcome) is BadCompletion
    assert "KiB, the maximum for this request" in str(outcome)


# Keys and other hosts.


@pytest.mark.parametrize("name", ["ids", "text"])
def test_a_key_in_a_text_is_replaced_and_the_ids_are_those_of_what_is_left(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    said = f"Your key is {KEY}, or {quote(KEY, safe='')}."

    def echo(answer: dict[str, Any]) -> None:
        ids = TOKENIZER.encode(said)
        for choice in answer["choices"]:
            choice |= {"text": said, "finish_reason": "length", "token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}

    outcome = case.outcome(edited(echo), max_tokens=200)
    assert isinstance(outcome, Completion)
    for candidate in outcome.candidates:
        assert candidate.text == "Your key is ***, or ***."
        assert candidate.ids == tuple(TOKENIZER.encode(candidate.text))


def test_a_text_keeps_its_stop_id_when_a_key_is_replaced(cases: dict[str, Case]) -> None:
    def echo(answer: dict[str, Any]) -> None:
        ids = [*TOKENIZER.encode(KEY), THINK_CLOSE]
        for choice in answer["choices"]:
            choice |= {"finish_reason": "stop", "stop_reason": THINK_CLOSE, "token_ids": ids}
            choice["logprobs"]["token_logprobs"] = [-0.5] * len(ids)

    outcome = cases["ids"].outcome(edited(echo))
    assert isinstance(outcome, Completion)
    assert outcome.candidates[0].ids == (*TOKENIZER.encode("***"), THINK_CLOSE)
    assert outcome.candidates[0].stop_reason == THINK_CLOSE


@pytest.mark.parametrize(
    "field",
    [
        in_json("finish_reason", f'"{KEY}"'),
        status(400, f"no {KEY}"),
        status(500, {"escaped": KEY}),
        raw(f'{{"error": "{"".join(f"@u{ord(each):04x}" for each in KEY)}"}}'.replace("@", "\\").encode()),
        lambda handler, reply: handler.send((302, {"Location": f"http://elsewhere.invalid/?k={KEY}"}, b"")),
        lambda handler, reply: handler.send((302, {"Location": f"http://elsewhere.invalid/{quote(KEY, safe='')}"}, b"")),
    ],
    ids=["answer", "refusal", "escaped", "unicode", "redirect", "quoted"],
)
def test_a_key_that_a_server_repeats_is_in_no_message(cases: dict[str, Case], field: Fault) -> None:
    outcome = cases["ids"].outcome(field)
    assert isinstance(outcome, PipelineError)
    assert not [form for form in (KEY, quote(KEY), quote(KEY, safe="")) if form in repr(outcome) + str(outcome)]


def test_a_key_that_a_server_repeats_is_in_no_fact() -> None:
    with pytest.MonkeyPatch.context() as patch, small_server(VLLM, TOKENIZER, key=KEY) as small:
        patch.setenv("SMALL_LOGIN", KEY)
        small.kind = replace(VLLM, owned_by=f"{KEY} of {'x' * 1000}")
        facts = anyio.run(facts_of, spec_of(small))
    assert str(facts["server"]).startswith("*** of xxx")
    assert KEY not in repr(facts)
    assert len(str(facts["server"])) < 400


async def facts_of(spec: OpenAISpec) -> Mapping[str, Fact]:
    async with open_openai({"draft": spec}) as engines:
        return engines["draft"].facts


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_prompts_go_to_no_other_server(cases: dict[str, Case], code: int) -> None:
    case = cases["ids"]
    with small_server(VLLM, TOKENIZER) as other:
        target = f"{other.base_url}/completions"
        outcome = case.outcome(lambda handler, reply: handler.send((code, {"Location": target}, b"")))
        assert type(outcome) is EngineUnavailable
        assert f"redirects to {target}, which is not followed" in str(outcome)
        assert other.seen == []


def test_a_redirect_within_a_server_is_followed(cases: dict[str, Case]) -> None:
    def moved(handler: Handler, reply: Reply) -> None:
        handler.send((307, {"Location": "/v1/completions?again"}, b"") if "again" not in handler.path else reply)

    case = cases["ids"]
    case.small.completions = "/v1/completions?again"
    try:
        assert isinstance(case.outcome(moved), Completion)
    finally:
        case.small.completions = "/v1/completions"


def test_a_server_that_redirects_at_the_start_is_named() -> None:
    with pytest.MonkeyPatch.context() as patch, small_server(VLLM, TOKENIZER) as small:
        patch.setenv("SMALL_LOGIN", KEY)
        small.always = lambda handler, reply: handler.send((302, {"Location": "https://login.invalid/?next=x"}, b""))
        with pytest.raises(GraphError, match=r"redirects to https://login.invalid/\?next=x, which is not followed"):
            anyio.run(facts_of, spec_of(small))


# The start.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (DEEP.encode(), "does not answer a completion with 'tiny' (it sent an answer that is not a completion: "),
        (b"\xff", "does not answer a completion with 'tiny' (it sent an answer that is not JSON: "),
        (b'{"data": 5}', "does not answer a completion with 'tiny' (it sent an answer that is not a completion: "),
        (b'{"data": [5, null, {"id": 5}, {"id": "b"}]}', "does not serve 'tiny'; known are `b`"),
        (b'{"data": [{"id": "' + b"tinny" * 10_000 + b'"}]}', "does not serve 'tiny'; known are `tinnytinny"),
    ],
    ids=["deep", "not UTF-8", "no list", "no cards", "long name"],
)
def test_an_odd_list_of_models_is_one_sentence(content: bytes, says: str) -> None:
    with pytest.MonkeyPatch.context() as patch, small_server(VLLM, TOKENIZER) as small:
        patch.setenv("SMALL_LOGIN", KEY)
        small.always = lambda handler, reply: handler.send((200, {"Content-Type": "text/plain; charset=hex"}, content))
        with pytest.raises(GraphError) as caught:
            anyio.run(facts_of, spec_of(small))
    assert says in str(caught.value)
    assert len(str(caught.value)) < MOST_CHARS


@pytest.mark.parametrize(
    ("card", "own", "trained"),
    [
        (b'{"id": "tiny", "max_model_len": 512}', 512, None),
        (b'{"id": "tiny", "max_model_len": -5, "context_length": 300}', 300, None),
        (b'{"id": "tiny", "max_model_len": 1000000000000000019884624838656}', None, None),
        (b'{"id": "tiny", "max_model_len": 0.5, "meta": {"n_ctx": "x", "n_ctx_train": 300}}', None, 300),
        (b'{"id": "tiny", "max_model_len": 1e400, "owned_by": 5, "meta": []}', None, None),
        (b'{"id": "tiny", "max_model_len": ' + MANY_DIGITS.encode() + b"}", None, None),
    ],
)
def test_a_card_says_what_can_be_true(cases: dict[str, Case], card: bytes, own: int | None, trained: int | None) -> None:
    case = cases["ids"]
    content = b'{"data": [{"id": "other", "max_model_len": 1.5}, ' + card + b"]}"
    case.small.always = lambda handler, reply: handler.send((200, {}, content))
    model = case.portal.call(find_model, "engine 'draft'", case.server, case.spec)
    assert (model.own_context, model.trained_context) == (own, trained)


# What was not found.


def always(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same examples every time; the one that fails is printed as small as it can be made."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
    )


REFUSALS = [
    b'{"error": {"message": "context length is 99", "type": "x", "code": 400, "n_ctx": 99}}',
    b'{"object": "error", "message": "no such model", "type": "NotFoundError", "param": null, "code": 404}',
    b'{"detail": [{"loc": ["body", "n"], "msg": "value is not a valid integer"}]}',
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_whatever_is_answered_ends_as_an_answer_or_as_an_error_of_one_call(cases: dict[str, Case], name: str) -> None:
    case = cases[name]

    @always(300)
    @given(reply=odd_replies([case.valid], REFUSALS, KEY))
    def holds(reply: OddReply) -> None:
        outcome = case.outcome(reply.fault())
        event(type(outcome).__name__)
        check(case.request, outcome)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/models", "/version", "/v1/completions"])
def test_whatever_is_said_at_the_start_opens_the_engine_or_is_one_sentence(cases: dict[str, Case], path: str) -> None:
    case = cases["ids"]
    cards = [{"id": "other", "context_length": 0.5}, {"id": "tiny", "owned_by": "vllm", "max_model_len": 512, "meta": {"n_ctx": 400}}]
    card = msgspec.json.encode({"object": "list", "data": cards})
    originals = {"/v1/models": [card], "/version": [b'{"version": "0.32.0"}'], "/v1/completions": [case.valid]}[path]

    @always(120)
    @given(reply=odd_replies(originals, REFUSALS, KEY))
    def holds(reply: OddReply) -> None:
        case.small.always = lambda handler, well: reply.fault()(handler, well) if handler.path == path else handler.send(well)
        found = case.portal.call(_start, case)
        event(type(found).__name__)
        assert KEY not in repr(found)
        assert len(str(found)) < 3 * MOST_CHARS
        if not isinstance(found, GraphError):
            assert 16 <= (found.model.own_context or 16) < 1 << 31
            msgspec.json.encode(found.model)

    holds()


async def _start(case: Case) -> ProbedServer | GraphError:
    """What a run finds out about the server at its start, which waits for one that says that it is loading."""
    spec = structs.replace(case.spec, reconnect_s=1.0)
    with anyio.fail_after(WAIT_S):
        try:
            model = await find_model("engine 'draft'", case.server, spec)
            return await probe_server("engine 'draft'", case.server, model, spec, TOKENIZER)
        except GraphError as error:
            return error
