"""Engines over small servers for the tests: how they are opened and asked."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.openai.engine import OpenAIEngine, open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import PipelineError
from tests.support.paths import MODELS
from tests.support.small_server import HOSTED, LLAMA, VLLM, WAIT_S, Fault, Kind, SmallServer, small_server

TOKENIZER = HFTokenizer(str(MODELS / "tiny-target"))
PROMPT = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": "Tom has 3 pens and buys 2. How many?"}]))
THINK_CLOSE = TOKENIZER.special_ids["</think>"]
DIGITS = tuple(TOKENIZER.encode(digit)[-1] for digit in "0123456789")
KINDS = {"vllm": VLLM, "llama": LLAMA, "hosted": HOSTED}
KEY = "sk-canary/7f3a+9"


def ask(name: str = "r", **fields: Any) -> Request:
    return Request(**{"request_id": name, "prompt_ids": PROMPT, "max_tokens": 60, "logprobs": True} | fields)


def first(answer: dict[str, Any]) -> Any:
    """The first choice of an answer."""
    return answer["choices"][0]


def spec_of(small: SmallServer, /, **fields: Any) -> OpenAISpec:
    return OpenAISpec(**{"model": "tiny", "base_url": small.base_url, "tokenizer": "bundled:tiny-target", "max_model_len": 512} | fields)


def talk(spec: OpenAISpec, conversation: Callable[[OpenAIEngine], Awaitable[None]]) -> None:
    """Open an engine over a server and talk to it; nothing takes longer than `WAIT_S`."""

    async def main() -> None:
        with anyio.fail_after(WAIT_S):
            async with open_openai({"draft": spec}) as engines:
                await conversation(engines["draft"])

    anyio.run(main)


def opened(spec: OpenAISpec) -> OpenAIEngine:
    """An engine, which is closed again: what it found out about its server."""
    found: list[OpenAIEngine] = []

    async def keep(engine: OpenAIEngine) -> None:
        found.append(engine)

    talk(spec, keep)
    return found[0]


def answers(kind: Kind, *requests: Request, **fields: Any) -> list[Completion]:
    """What an engine over one server of that kind answers."""
    given: list[Completion] = []

    async def conversation(engine: OpenAIEngine) -> None:
        given.extend([await engine.generate(request) for request in requests])

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server, **fields), conversation)
    return given


async def outcome(engine: Engine, request: Request) -> Completion | PipelineError:
    """What becomes of one attempt at a request."""
    try:
        return await engine.generate(request)
    except PipelineError as error:
        return error


def after(fault: Fault, request: Request | None = None, kind: Kind = VLLM) -> Completion | PipelineError:
    """What becomes of a request on which the server does this; the next one is answered."""
    found: list[Completion | PipelineError] = []

    async def conversation(engine: OpenAIEngine) -> None:
        server.faults.append(fault)
        found.append(await outcome(engine, request or ask(temperature=0.5)))
        assert len((await engine.generate(ask())).candidates) == 1

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server), conversation)
    return found[0]
