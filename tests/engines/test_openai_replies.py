"""What the replies of servers mean: one table for both backends that ask over HTTP, against real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from pipeline.engine import Completion, Request, Timing
from pipeline.engines.openai.client import Reply
from pipeline.engines.openai.replies import said_in, server_error_of
from pipeline.errors import BadCompletion, ContextOverflow, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused
from tests.support.served import DIGITS, PROMPT, TOKENIZER, after, ask, open_backend, request_of, settled
from tests.support.small_server import SGLANG, WAIT_S, Fault, Handler, cut, edited, raw, small_server, status

WORDS = "the server's own words"
DEEP = b"[" * 100_000 + b"]" * 100_000
MANY_DIGITS = b"9" * 5000


def in_choice(**fields: Any) -> Fault:
    return edited(lambda answer: [choice.update(fields) for choice in answer["choices"]])


def in_message(**fields: Any) -> Fault:
    """A change of what a model says in a chat; a completion has no message, and what it says is `text`."""
    return edited(lambda answer: [choice["message"].update(fields) for choice in answer["choices"] if "message" in choice])


def inside(**error: Any) -> Fault:
    """An error in place of an answer, with status 200."""
    return raw(msgspec.json.encode({"error": error}))


def to_long_requests(fault: Fault) -> Fault:
    return lambda handler, reply: (fault if handler.body["max_tokens"] > 16 else Handler.send)(handler, reply)


AGAIN, BAD, CHAIN, RUN, FULL = EngineUnavailable, BadCompletion, RequestRefused, EngineDead, ContextOverflow
Row = tuple[Fault, type[PipelineError], str]
BOTH: dict[str, Row] = {
    # Statuses: busy, refused for this request, refused for all, nothing left to pay.
    **{str(code): (status(code, WORDS), AGAIN, f"answered {code}: {WORDS}") for code in (408, 409, 425, 429, 500, 502, 503, 504, 529)},
    **{str(code): (status(code, WORDS), CHAIN, f"answered {code}: {WORDS}") for code in (400, 413, 422, 451)},
    **{str(code): (status(code, WORDS), RUN, f"answered {code}: {WORDS}") for code in (401, 402, 403, 404, 405, 410)},
    "context": (status(400, "too long", code="context_length_exceeded"), FULL, "leaves no room"),
    "context, llama.cpp's": (status(400, "too long", type="exceed_context_size_error", n_ctx=64), FULL, "in a context of 64"),
    "context, vLLM's": (status(400, "This model's maximum context length is 99 tokens."), FULL, "in a context of 99"),
    "context, absurd": (status(400, f"context length is {MANY_DIGITS.decode()}"), FULL, "in a context of 512"),
    "quota": (status(429, WORDS, code="insufficient_quota", type="insufficient_quota"), RUN, WORDS),
    "Moonshot's quota": (status(429, WORDS, type="exceeded_current_quota_error"), RUN, WORDS),
    "LiteLLM's budget": (status(400, WORDS, type="budget_exceeded"), RUN, WORDS),
    "Anthropic's balance": (status(400, "Your credit balance is too low"), RUN, "the account has no credit left"),
    "Gemini's key": (status(400, "API key not valid. Please pass a valid API key."), RUN, "the key is not accepted"),
    "tomorrow": (status(429, WORDS, {"Retry-After": "43200"}), RUN, "it asks to retry after 43,200 s"),
    "maintenance": (status(503, WORDS, {"Retry-After": "7200"}), RUN, "it asks to retry after 7,200 s"),
    "soon": (status(429, WORDS, {"Retry-After": "30"}), AGAIN, WORDS),
    "flagged": (status(403, "Your input was flagged", code=403, metadata={"reasons": ["x"]}), CHAIN, "flagged"),
    "Azure's filter": (status(400, WORDS, code="content_filter"), CHAIN, WORDS),
    "elsewhere": (status(302, headers={"Location": "http://elsewhere.invalid/"}), AGAIN, "redirects to http://elsewhere.invalid/, which"),
    # Errors inside a reply of status 200.
    "inside": (inside(message=WORDS), AGAIN, WORDS),
    "inside, a text": (raw(b'{"error": "model runner has stopped"}'), AGAIN, "model runner has stopped"),
    "inside, an object": (raw(b'{"object": "error", "message": "out of memory", "code": 50002}'), AGAIN, "out of memory"),
    "inside, the provider's": (
        inside(message="Provider error", code=502, metadata={"raw": WORDS}),
        AGAIN,
        f"Provider error: {WORDS} (code 502)",
    ),
    "inside, 402": (inside(message=WORDS, code=402), RUN, WORDS),
    "inside, quota": (inside(message=WORDS, code="insufficient_quota"), RUN, WORDS),
    "inside, 400": (inside(message=WORDS, code=400), CHAIN, WORDS),
    "beside choices": (edited(lambda answer: answer.update(error={"message": WORDS, "code": 500})), AGAIN, WORDS),
    # No API, and no answer.
    "broken off": (cut, AGAIN, "broke the connection: "),
    "no API": (raw(b"<html><h1>Sign in</h1></html>"), AGAIN, "sent an answer that is not JSON"),
    "nothing": (raw(b""), AGAIN, "sent an answer that is not JSON"),
    "no UTF-8": (raw(b"\xff\xfe{}"), AGAIN, "sent an answer that is not JSON"),
    "deep": (raw(b'{"choices": ' + DEEP + b"}"), BAD, "its answer is not a completion"),
    "deep elsewhere": (raw(b'{"odd": ' + DEEP + b"}"), BAD, "its answer is not a completion: it is nested too deeply"),
    "20 MB": (raw(b'{"choices": "' + b"x" * (20 << 20) + b'"}'), BAD, "its answer is longer than "),
    "no choices": (edited(lambda answer: answer.update(choices=[])), BAD, "its answer has 0 choices, not 1"),
    "null choices": (edited(lambda answer: answer.update(choices=None)), BAD, "its answer is not a completion"),
    # Finish reasons.
    **{
        reason: (in_choice(finish_reason=reason), CHAIN, f"finish_reason {reason!r}")
        for reason in ("content_filter", "tool_calls", "function_call", "refusal", "SAFETY", "sensitive", "repetition")
    },
    **{
        reason: (in_choice(finish_reason=reason), AGAIN, f"finish_reason {reason!r}")
        for reason in ("error", "abort", "network_error", "insufficient_system_resource", "time_limit", "load")
    },
    "half an answer": (
        in_choice(finish_reason="error", error={"message": WORDS, "code": 502}),
        AGAIN,
        f"broke its answer off: {WORDS} (code 502)",
    ),
    "no reason": (in_choice(finish_reason=None), BAD, "does not say how it ended"),
    "an odd reason": (in_choice(finish_reason="because"), BAD, "finish_reason 'because'"),
}
CHAT: dict[str, Row] = {
    "no choices": (edited(lambda answer: answer.update(choices=[])), BAD, "its answer holds no reply"),
    "refusal": (in_message(content=None, refusal=WORDS), CHAIN, f"refused to answer: {WORDS}"),
    "refusal in parts": (in_message(content=[{"type": "refusal", "refusal": WORDS}]), CHAIN, WORDS),
    "tool": (in_message(content=None, tool_calls=[{"id": "a", "type": "function", "function": {"name": "f"}}]), CHAIN, "called a tool"),
    "function": (in_message(content=None, function_call={"name": "f", "arguments": "{}"}), CHAIN, "called a tool"),
    "tool beside a text": (in_message(tool_calls=[{"id": "a"}]), CHAIN, "called a tool"),
    "null": (in_message(content=None, reasoning_content=None), BAD, "holds no text"),
    "an image": (in_message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), BAD, "type 'image_url'"),
    "a number": (in_message(content=42), BAD, "'42' instead of text"),
    "no message": (edited(lambda answer: answer["choices"][0].pop("message")), BAD, "holds no message"),
    "half a character": (raw(b'{"choices": [{"message": {"content": "\\ud83d"}, "finish_reason": "stop"}]}'), AGAIN, "is not JSON"),
}
ANSWERS: dict[str, Fault] = {
    "null beside": edited(lambda answer: answer.update(error=None, usage=None, system_fingerprint=None, service_tier=None)),
    "no usage": edited(lambda answer: answer.pop("usage")),
    **{name: in_choice(finish_reason=name) for name in ("stop", "eos", "end_turn", "COMPLETE", "length", "model_length", "MAX_TOKENS")},
    "empty": in_message(content="", reasoning_content=None, refusal=None, tool_calls=[], function_call=None),
    "digits": edited(lambda answer: answer.update(created=float("1e300"), id=[None], choices=answer["choices"])),
}
Outcome = Callable[[str, Fault], Completion | PipelineError]


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Outcome]:
    """`outcome_of(backend, fault)`: what becomes of a request to an engine whose server does this from now on."""
    with ExitStack() as stack:
        portal, small = stack.enter_context(start_blocking_portal()), stack.enter_context(small_server(SGLANG, TOKENIZER))

        async def found(backend: str, fault: Fault) -> Completion | PipelineError:
            small.always = None
            async with open_backend(backend, small) as engines:
                small.always = fault
                with anyio.fail_after(WAIT_S):
                    return await settled(engines["target"], request_of(backend))

        yield partial(portal.call, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "name"),
    [*((backend, name) for backend in ("chat", "openai") for name in BOTH), *(("chat", name) for name in CHAT if name not in BOTH)],
)
def test_what_is_no_answer_says_what_becomes_of_its_request(outcome_of: Outcome, backend: str, name: str) -> None:
    """And never is an answer: the same for both backends. A server that refuses a request answers others, such as the small one that tells
    the two apart."""
    fault, error, says = (CHAT.get(name) if backend == "chat" else None) or BOTH[name]
    found = outcome_of(backend, to_long_requests(fault) if error in (CHAIN, FULL) else fault)
    assert (type(found), says in str(found)) == (error, True), found
    assert "\n" not in str(found)
    assert len(str(found)) < 800


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["chat", "openai"])
@pytest.mark.parametrize("name", ANSWERS)
def test_harmless_shapes_are_answers(outcome_of: Outcome, backend: str, name: str) -> None:
    assert isinstance(found := outcome_of(backend, ANSWERS[name]), Completion), found
    assert found.model == "tiny"


@pytest.mark.parametrize(
    ("message", "thought", "content"),
    [
        ({"content": "2", "reasoning_content": "One."}, "One.", "2"),  # DeepSeek, SGLang, llama.cpp
        ({"content": "2", "reasoning": "One.", "reasoning_content": "One."}, "One.", "2"),  # vLLM between two names
        ({"content": "2", "reasoning": "One.", "reasoning_details": [{"type": "reasoning.text", "text": "One."}]}, "One.", "2"),
        (
            {
                "content": "2",
                "reasoning_details": [{"type": "reasoning.summary", "summary": "One."}, {"type": "reasoning.encrypted", "data": "x"}],
            },
            "One.",
            "2",
        ),
        ({"content": "2", "thinking": "One."}, "One.", "2"),  # Ollama
        ({"content": "2", "thinking_blocks": [{"type": "thinking", "thinking": "One.", "signature": "x"}]}, "One.", "2"),  # LiteLLM
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "One."}]}, {"type": "text", "text": "2"}]},
            "One.",
            "2",
        ),  # Mistral
        ({"content": [{"type": "text", "text": "It "}, {"type": "reference", "reference_ids": [1]}, "is 2"]}, "", "It is 2"),
        ({"content": {"type": "text", "text": {"value": "2"}}}, "", "2"),
        ({"content": None, "reasoning": "One."}, "One.", ""),
        ({"content": "", "reasoning": None, "refusal": "", "tool_calls": None}, "", ""),
    ],
)
def test_what_a_message_says(message: dict[str, Any], thought: str, content: str) -> None:
    assert said_in({"role": "assistant", "annotations": [], "audio": None, **message}, "stop") == (thought, content)


@pytest.mark.parametrize(
    ("body", "text", "code", "context"),
    [
        (b'{"error": {"message": "no", "code": 400, "type": "x", "n_ctx": 99}}', "no", "400 x", 99),
        (b'{"object": "error", "message": "no", "type": "NotFound", "param": null, "code": 404}', "no", "404 NotFound", None),
        (b'[{"error": {"message": "no", "status": "x"}}]', "no", "", None),
        (b'{"detail": [{"msg": "not a\\n number"}]}', '[{"msg":"not a\\n number"}]', "", None),
        (b'{"error": null, "msg": "no"}', "no", "", None),
        (b'{"error": {"message": null}}', "status 400", "", None),
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
        *((odd, None) for odd in ("", "soon", "-1", "1e400", "nan", "\u0665", "9" * 400, "Fri, 31 Dec 9999 23:59:59 -9999", ", ,")),
    ],
)
def test_when_a_server_wants_to_be_asked_again(value: str, seconds: float | None) -> None:
    assert Reply(429, {"retry-after": value}, b"").retry_after_s == seconds


def first(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]


CHOICE, PAIR = ask(max_tokens=1, option_ids=DIGITS[:2]), ask(n=2, temperature=0.5)


@pytest.mark.parametrize(
    ("fault", "request_", "says"),
    [
        (edited(lambda answer: first(answer).update(token_ids=None)), None, "has no token ids"),
        (edited(lambda answer: first(answer).update(token_ids=[-1])), None, "is not a completion: "),
        (edited(lambda answer: first(answer).update(token_ids=[5] * 61)), None, "a candidate of 61 tokens, more than max_tokens"),
        (
            edited(lambda answer: first(answer).update(token_ids=[1 << 30], finish_reason="length")),
            ask(logprobs=False),
            "is not in the model's voc",
        ),
        (edited(lambda answer: first(answer).update(logprobs=None)), None, "has log probabilities for 0 tokens, not "),
        (edited(lambda answer: first(answer)["logprobs"].update(token_logprobs=[5.0])), None, "has a log probability of 5.0"),
        (edited(lambda answer: first(answer).update(stop_reason="Next")), None, "at 'Next', which was not a requested stop string"),
        (edited(lambda answer: first(answer).update(prompt_token_ids=PROMPT[1:])), None, "belongs to another prompt"),
        (edited(lambda answer: answer["choices"].pop()), PAIR, "has 1 choices, not 2"),
        (edited(lambda answer: answer["choices"][1].update(index=0)), PAIR, "numbers its choices in an unexpected way"),
        (edited(lambda answer: first(answer).update(token_ids=[DIGITS[5]])), CHOICE, "which is not one of the options"),
        (edited(lambda answer: first(answer)["logprobs"].update(top_logprobs=[])), CHOICE, "lacks the requested log probabilities of the"),
        (edited(lambda answer: first(answer)["logprobs"]["top_logprobs"][0].popitem()), CHOICE, "lacks the log probabilities of some"),
    ],
)
def test_an_answer_to_something_else_is_none(fault: Fault, request_: Request | None, says: str) -> None:
    found = after(fault, request_ or ask(temperature=0.5))
    assert type(found) is BadCompletion
    assert says in str(found)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        *((usage, None) for usage in (None, [], "x", {}, {"prompt_tokens": 1e300}, {"completion_tokens": 12.5})),
        *(({name: odd}, None) for name in ("prompt_tokens", "completion_tokens") for odd in (-5, 10**18, 1 << 31)),
        ({"completion_tokens": 10**4}, None),
        ({"prompt_tokens": len(PROMPT), "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}}, (40, 8)),
        ({"completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0}}, (40, 0)),
    ],
)
def test_counts_that_are_not_stated_or_cannot_be_true_are_counted_here(usage: Any, counts: tuple[int, int] | None) -> None:
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
    found = after(edited(lambda answer: answer.update({field: times})), ask())
    assert isinstance(found, Completion)
    assert found.timing == Timing(**dict(zip(Timing.__struct_fields__, timing, strict=True)))


@pytest.mark.parametrize("backend", ["chat", "openai"])
@pytest.mark.parametrize("name", ["20 MB", "no API", "deep"])
def test_a_server_that_answers_nonsense_is_refused_before_the_start(backend: str, name: str) -> None:
    async def main() -> None:
        async with open_backend(backend, small):
            raise AssertionError("the engine must not open")

    fault, _, says = BOTH[name]
    with small_server(SGLANG, TOKENIZER) as small:
        small.always = fault
        with pytest.raises(GraphError) as caught:
            anyio.run(main)
    assert says.removeprefix("its answer ") in str(caught.value)
