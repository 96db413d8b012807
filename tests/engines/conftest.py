"""Real engines for the tests, started once a session; they live on an event loop in a thread of its own."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pipeline.engine import Engine
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.vllm.backend import open_vllm
from tests.support import servers
from tests.support.engines import DRAFT, TARGET, VLLM


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
