"""What the replies of servers mean, as one table, and what becomes of the request."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from pipeline.engine import Completion, Request, Timing
from pipeline.engines.openai.answers import decode_reply
from pipeline.engines.openai.client import NoAnswer, Reply, Verdict
from pipeline.engines.openai.engine import open_openai
from pipeline.engines.openai.replies import finish_of, server_error_of
from pipeline.errors import BadCompletion, ContextOverflow, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused
from tests.support.served import DIGITS, PROMPT, THINK_CLOSE, TOKENIZER, ask, outcome, settled, spec_of
from tests.support.small_server import SGLANG, VLLM, Fault, Handler, cut, edited, raw, small_server, status

WORDS = "the server's own words"
DEEP = b"[" * 100_000 + b"]" * 100_000
MANY_DIGITS = b"9" * 5000


def refused(number: int, message: str = WORDS, /, headers: dict[str, str] | None = None, **error: Any) -> Reply:
    return Reply(number, headers or {}, msgspec.json.encode({"error": {"message": message, "type": "x", "code": number} | error}))


def inside(**error: Any) -> Reply:
    """An error in place of an answer, with status 200."""
    return Reply(200, {}, msgspec.json.encode({"error": error}))


def content(raw_bytes: bytes) -> Reply:
    return Reply(200, {}, raw_bytes)


def chosen(**fields: Any) -> Reply:
    return content(msgspec.json.encode({"choices": [{"text": "2", "finish_reason": "stop"} | fields]}))


REPLIES: dict[str, tuple[Reply, Verdict, str]] = {
    # Statuses: busy, refused for this request, refused for all, nothing left to pay.
    **{str(code): (refused(code), "failing", f"answered {code}: {WORDS}") for code in (408, 409, 425, 500, 502, 503, 504, 529)},
    **{str(code): (refused(code), "refused", f"answered {code}: {WORDS}") for code in (400, 413, 422, 451)},
    **{str(code): (refused(code), "gone", f"answered {code}: {WORDS}") for code in (403, 404, 405, 410)},
    **{str(code): (refused(code), "closed", f"answered {code}: {WORDS}") for code in (401, 402)},
    "429": (refused(429), "busy", WORDS),
    "context": (refused(400, "too long", code="context_length_exceeded"), "overflow", "too long"),
    "context, llama.cpp's": (refused(400, "too long", type="exceed_context_size_error", n_ctx=64), "overflow", "too long"),
    "context, vLLM's": (refused(400, "This model's maximum context length is 99 tokens."), "overflow", "99"),
    "quota": (refused(429, code="insufficient_quota"), "closed", "no credit left"),
    "Moonshot's quota": (refused(429, type="exceeded_current_quota_error"), "closed", WORDS),
    "LiteLLM's budget": (refused(400, type="budget_exceeded"), "closed", WORDS),
    "Anthropic's balance": (refused(400, "Your credit balance is too low"), "closed", "the account has no credit left"),
    "Gemini's key": (refused(400, "API key not valid. Please pass a valid API key."), "closed", "the key is not accepted"),
    "tomorrow": (refused(429, headers={"retry-after": "43200"}), "closed", "it asks to retry after 43,200 s"),
    "flagged": (refused(403, "Your input was flagged", metadata={"reasons": ["x"]}), "refused", "flagged"),
    "Azure's filter": (refused(400, code="content_filter"), "refused", WORDS),
    "elsewhere": (Reply(302, {"location": "http://elsewhere.invalid/"}, b""), "failing", "redirects to http://elsewhere.invalid/, which"),
    # Errors inside a reply of status 200.
    "inside": (inside(message=WORDS), "failing", WORDS),
    "inside, a text": (content(b'{"error": "model runner has stopped"}'), "failing", "model runner has stopped"),
    "inside, an object": (content(b'{"object": "error", "message": "out of memory", "code": 50002}'), "failing", "out of memory"),
    "inside, the provider's": (
        inside(message="Provider error", code=502, metadata={"raw": WORDS}),
        "failing",
        f"error: {WORDS} (code 502)",
    ),
    "inside, 402": (inside(message=WORDS, code=402), "closed", WORDS),
    "inside, 400": (inside(message=WORDS, code=400), "withheld", WORDS),
    "beside choices": (content(b'{"choices": [], "error": {"message": "no", "code": 500}}'), "failing", "no (code 500)"),
    # No API, and no answer.
    "no API": (content(b"<html><h1>Sign in</h1></html>"), "unreadable", "not JSON"),
    "nothing": (content(b""), "unreadable", "not JSON"),
    "no UTF-8": (content(b"\xff\xfe{}"), "unreadable", "not JSON"),
    "half a character": (content(b'{"choices": [{"text": "\\ud83d", "finish_reason": "stop"}]}'), "unreadable", "not JSON"),
    "deep": (content(b'{"choices": ' + DEEP + b"}"), "malformed", "is not a completion"),
    "deep elsewhere": (content(b'{"odd": ' + DEEP + b"}"), "malformed", "is not a completion: it is nested too deeply"),
    "null choices": (content(b'{"choices": null}'), "malformed", "is not a completion"),
    # Finish reasons.
    **{
        reason: (chosen(finish_reason=reason), "withheld", f"finish_reason {reason!r}")
        for reason in ("content_filter", "tool_calls", "function_call", "refusal", "SAFETY", "sensitive", "repetition")
    },
    **{
        reason: (chosen(finish_reason=reason), "failing", f"finish_reason {reason!r}")
        for reason in ("error", "abort", "network_error", "insufficient_system_resource", "time_limit", "load")
    },
    "half an answer": (chosen(finish_reason="error", error={"message": WORDS, "code": 502}), "failing", f"broke its answer off: {WORDS}"),
    "no reason": (chosen(finish_reason=None), "malformed", "does not say how it ended"),
    "an odd reason": (chosen(finish_reason="because"), "malformed", "finish_reason 'because'"),
}


def read(reply: Reply) -> str:
    """How an answer ended; raises `NoAnswer`."""
    choice = decode_reply(reply).choices[0]
    return finish_of(choice.finish_reason, choice.error)


@pytest.mark.parametrize(("reply", "verdict", "says"), REPLIES.values(), ids=REPLIES)
def test_what_is_no_answer_has_a_verdict(reply: Reply, verdict: Verdict, says: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        read(reply)
    assert (caught.value.verdict, says in str(caught.value)) == (verdict, True), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        *((each, "stop") for each in ("stop", "eos", "end_turn", "COMPLETE")),
        *((each, "length") for each in ("length", "model_length", "MAX_TOKENS")),
    ],
)
def test_harmless_shapes_are_answers(reason: str, finish: str) -> None:
    beside = {"error": None, "usage": None, "service_tier": None, "created": 1e300, "id": [None]}
    answer = msgspec.json.decode(chosen(finish_reason=reason, logprobs=None, message={"content": "2"}).content) | beside
    assert read(content(msgspec.json.encode(answer))) == finish


def to_long_requests(fault: Fault) -> Fault:
    return lambda handler, reply: (fault if handler.body["max_tokens"] > 16 else Handler.send)(handler, reply)


FATES: dict[str, tuple[Fault, type[PipelineError], str]] = {
    "busy": (status(429, WORDS, {"Retry-After": "30"}), EngineUnavailable, WORDS),
    "failing": (status(500, WORDS), EngineUnavailable, f"answered 500: {WORDS}"),
    "unreadable": (raw(b"<html>"), EngineUnavailable, "sent an answer that is not JSON"),
    "malformed": (edited(lambda answer: answer.update(choices=[])), BadCompletion, "its answer has 0 choices, not 1"),
    "too long": (raw(b'{"choices": "' + b"x" * (20 << 20) + b'"}'), BadCompletion, "its answer is longer than "),
    "refused": (to_long_requests(status(422, WORDS)), RequestRefused, f"answered 422: {WORDS}"),
    "withheld": (edited(lambda answer: answer["choices"][0].update(finish_reason="sensitive")), RequestRefused, "'sensitive'"),
    "overflow": (to_long_requests(status(400, "context length is 64")), ContextOverflow, "in a context of 64"),
    "gone": (status(404, WORDS), EngineDead, f"answered 404: {WORDS}"),
    "closed": (status(401, WORDS), EngineDead, f"answered 401: {WORDS}"),
    "broken off": (cut, EngineUnavailable, "broke the connection: "),
}
"""What a server does from now on, and what becomes of a request: for each verdict."""


@pytest.mark.slow
def test_what_is_no_answer_says_what_becomes_of_its_request() -> None:
    """A server that refuses a request answers others, such as the small one that tells the two apart."""

    async def main() -> None:
        for name, (fault, error, says) in FATES.items():
            small.always = None
            async with open_openai({"target": spec_of(small, reconnect_s=1.0)}) as engines:
                small.always = fault
                found = await settled(engines["target"], ask(logprobs=False, stop_ids=(THINK_CLOSE,)))
            assert (type(found), says in str(found)) == (error, True), (name, found)
            assert "\n" not in str(found)
            assert len(str(found)) < 800

    with small_server(SGLANG, TOKENIZER) as small:
        anyio.run(main)


@pytest.mark.parametrize(
    ("body", "text", "code", "context"),
    [
        (b'{"error": {"message": "no", "code": 400, "type": "x", "n_ctx": 99}}', "no", "400 x", 99),
        (b'{"object": "error", "message": "no", "type": "NotFound", "param": null, "code": 404}', "no", "404 NotFound", None),
        (b'[{"error": {"message": "no", "status": "x"}}]', "no", "", None),
        (b'{"detail": [{"msg": "not a\\n number"}]}', '[{"msg":"not a\\n number"}]', "", None),
        (b'{"error": null, "msg": "no"}', "no", "", None),
        (b"<h1>Bad\n gateway</h1>", "<h1>Bad gateway</h1>", "", None),
        (b"", "status 400", "", None),
        (DEEP, "[" * 300 + "...", "", None),
        (b'{"error": ' + MANY_DIGITS + b"}", '{"error": ' + "9" * 290 + "...", "", None),
        (b'{"message": "the context length is 99 tokens", "n_ctx": -1}', "the context length is 99 tokens", "", 99),
    ],
)
def test_the_words_of_a_refusal(body: bytes, text: str, code: str, context: int | None) -> None:
    found = server_error_of(Reply(400, {}, body))
    assert (found.text, found.code.strip(), found.context) == (text, code, context)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        *((odd, None) for odd in ("", "soon", "-1", "1e400", "\u0665", "9" * 400, "Fri, 31 Dec 9999 23:59:59 -9999", ", ,")),
    ],
)
def test_when_a_server_wants_to_be_asked_again(value: str, seconds: float | None) -> None:
    assert Reply(429, {"retry-after": value}, b"").retry_after_s == seconds


def first(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]


Outcome = Completion | PipelineError


@pytest.fixture(scope="module")
def after() -> Iterator[Callable[[Fault, Request], Outcome]]:
    """`after(fault, request)`: what becomes of a request on which the server does this; the next one is answered."""
    with start_blocking_portal() as portal, small_server(VLLM, TOKENIZER) as server:

        async def become(fault: Fault, request: Request) -> Outcome:
            server.faults.append(fault)
            found = await outcome(engine, request)
            assert (engine.statistics().running, engine.statistics().waiting) == (0, 0)
            assert len((await engine.generate(ask())).candidates) == 1
            return found

        with portal.wrap_async_context_manager(open_openai({"draft": spec_of(server)})) as engines:
            engine = engines["draft"]
            yield partial(portal.call, become)


CHOICE, PAIR = ask(max_tokens=1, option_ids=DIGITS[:2]), ask(n=2, temperature=0.5)


@pytest.mark.parametrize(
    ("fault", "request_", "says"),
    [
        (edited(lambda answer: first(answer).update(token_ids=None)), None, "has no token ids"),
        (edited(lambda answer: first(answer).update(token_ids=[-1])), None, "is not a completion: "),
        (edited(lambda answer: first(answer).update(token_ids=[5] * 61)), None, "a candidate of 61 tokens, more than max_tokens"),
        (edited(lambda answer: first(answer).update(logprobs=None)), None, "has log probabilities for 0 tokens, not "),
        (edited(lambda answer: first(answer)["logprobs"].update(token_logprobs=[5.0])), None, "has a log probability of 5.0"),
        (edited(lambda answer: first(answer)["logprobs"].update(top_logprobs=None)), None, "lacks the log probabilities of the likeliest"),
        (edited(lambda answer: first(answer).update(stop_reason="Next")), None, "at 'Next', which was not a requested stop string"),
        (edited(lambda answer: first(answer).update(prompt_token_ids=PROMPT[1:])), None, "belongs to another prompt"),
        (edited(lambda answer: answer["choices"].pop()), PAIR, "has 1 choices, not 2"),
        (edited(lambda answer: answer["choices"][1].update(index=0)), PAIR, "numbers its choices in an unexpected way"),
        (edited(lambda answer: first(answer).update(token_ids=[DIGITS[5]])), CHOICE, "which is none of the options"),
        (edited(lambda answer: first(answer)["logprobs"].update(top_logprobs=[])), CHOICE, "lacks the requested log probabilities of the"),
        (edited(lambda answer: first(answer)["logprobs"]["top_logprobs"][0].popitem()), CHOICE, "lacks the log probabilities of some"),
    ],
)
def test_an_answer_to_something_else_is_none(after: Any, fault: Fault, request_: Request | None, says: str) -> None:
    found = after(fault, request_ or ask(temperature=0.5))
    assert type(found) is BadCompletion
    assert says in str(found)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        *((usage, None) for usage in (None, "x", {}, {"prompt_tokens": 1e300}, {"completion_tokens": 12.5}, {"completion_tokens": -5})),
        ({"completion_tokens": 10**4}, None),
        ({"prompt_tokens": len(PROMPT), "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}}, (40, 8)),
        ({"completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0}}, (40, 0)),
    ],
)
def test_counts_that_are_not_stated_or_cannot_be_true_are_counted_here(after: Any, usage: Any, counts: tuple[int, int] | None) -> None:
    found = after(edited(lambda answer: answer.update(usage=usage)), ask())
    assert isinstance(found, Completion)
    assert found.usage.input_tokens == len(PROMPT)
    assert (found.usage.output_tokens, found.usage.cached_input_tokens) == (counts or (len(found.candidates[0].ids), None))


@pytest.mark.parametrize(
    ("field", "times", "timing"),
    [
        ("metrics", {"queue_time_ms": 1000, "time_to_first_token_ms": 1500, "generation_time_ms": 250}, (1.0, 0.5, 0.25, 1.5)),
        ("timings", {"prompt_ms": 2000, "predicted_ms": 500}, (None, 2.0, 0.5, None)),
        *(("metrics", odd, (None,) * 4) for odd in ({"queue_time_ms": 1e300}, {"queue_time_ms": "1"}, 5)),
    ],
)
def test_times_are_those_that_the_server_states(field: str, times: Any, timing: tuple[float | None, ...]) -> None:
    answer = decode_reply(content(msgspec.json.encode({"choices": [], field: times})))
    assert answer.timing == Timing(**dict(zip(Timing.__struct_fields__, timing, strict=True)))


@pytest.mark.parametrize("nonsense", [b"<html>", b'{"choices": ' + DEEP + b"}"], ids=["no API", "deep"])
def test_a_server_that_answers_nonsense_is_refused_before_the_start(nonsense: bytes) -> None:
    async def main() -> None:
        async with open_openai({"target": spec_of(small)}):
            raise AssertionError("the engine must not open")

    with small_server(SGLANG, TOKENIZER) as small:
        small.always = raw(nonsense)
        with pytest.raises(GraphError, match=r"is not (JSON|a completion)"):
            anyio.run(main)
