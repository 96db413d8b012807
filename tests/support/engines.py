"""What tests of real engines open and ask."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimTextSpec
from pipeline.engines.torch.spec import TorchSpec
from pipeline.run.prepare import load_plan
from pipeline.system.machine import look
from tests.support.paths import ROOT

Talk = Callable[[Engine], Awaitable[None]]
Converse = Callable[[Talk], None]
"""Runs a conversation with an engine, on the event loop where the engine lives."""


DRAFT = TorchSpec(model="bundled:tiny-draft", max_num_seqs=8, max_model_len=512, max_num_batched_tokens=64)
"""Small limits, so that the tests meet them: full batches, prompts in chunks, evictions."""


class EnginesFile(NamedTuple):
    """An engines file of the checked-in ones, and what is set in it: for runs and for engines that are open already alike."""

    path: Path
    settings: tuple[str, ...]

    def specs(self) -> Mapping[str, Any]:
        """The spec of each role. On a GPU each engine has a share: five of them are open at a time."""
        shares = ("engines.*.args.gpu_memory_utilization=0.15",) if look().gpus and "vllm" in self.path.stem else ()
        return load_plan(ROOT / "graphs/speccot.yaml", self.path, (*self.settings, *shares)).engines


def vllm_file(name: str, *settings: str) -> EnginesFile:
    """A file for vLLM, with room for 16 sequences in each engine: tests meet the limit, and all engines fit beside each other."""
    limits = ("args.max_num_seqs=16", "args.kv_cache_memory_bytes=268435456")
    small = tuple(f"engines.{role}.{setting}" for role in ("draft", "target") for setting in limits)
    return EnginesFile(ROOT / f"graphs/engines/{name}.yaml", (*small, *settings))


PLAIN = vllm_file("tiny-vllm")
DECODE = vllm_file("tiny-vllm-decode", "engines.target.speculative_config.num_speculative_tokens=3", "engines.target.core=0")


SIM = SimSpec(
    model="sim-1b",
    device=SimDeviceSpec(name="gpu", flops_per_s=3e14, bytes_per_s=2e12),
    parameters=1e9,
    kv_bytes_per_token=30_000,
    max_num_seqs=8,
    max_model_len=512,
    text=SimTextSpec(steps_mean=3, step_tokens_mean=12, answer_tokens=10),
)


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
