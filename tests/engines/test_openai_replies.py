"""What the replies of servers mean, as one table, and what becomes of the request."""

import gzip
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pipeline.engine import Completion, Request
from pipeline.engines.openai.client import NoAnswer, Reply, Verdict
from pipeline.engines.openai.completions import body_in, refusal_of
from pipeline.errors import BadCompletion, EngineUnavailable, PipelineError, RequestRefused
from tests.support.served import DIGITS, PROMPT, after, ask, first
from tests.support.small_server import Fault, cut, edited, status

WORDS = "the server's own words"
DEEP = b"[" * 100_000 + b"]" * 100_000


def refused(number: int, message: str = WORDS, /, headers: dict[str, str] | None = None) -> Reply:
    return Reply(number, headers or {}, msgspec.json.encode({"error": {"message": message, "type": "x", "code": number}}))


def content(raw_bytes: bytes) -> Reply:
    return Reply(200, {}, raw_bytes)


def chosen(**fields: Any) -> Reply:
    return content(msgspec.json.encode({"choices": [{"text": "2", "finish_reason": "stop"} | fields]}))


REPLIES: dict[str, tuple[Reply, Verdict, str]] = {
    **{str(code): (refused(code), "failing", f"answered {code}: {WORDS}") for code in (204, 408, 409, 425, 500, 502, 529)},
    **{str(code): (refused(code), "refused", f"answered {code}: {WORDS}") for code in (400, 401, 402, 403, 404, 413, 422)},
    **{str(code): (refused(code), "busy", WORDS) for code in (429, 503)},
    **{
        f"words {words}": (Reply(400, {}, body), "refused", f"answered 400: {words}")
        for body, words in (
            (b'{"object": "error", "message": "no", "type": "NotFound"}', "no"),
            (b'{"detail": [{"msg": "not a\\n number"}]}', '[{"msg":"not a\\n number"}]'),
            (DEEP, "[" * 300 + "..."),
        )
    },
    "elsewhere": (Reply(302, {"Location": "http://elsewhere.invalid/"}, b""), "failing", "answered 302"),
    "inside": (content(b'{"error": {"message": "out of memory"}}'), "failing", "answered with an error: out of memory"),
    **{str(each): (content(each), "malformed", "not JSON") for each in (b"<html>Sign in</html>", b"", b"\xff\xfe{}", b"data: {}\n\n")},
    "deep": (content(b'{"choices": ' + DEEP + b"}"), "malformed", "is not"),
    "null choices": (content(b'{"choices": null}'), "malformed", "is not a completion"),
    **{
        reason: (chosen(finish_reason=reason), "malformed", f"Invalid enum value '{reason}'")
        for reason in ("content_filter", "tool_calls", "abort")
    },
    "an infinity": (content(b'{"choices": [{"text": "2", "logprobs": {"token_logprobs": [-Infinity]}}]}'), "malformed", "is not JSON"),
}


@pytest.mark.parametrize(("reply", "verdict", "says"), REPLIES.values(), ids=REPLIES)
def test_what_is_no_answer_has_a_verdict(reply: Reply, verdict: Verdict, says: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        body_in(reply)
    assert (caught.value.verdict, says in str(caught.value)) == (verdict, True), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "seconds"), [("1.5", 1.5), *((odd, None) for odd in ("soon", "-1", "9" * 400))])
def test_when_a_server_wants_to_be_asked_again(value: str, seconds: float | None) -> None:
    assert refusal_of(refused(429, headers={"Retry-After": value})).retry_after_s == seconds


def packed(how: str, pack: Callable[[bytes], bytes]) -> Fault:
    return lambda handler, reply: handler.send((200, {"Content-Encoding": how}, pack(reply[2])))


def choice(edit: Callable[[Any], object]) -> Fault:
    return edited(lambda answer: edit(first(answer)))


CHOICE, PAIR = ask(max_tokens=1, option_ids=DIGITS[:2]), ask(n=2, temperature=0.5)
FLAWS: list[tuple[Fault, Request | None, str]] = [
    (packed("gzip", lambda read: gzip.compress(read)[:-99]), None, "is not JSON"),
    (choice(lambda one: one.update(token_ids=None)), None, "has no token ids"),
    (choice(lambda one: one.update(token_ids=["x"])), None, "is not a completion: "),
    (choice(lambda one: one.update(logprobs=None)), None, "has log probabilities for 0 tokens, not "),
    (choice(lambda one: one["logprobs"].update(token_logprobs=[5.0])), None, "has a log probability of 5"),
    (choice(lambda one: one["logprobs"].update(top_logprobs=None)), None, "lacks the log probabilities of the likeliest"),
    (choice(lambda one: one.update(stop_reason="Next")), None, "at 'Next', which was not a requested stop"),
    (choice(lambda one: one.update(prompt_token_ids=PROMPT[1:])), None, "belongs to another prompt"),
    (edited(lambda answer: answer["usage"].update(prompt_tokens=5)), None, "counts 5 tokens for a prompt of"),
    (edited(lambda answer: answer["choices"].pop()), PAIR, "has 1 choices, not 2"),
    (edited(lambda answer: answer["choices"][1].update(index=0)), PAIR, "numbers its choices in an unexpected way"),
    (choice(lambda one: one["logprobs"].update(top_logprobs=[])), CHOICE, "lacks the requested log probabilities"),
    (choice(lambda one: one["logprobs"]["top_logprobs"][0].popitem()), CHOICE, "lacks the log probabilities"),
]


@pytest.mark.parametrize(
    ("fault", "request_", "error", "says"),
    [
        (status(422, WORDS), None, RequestRefused, f"answered 422: {WORDS}"),
        (cut, None, EngineUnavailable, "broke the connection: "),
        (packed("gzip", lambda read: read), None, EngineUnavailable, "Can not decode content-encoding: gzip"),
        *((fault, request, BadCompletion, says) for fault, request, says in FLAWS),
    ],
    ids=range(16),
)
def test_what_is_no_answer_says_what_becomes_of_its_request(
    fault: Fault, request_: Request | None, error: type[PipelineError], says: str
) -> None:
    found = after(fault, request_ or ask(temperature=0.5))
    assert (type(found), says in str(found)) == (error, True), found
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        *((usage, None) for usage in ("x", {"completion_tokens": 12.5}, {"completion_tokens": -5}, {"completion_tokens": 10**4})),
        ({"prompt_tokens": len(PROMPT), "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}}, (40, 8)),
        ({"completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0}}, (40, 0)),
    ],
)
def test_counts_that_are_not_stated_or_cannot_be_true_are_counted_here(usage: Any, counts: tuple[int, int] | None) -> None:
    found = after(edited(lambda answer: answer.update(usage=usage)), ask())
    assert isinstance(found, Completion)
    assert found.usage.input_tokens == len(PROMPT)
    assert (found.usage.output_tokens, found.usage.cached_input_tokens) == (counts or (len(found.candidates[0].ids), None))
