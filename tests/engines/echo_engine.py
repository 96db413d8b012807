"""An engine as another package would write it: it says its prompt again, in a worker process, with the simulated tokenizer.

What opens it and what its worker loads stand in one file; nothing of it is known to `pipeline`.
"""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from pipeline.engine import Candidate, Completion, EngineStatistics, Fact, Request, Usage
from pipeline.engines.meter import UsageMeter
from pipeline.engines.process.engine import Worker, WorkerEngine, open_workers
from pipeline.engines.process.wire import Setup
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.errors import RequestRefused, UsageError
from pipeline.graph.spec import RestartableSpec
from pipeline.system.worker_process import Program

TOKENIZER = SimTokenizer()


class EchoSpec(RestartableSpec, frozen=True, kw_only=True, tag="echo"):
    """What an engines file may say of an engine `echo`."""

    loads: Literal["at once", "never", "not"] = "at once"
    """`never`: its worker starts a process of its own, and waits for that; `not`: it refuses."""


class EchoModel:
    """A `BatchedModel`: a token an iteration to every request; candidate j begins with token j of the prompt."""

    max_model_len, vocab_size = 99, VOCAB_SIZE

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {"answers": "simulated", "devices": ("echo",)}
        self._running: dict[int, tuple[Request, int]] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._meter = UsageMeter()

    @property
    def idle(self) -> bool:
        return not self._running

    def add(self, number: int, request: Request) -> None:
        if request.option_ids:
            raise RequestRefused("an echo chooses nothing")
        self._running[number] = request, 0

    def abort(self, number: int) -> None:
        self._running.pop(number, None)

    def step(self) -> list[tuple[int, Completion]]:
        self._running = {number: (request, length + 1) for number, (request, length) in self._running.items()}
        finished = {number: request for number, (request, length) in self._running.items() if length == request.max_tokens}
        for number in finished:
            del self._running[number]
        return [(number, self._completion(request)) for number, request in finished.items()]

    def reset_prefix_cache(self) -> None:
        self._seen.clear()

    def statistics(self) -> EngineStatistics:
        return self._meter.statistics()

    def _completion(self, request: Request) -> Completion:
        prompt = tuple(request.prompt_ids)
        echoes = [prompt[start : start + request.max_tokens] for start in range(request.n)]
        said = [Candidate(ids=ids, text=TOKENIZER.decode(ids), cumulative_logprob=None, finish_reason="length") for ids in echoes]
        cached = len(prompt) - 1 if prompt in self._seen else 0
        self._seen.add(prompt)
        usage = Usage(input_tokens=len(prompt), cached_input_tokens=cached, output_tokens=sum(map(len, echoes)))
        self._meter.count(usage)
        return Completion(candidates=tuple(said), usage=usage)


def load(setup: Setup) -> EchoModel:
    """What the worker process does first, and leaves it alone: to be interrupted, as with all processes of a job."""
    os.kill(os.getpid(), signal.SIGINT)
    loads = setup.spec_as(EchoSpec).loads
    if loads == "never":
        subprocess.run(["sleep", "600"], check=False)
    if loads == "not":
        raise UsageError("there is no echo here")
    return EchoModel()


@asynccontextmanager
async def open_echo(specs: Mapping[str, EchoSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """One worker for each role."""
    program = Program(module="pipeline.engines.process.worker", arguments=("tests.engines.echo_engine:load",))
    async with open_workers([[Worker(Setup.of(role, spec, "echo"), program, SimTokenizer)] for role, spec in specs.items()]) as opened:
        yield opened
