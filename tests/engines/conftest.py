"""Real engines for the tests, started once a session; they live on an event loop in a thread of its own."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.util import find_spec

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimTextSpec
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.backend import open_vllm
from pipeline.engines.vllm.spec import VllmSpec
from tests.support import servers

Talk = Callable[[Engine], Awaitable[None]]
Converse = Callable[[Talk], None]
"""Runs a conversation with an engine, on the event loop where the engine lives."""

DRAFT = TorchSpec(model="bundled:tiny-draft", max_num_seqs=8, max_model_len=512, max_num_batched_tokens=64)
"""Small limits, so that the tests meet them: full batches, prompts in chunks, evictions."""
TARGET = TorchSpec(model="bundled:tiny-target", max_num_seqs=8, max_model_len=512)
VLLM = {
    "draft": VllmSpec(model="bundled:tiny-draft", dtype="float32", max_num_seqs=8, max_model_len=512, kv_cache_gib=0.25),
    "target": VllmSpec(model="bundled:tiny-target", dtype="float32", max_num_seqs=8, max_model_len=512, kv_cache_gib=0.25),
}
SIM = SimSpec(
    model="sim-1b",
    device=SimDeviceSpec(name="gpu", flops_per_s=3e14, bytes_per_s=2e12),
    parameters=1e9,
    kv_bytes_per_token=30_000,
    max_num_seqs=8,
    max_model_len=512,
    text=SimTextSpec(steps_mean=3, step_tokens_mean=12, answer_tokens=10),
)


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal("asyncio") as portal:
        yield portal


@pytest.fixture(scope="session")
def torch_engines(portal: BlockingPortal) -> Iterator[Mapping[str, Engine]]:
    with portal.wrap_async_context_manager(open_torch({"draft": DRAFT, "target": TARGET})) as engines:
        yield engines


@pytest.fixture(scope="session")
def vllm_engines(portal: BlockingPortal) -> Iterator[Mapping[str, Engine]]:
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed here")
    with portal.wrap_async_context_manager(open_vllm(VLLM)) as engines:
        yield engines


@pytest.fixture(scope="session")
def served_draft() -> Iterator[servers.Running]:
    """The bundled draft model on a vLLM server, as `draft`."""
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed here")
    with servers.vllm_server(servers.ROOT / "pipeline/models/tiny-draft", "draft") as running:
        yield running


@pytest.fixture(scope="session")
def openai_engines(portal: BlockingPortal, served_draft: servers.Running) -> Iterator[Mapping[str, Engine]]:
    spec = OpenAISpec(model="draft", base_url=served_draft.base_url, tokenizer="bundled:tiny-draft")
    with portal.wrap_async_context_manager(open_openai({"draft": spec})) as engines:
        yield engines


async def ask_all(engine: Engine, requests: list[Request]) -> list[Completion]:
    """All at once; the answers in the order of the requests."""
    answers: dict[int, Completion] = {}

    async def ask(index: int, request: Request) -> None:
        answers[index] = await engine.generate(request)

    async with anyio.create_task_group() as tasks:
        for index, request in enumerate(requests):
            tasks.start_soon(ask, index, request)
    return [answers[index] for index in range(len(requests))]


def prompt_of(engine: Engine, problem: str) -> list[int]:
    """The prompt that makes the engine think about `problem`."""
    return engine.tokenizer.encode(engine.tokenizer.render([{"role": "user", "content": problem}]) + "<think>\n")
