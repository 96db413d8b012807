"""The worker of engine `vllm` over an `AsyncLLM` that is scripted: what becomes of one request's error."""

import asyncio
import socket
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine import Request
from pipeline.engines.models import resolve
from pipeline.engines.process.wire import Submit
from pipeline.engines.vllm.spec import VllmSpec

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]
GOOD = 5


class ScriptedLLM:
    """Answers each prompt whose first token is `GOOD`, and raises what `fails` says for all others."""

    def __init__(self, fails: Callable[[], Exception | None] = lambda: None, **odd: Any) -> None:
        self.model_config = SimpleNamespace(max_model_len=512, get_vocab_size=lambda: 560)
        self._fails, self._odd = fails, odd

    async def generate(self, prompt: dict[str, Any], params: Any, **_: Any) -> AsyncIterator[Any]:
        assert prompt["type"] == "token"
        await asyncio.sleep(0)
        bad = prompt["prompt_token_ids"][0] != GOOD
        if bad and (error := self._fails()) is not None:
            raise error
        said = {"token_ids": [7], "finish_reason": "length", "stop_reason": None, "cumulative_logprob": None, "logprobs": None}
        outputs = [SimpleNamespace(**said | (self._odd if bad else {}))]
        yield SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], num_cached_tokens=0, outputs=outputs, metrics=None)


class Line:
    """The main process's messages, one after the other as each is answered, and what it is sent."""

    def __init__(self, messages: list[Any]) -> None:
        self.socket, self.far = socket.socketpair()
        self.closed, self._messages, self.got = False, messages, list[Any]()
        self.far.send(b"x")

    def receive(self, *, wait: bool) -> list[Any]:
        self.socket.recv(1)
        self.closed = not self._messages
        return [self._messages.pop(0)] if self._messages else []

    def send(self, message: Any) -> None:
        self.got.append(message)
        self.far.send(b"x")


def answers(llm: ScriptedLLM, *messages: Any) -> list[Any]:
    """What a worker over `llm` sends."""
    with warnings.catch_warnings(action="ignore"):  # vLLM's own, while it is imported
        from pipeline.engines.vllm.server import Reporter, VllmServer

    line: Any = Line(list(messages))
    spec, folder = VllmSpec(model="bundled:tiny-draft"), resolve("draft", "bundled:tiny-draft")
    server = VllmServer(llm, spec, folder, Reporter(line, speculates=False))
    with closing(line.socket), closing(line.far):
        asyncio.run(server.serve(line))
    got: list[Any] = line.got
    return got


def asked(first: int, **options: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": [first, 6], "max_tokens": 4, "temperature": 1.0} | options)


def gone() -> Exception:
    """An error without words, but with a cause."""
    error = RuntimeError()
    error.__cause__ = OSError("the block is gone")
    return error


@pytest.mark.parametrize(
    ("does", "options", "becomes", "says"),
    [
        ({"fails": lambda: ValueError("temperature is odd")}, {"n": 3}, "refused", "temperature is odd"),
        ({"fails": gone}, {"n": 3}, "again", "the block is gone"),
        ({"finish_reason": "error"}, {}, "again", "finish reason 'error'"),
        ({"logprobs": []}, {"option_ids": (7, 8), "max_tokens": 1}, "again", "IndexError"),
    ],
    ids=range(4),
)
def test_what_goes_wrong_with_one_request_is_that_of_one_request(
    does: dict[str, Any], options: dict[str, Any], becomes: str, says: str
) -> None:
    bad, good = answers(ScriptedLLM(**does), Submit(0, asked(GOOD + 1, **options)), Submit(1, asked(GOOD, n=3)))
    ((number, why, again),) = bad.failed
    assert (number, says in why, again) == (0, True, becomes == "again"), why
    ((number, completion),) = good.done
    assert (number, len(completion.candidates)) == (1, 3)


def test_the_death_of_the_engine_ends_the_worker() -> None:
    with warnings.catch_warnings(action="ignore"):
        from vllm.v1.engine.exceptions import EngineDeadError
    with pytest.raises(ExceptionGroup) as died:
        answers(ScriptedLLM(EngineDeadError), Submit(0, asked(GOOD + 1, n=2)))
    assert died.group_contains(EngineDeadError)
