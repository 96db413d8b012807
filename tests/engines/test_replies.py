"""What the replies of servers mean: one table for both backends that ask over HTTP, against real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, structs

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.chat.engine import open_chat
from pipeline.engines.chat.messages import ChatTokenizer
from pipeline.engines.chat.spec import ChatSpec
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.client import Reply as HTTPReply
from pipeline.engines.openai.replies import (
    NULL,
    Aborted,
    ChatMessage,
    Closed,
    Malformed,
    Overflowing,
    Unanswered,
    Withheld,
    error_within,
    finish_of,
    refusal_of,
    said_in,
)
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import BadCompletion, ContextOverflow, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.paths import ROOT
from tests.support.runs import rows, write_problems
from tests.support.small_server import SGLANG, WAIT_S, Fault, Handler, Reply, SmallServer, edited, raw, small_server, status

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
WORDS = "the server's own words"


def in_choice(**fields: Any) -> Fault:
    return edited(lambda answer: [choice.update(fields) for choice in answer["choices"]])


def in_message(**fields: Any) -> Fault:
    """A change of what a model says in a chat; a completion has no message, and what it says is `text`."""
    return edited(lambda answer: [choice["message"].update(fields) for choice in answer["choices"] if "message" in choice])


def inside(**error: Any) -> Fault:
    """An error in place of an answer, with status 200."""
    return raw(msgspec.json.encode({"error": error}))


def to_long_requests(fault: Fault) -> Fault:
    return lambda handler, reply: (fault if handler.body["max_tokens"] > 1 else Handler.send)(handler, reply)


AGAIN, BAD, CHAIN, RUN, FULL = EngineUnavailable, BadCompletion, RequestRefused, EngineDead, ContextOverflow
BOTH: dict[str, tuple[Fault, type[PipelineError], str]] = {
    # Statuses: busy, refused for this request, refused for all, nothing left to pay.
    **{str(code): (status(code, WORDS), AGAIN, f"answered {code}: {WORDS}") for code in (408, 409, 425, 429, 500, 502, 503, 504, 529)},
    **{str(code): (status(code, WORDS), CHAIN, f"answered {code}: {WORDS}") for code in (400, 413, 422, 451)},
    **{str(code): (status(code, WORDS), RUN, f"answered {code}: {WORDS}") for code in (401, 402, 403, 404, 405, 410)},
    "context": (status(400, "too long", code="context_length_exceeded"), FULL, "leaves no room"),
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
    "no API": (raw(b"<html><h1>Sign in</h1></html>"), AGAIN, "sent an answer that is not JSON"),
    "nothing": (raw(b""), AGAIN, "sent an answer that is not JSON"),
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
CHAT: dict[str, tuple[Fault, type[PipelineError], str]] = {
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
    "digits": (raw(b'{"choices": [{"message": {"content": %s}, "finish_reason": "stop"}]}' % (b"9" * 5000)), BAD, "cannot be read"),
}
ANSWERS: dict[str, Fault] = {
    "null beside": edited(lambda answer: answer.update(error=None, usage=None, system_fingerprint=None, service_tier=None)),
    "no usage": edited(lambda answer: answer.pop("usage")),
    **{
        reason: in_choice(finish_reason=reason)
        for reason in ("stop", "eos", "end_turn", "COMPLETE", "length", "model_length", "MAX_TOKENS")
    },
    "empty": in_message(content="", reasoning_content=None, refusal=None, tool_calls=[], function_call=None),
    "digits": edited(lambda answer: answer.update(created=float("1e300"), id=[None], choices=answer["choices"])),
}


class Asked:
    """An engine of one backend over a server, and how it is asked."""

    def __init__(self, portal: BlockingPortal, small: SmallServer, backend: str) -> None:
        self.portal, self.small, self.backend = portal, small, backend
        tokenizer = ChatTokenizer() if backend == "chat" else TOKENIZER
        prompt = tokenizer.encode(tokenizer.render([{"role": "user", "content": "How many?"}]))
        self.request = Request(request_id="r", prompt_ids=prompt, max_tokens=60, stop_ids=(tokenizer.special_ids["</think>"],))

    def outcome(self, fault: Fault, **changes: Any) -> Completion | PipelineError:
        """What becomes of a request to an engine whose server does this from now on, but answers what it was asked before."""
        return self.portal.call(self._outcome, fault, structs.replace(self.request, **changes))

    async def _outcome(self, fault: Fault, request: Request) -> Completion | PipelineError:
        self.small.always = None
        async with self._open() as engines:
            engine: Engine = engines["target"]
            await engine.generate(request)
            self.small.always = fault
            with anyio.fail_after(WAIT_S):
                while True:
                    try:
                        return await engine.generate(request)
                    except PipelineError as error:
                        if not getattr(error, "moved", False):
                            return error

    async def opened(self) -> None:
        """Open an engine, and close it."""
        async with self._open():
            pass

    def _open(self) -> Any:
        if self.backend == "chat":
            return open_chat({"target": ChatSpec(model="tiny", base_url=self.small.base_url, max_model_len=512)})
        spec = OpenAISpec(model="tiny", base_url=self.small.base_url, tokenizer="bundled:tiny-target", max_model_len=512, reconnect_s=1.0)
        return open_openai({"target": spec})


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str], Asked]]:
    with ExitStack() as stack:
        portal, small = stack.enter_context(start_blocking_portal()), stack.enter_context(small_server(SGLANG, TOKENIZER))
        asked = {backend: Asked(portal, small, backend) for backend in ("chat", "openai")}
        yield asked.__getitem__


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "name"),
    [*((backend, name) for backend in ("chat", "openai") for name in BOTH), *(("chat", name) for name in CHAT)],
)
def test_what_is_no_answer_says_what_becomes_of_its_request(ask: Callable[[str], Asked], backend: str, name: str) -> None:
    """And never is an answer: the same for both backends. A server that refuses a request answers others, such as the probe of one token
    that tells the two apart."""
    fault, error, says = (CHAT.get(name) if backend == "chat" else None) or BOTH[name]
    outcome = ask(backend).outcome(to_long_requests(fault) if error is CHAIN else fault)
    if name == "no choices" and backend == "chat":
        says = "holds no reply"
    assert (type(outcome), says in str(outcome)) == (error, True), outcome
    assert "\n" not in str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["chat", "openai"])
@pytest.mark.parametrize("name", ANSWERS)
def test_harmless_shapes_are_answers(ask: Callable[[str], Asked], backend: str, name: str) -> None:
    assert isinstance(outcome := ask(backend).outcome(ANSWERS[name]), Completion), outcome
    assert outcome.model == "tiny"


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
    read = msgspec.json.decode(msgspec.json.encode({"role": "assistant", "annotations": [], "audio": None, **message}), type=ChatMessage)
    assert said_in(read, "stop") == (thought, content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "thinking", "refusal", "content", "message", "code", "error", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
FEW = settings(max_examples=30, deadline=None)
FIELDS = ChatMessage.__struct_fields__


@FEW
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.sampled_from(["stop", "length"]))
def test_any_message_is_texts_or_no_answer(fields: dict[str, Any], finish: Any) -> None:
    try:
        said = said_in(ChatMessage(**{name: Raw(msgspec.json.encode(value)) for name, value in fields.items()}), finish)
    except (Malformed, Withheld):
        return
    assert all(isinstance(each, str) for each in said)
    assert not fields.get("tool_calls")
    assert not fields.get("refusal")


@FEW
@given(st.text(max_size=12) | st.none(), JSON)
def test_any_finish_reason_is_one_of_two_or_no_answer(stated: str | None, error: Any) -> None:
    try:
        finish = finish_of(stated, NULL if error is None else Raw(msgspec.json.encode(error)))
    except Unanswered:
        return
    assert finish in ("stop", "length")
    assert error is None


@FEW
@given(st.integers(300, 599), JSON, st.sampled_from(["", "5", "99999", "x"]))
def test_any_refusal_has_one_meaning_and_the_servers_words(code: int, body: Any, retry: str) -> None:
    meaning = refusal_of(HTTPReply(code, {"retry-after": retry}, msgspec.json.encode(body)))
    assert str(meaning).startswith(f"answered {code}: ")
    if code in (401, 402) or (retry == "99999" and code >= 500 and not isinstance(meaning, Overflowing | Withheld)):
        assert isinstance(meaning, Closed)
    elif code >= 502:
        assert isinstance(meaning, Aborted)


@FEW
@given(JSON)
def test_an_error_inside_is_seen_wherever_it_is_no_answer(value: Any) -> None:
    found = error_within(msgspec.json.encode({"error": value}))
    assert (found is None) == (value is None)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["chat", "openai"])
@pytest.mark.parametrize(
    "fault",
    [status(401, WORDS), status(402, WORDS), status(429, WORDS, code="insufficient_quota"), status(429, WORDS, {"Retry-After": "43200"})],
    ids=["key", "credit", "quota", "tomorrow"],
)
def test_what_ends_in_mid_run_ends_the_run_at_once(ask: Callable[[str], Asked], tmp_path: Path, backend: str, fault: Fault) -> None:
    """With no chain failed, and none unfinished but the live ones; it goes on where it was."""
    small, answered = ask(backend).small, 0

    def after_five(handler: Handler, reply: Reply) -> None:
        nonlocal answered
        answered += handler.body.get("max_tokens", 0) > 2
        (fault if answered > 5 and handler.command == "POST" else Handler.send)(handler, reply)

    small.always = after_five
    options = over(small, backend, tmp_path, 20)
    began, before = monotonic(), len(small.bodies)
    result = run(options)
    assert (result.exit_code, result.failed) == (1, 0)
    assert WORDS in str(result.error)
    assert monotonic() - began < 5
    assert len(small.bodies) - before < 40
    small.always = None
    assert (again := run(structs.replace(options, resume=True))).exit_code == 0
    assert again.done == 20


NONSENSE: dict[str, tuple[Fault, str]] = {
    "20 MB": (raw(b'{"choices": "' + b"x" * (20 << 20) + b'"}'), "sent an answer of more than "),
    "surrogates": (raw(b'{"choices": [{"text": "\\ud800", "message": {"content": "\\ud800"}}]}'), "is not JSON: "),
    "digits": (raw(b'{"choices": %s, "usage": %s}' % (b"9" * 5000, b"9" * 5000)), "is not a completion: "),
    "another page": (raw(b"<html><h1>Sign in</h1></html>"), "is not JSON: "),
}


@pytest.mark.parametrize("backend", ["chat", "openai"])
@pytest.mark.parametrize("name", NONSENSE)
def test_a_server_that_answers_nonsense_is_refused_before_the_start(ask: Callable[[str], Asked], backend: str, name: str) -> None:
    asked, (fault, says) = ask(backend), NONSENSE[name]
    asked.small.always = fault
    with pytest.raises(GraphError) as caught:
        asked.portal.call(asked.opened)
    assert says in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["chat", "openai"])
@pytest.mark.parametrize("name", NONSENSE)
def test_a_server_that_answers_nonsense_ends_the_run(ask: Callable[[str], Asked], tmp_path: Path, backend: str, name: str) -> None:
    """Long before `reconnect_s`, the 180 s after which one that answers nothing is gone, and with no chain failed."""
    small, (fault, says) = ask(backend).small, NONSENSE[name]

    def after_five(handler: Handler, reply: Reply) -> None:
        with lock:
            answered.append(handler.body.get("max_tokens", 0) > 16)
            wrong = sum(answered) > 5
        (fault if wrong else Handler.send)(handler, reply)

    answered, lock = list[bool](), Lock()
    small.always = after_five
    options = over(small, backend, tmp_path, 20)
    began = monotonic()
    result = run(options)
    assert (result.exit_code, result.failed) == (1, 0), result.error
    assert says in str(result.error)
    assert monotonic() - began < 60
    small.always = None
    assert run(structs.replace(options, resume=True)).done == 20


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["chat", "openai"])
def test_a_budget_that_all_went_into_reasoning_is_no_failure(ask: Callable[[str], Asked], tmp_path: Path, backend: str) -> None:

    def hidden(answer: dict[str, Any]) -> None:
        for choice in answer["choices"]:
            choice.update(finish_reason="length")
            choice.update({"message": {"content": ""}} if "message" in choice else {"text": "", "matched_stop": None})

    small = ask(backend).small
    small.always = lambda handler, reply: (edited(hidden) if handler.body.get("max_tokens", 0) > 2 else Handler.send)(handler, reply)
    result = run(over(small, backend, tmp_path))
    assert (result.exit_code, result.done) == (0, 4), result.error
    if backend == "chat":
        assert "it is unknown whether the server truncates messages" in str(result.notices)
    assert {(row["answer"], row["correct"]) for row in rows(result, "chains")} == {(None, False)}
    assert {reason for row in rows(result, "calls") for reason in row["finish_reason"]} == {"length"}
    assert {row["attempt"] for row in rows(result, "calls")} == {0}


def over(small: SmallServer, backend: str, folder: Path, problems: int = 4) -> RunOptions:
    """A run over one server."""
    more = "" if backend == "chat" else ", tokenizer: 'bundled:tiny-target'"
    engines = folder / "engines.yaml"
    engines.write_text(f"target: {{backend: {backend}, model: tiny, base_url: '{small.base_url}', max_model_len: 512{more}}}\n")
    problem = write_problems(folder, problems)
    return RunOptions(graph=ROOT / "graphs/target.yaml", engines=engines, input=problem, output=folder / "run", batch_size=4)
