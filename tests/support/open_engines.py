"""Real engines and servers for the tests, each started once a session; they live on an event loop in a thread of its own.

Nothing that a test does to them may outlast the test: one that kills or fills an engine opens its own.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pipeline.engine import Engine
from pipeline.engines.openai.engine import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.process.engine import Worker
from pipeline.engines.torch import backend as torch_backend
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.backend import open_vllm
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.run.run import SessionResult
from tests.support.bench import InProcess
from tests.support.engines import DECODE, DRAFT, PLAIN
from tests.support.paths import MODELS, ROOT, TEST_SET
from tests.support.runs import SolveTestSet, solve_on
from tests.support.servers import Running, vllm_server


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal("asyncio") as portal:
        yield portal


@pytest.fixture(scope="session")
def torch_draft() -> Engine:
    """The bundled draft on engine `torch`, in this process."""
    return InProcess("draft", DRAFT)


@pytest.fixture
def torch_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines `torch` compute in this process, which loads torch once for many tests, and not in workers."""

    @asynccontextmanager
    async def opened(queues: Sequence[Sequence[Worker]]) -> AsyncIterator[Mapping[str, InProcess]]:
        setups = [worker.setup for queue in queues for worker in queue]
        yield {setup.role: InProcess(setup.role, setup.spec_as(TorchSpec)) for setup in setups}

    monkeypatch.setattr(torch_backend, "open_workers", opened)


@pytest.fixture(scope="session")
def solve_test_set(portal: BlockingPortal) -> SolveTestSet:
    """`solve_test_set(folder, graph, limit=, ...)`: a finished run over the bundled test set on the bundled pair, in this process."""
    engines = {role: InProcess(role, spec) for role, spec in load_plan(ROOT / "graphs/speccot.yaml").engines.items()}

    def solve(folder: Path, graph: str = "speccot", limit: int = 100, **options: Any) -> SessionResult:
        chosen: dict[str, Any] = {"graph": ROOT / f"graphs/{graph}.yaml", "input": (str(TEST_SET),), "limit": limit, "output": folder}
        return portal.call(solve_on, engines, RunOptions(**chosen | options))

    return solve


@pytest.fixture(scope="session")
def vllm() -> None:
    """Skips the tests that need vLLM where it is not installed."""
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed here")


@pytest.fixture(scope="session")
def vllm_engines(portal: BlockingPortal, vllm: None) -> Iterator[Mapping[str, Engine]]:
    """The bundled pair, as `PLAIN` says."""
    with portal.wrap_async_context_manager(open_vllm(PLAIN.specs())) as engines:
        yield engines


@pytest.fixture(scope="session")
def speculating(portal: BlockingPortal, vllm: None) -> Iterator[Engine]:
    """The target with the draft model inside it."""
    with portal.wrap_async_context_manager(open_vllm({"target": DECODE.specs()["target"]})) as engines:
        yield engines["target"]


@pytest.fixture(scope="session")
def served_draft(vllm: None) -> Iterator[Running]:
    """The bundled draft model on a vLLM server, as `draft`."""
    with vllm_server(MODELS / "tiny-draft", "draft") as running:
        yield running


@pytest.fixture(scope="session")
def openai_engines(portal: BlockingPortal, served_draft: Running) -> Iterator[Mapping[str, Engine]]:
    spec = OpenAISpec(model="draft", base_url=served_draft.base_url, tokenizer="bundled:tiny-draft")
    with portal.wrap_async_context_manager(open_openai({"draft": spec})) as engines:
        yield engines
