"""The worker of engine `vllm` over an `AsyncLLM` that is scripted: what becomes of one request's error, and of a cache that is kept."""

import asyncio
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine import Request
from pipeline.engines.models import resolve
from pipeline.engines.process.wire import ResetPrefixCache, Submit
from pipeline.engines.vllm.spec import VllmSpec

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]
GOOD = 5


class ScriptedLLM:
    """Answers each prompt whose first token is `GOOD`, and raises what `fails` says for all others; keeps its cache `kept` times."""

    def __init__(self, fails: Callable[[], Exception | None] = lambda: None, kept: int = 0, **odd: Any) -> None:
        self.model_config = SimpleNamespace(max_model_len=512, get_vocab_size=lambda: 560)
        self._fails, self._kept, self._odd = fails, kept, odd
        self.asked: list[str] = []

    async def generate(self, prompt: dict[str, Any], params: Any, *, request_id: str, **_: Any) -> AsyncIterator[Any]:
        self.asked.append(request_id)
        assert prompt["type"] == "token"
        await asyncio.sleep(0)
        bad = prompt["prompt_token_ids"][0] != GOOD
        if bad and (error := self._fails()) is not None:
            raise error
        said = {"token_ids": [7], "finish_reason": "length", "stop_reason": None, "cumulative_logprob": None, "logprobs": None}
        said |= self._odd if bad else {}
        ids = prompt["prompt_token_ids"]
        yield SimpleNamespace(
            prompt_token_ids=ids, num_cached_tokens=0, outputs=[SimpleNamespace(**said)], metrics=None, prompt_logprobs=None
        )

    async def reset_prefix_cache(self) -> bool:
        self._kept -= 1
        self.asked += ["reset"] if self._kept < 0 else []
        return self._kept < 0


class Line:
    """The main process's messages, one after the other as each is answered, and what it is sent."""

    def __init__(self, messages: list[Any]) -> None:
        self.socket, self.far = socket.socketpair()
        self.closed, self._messages, self.got = False, messages, list[Any]()
        self.far.send(b"x")

    def receive(self, *, wait: bool) -> Iterator[Any]:
        self.socket.recv(1)
        self.closed = not self._messages
        found = [self._messages.pop(0)] if self._messages else []
        if found == [ResetPrefixCache()]:  # which nothing answers
            self.far.send(b"x")
        return iter(found)

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


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("where", "name", "words", "becomes", "says"),
    [
        ("builtins", "ValueError", ("temperature is odd",), "refused", "temperature is odd"),
        ("vllm.v1.engine.exceptions", "EngineGenerateError", (), "again", "the block is gone"),
        ("builtins", "KeyError", ("x",), "again", "x"),
    ],
)
def test_an_error_of_one_request_is_that_of_one_request(
    where: str, name: str, words: tuple[str, ...], becomes: str, says: str, n: int
) -> None:
    with warnings.catch_warnings(action="ignore"):
        kind = getattr(import_module(where), name)

    def error() -> Exception:
        made: Exception = kind(*words)
        made.__cause__ = OSError("the block is gone")
        return made

    llm = ScriptedLLM(error)
    bad, good = answers(llm, Submit(0, asked(GOOD + 1, n=n)), Submit(1, asked(GOOD, n=n)))
    ((number, why),) = getattr(bad, becomes)
    assert number == 0
    assert says in why
    assert [number for number, _ in good.done] == [1]
    assert len(good.done[0][1].candidates) == n


@pytest.mark.parametrize(
    ("odd", "options", "says"),
    [
        ({"finish_reason": "error"}, {}, "finish reason 'error'"),
        ({"logprobs": []}, {"option_ids": (7, 8), "max_tokens": 1}, "IndexError"),
        ({"token_ids": None}, {}, "TypeError"),
    ],
    ids=str,
)
def test_an_odd_output_is_that_of_one_request(odd: dict[str, Any], options: dict[str, Any], says: str) -> None:
    bad, good = answers(ScriptedLLM(**odd), Submit(0, asked(GOOD + 1, **options)), Submit(1, asked(GOOD)))
    ((_, why),) = bad.again
    assert says in why
    assert len(good.done) == 1


def test_the_death_of_the_engine_ends_the_worker() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    with pytest.raises(ExceptionGroup) as died:
        answers(ScriptedLLM(EngineDeadError), Submit(0, asked(GOOD + 1, n=2)))
    assert died.group_contains(EngineDeadError)


def test_later_requests_wait_until_the_prefix_cache_is_empty() -> None:
    llm = ScriptedLLM(kept=3)
    (report,) = answers(llm, ResetPrefixCache(), Submit(0, asked(GOOD)))
    assert len(report.done) == 1
    assert llm.asked == ["reset", "0-0"]
