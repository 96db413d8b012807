"""An engine as another package would write it: it writes numbered steps, in a worker process, with the simulated tokenizer.

A third of the steps say `wrong`, decided by the request's seed, and it says so when it is asked; after four steps it closes the
thought and boxes the answer.
"""

import math
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from pipeline.engine import Backend, Candidate, Completion, EngineStatistics, Fact, Request, Usage
from pipeline.engines.meter import UsageMeter
from pipeline.engines.process.engine import Worker, WorkerEngine, open_workers
from pipeline.engines.process.wire import Setup
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.errors import RequestRefused, UsageError
from pipeline.graph.spec import RestartableSpec
from pipeline.system.worker_process import Program

STEPS, THINK_CLOSE = 4, "</think>"


class ScribeSpec(RestartableSpec, frozen=True, kw_only=True, tag="scribe"):
    """What an engines file may say of an engine `scribe`."""

    model: str
    max_model_len: int = 4096
    loads: Literal["at once", "never", "not"] = "at once"
    """`never`: its worker starts a process of its own, and waits for that; `not`: it refuses."""


class ScribeModel:
    """A `BatchedModel` that finishes each request in one iteration, and never one for more tokens than its context holds."""

    def __init__(self, spec: ScribeSpec) -> None:
        self.max_model_len, self.vocab_size = spec.max_model_len, VOCAB_SIZE
        self.facts: dict[str, Fact] = {"answers": "simulated", "devices": ("desk",), "kv_cache_tokens": 1000}
        self._tokenizer, self._meter = SimTokenizer(), UsageMeter()
        self._waiting: dict[int, Request] = {}
        self._seen: set[tuple[int, ...]] = set()

    @property
    def idle(self) -> bool:
        return not self._waiting

    def add(self, number: int, request: Request) -> None:
        if len(request.option_ids) not in (0, 2):
            raise RequestRefused("a scribe chooses between two")
        self._waiting[number] = request

    def abort(self, number: int) -> None:
        self._waiting.pop(number, None)

    def step(self) -> list[tuple[int, Completion]]:
        finished = {number: each for number, each in self._waiting.items() if each.max_tokens <= self.max_model_len}
        for number in finished:
            del self._waiting[number]
        return [(number, self._answer(request)) for number, request in finished.items()]

    def reset_prefix_cache(self) -> None:
        self._seen.clear()

    def statistics(self) -> EngineStatistics:
        return self._meter.statistics()

    def _answer(self, request: Request) -> Completion:
        prompt = self._tokenizer.decode(request.prompt_ids)
        logprobs: tuple[float, ...] = ()
        if request.option_ids:
            wrong = prompt.rindex("wrong") > prompt.rindex("Step ") if "wrong" in prompt else False
            logprobs = tuple(map(math.log, (0.1, 0.9) if wrong else (0.9, 0.1)))
            best = request.option_ids[wrong]
            candidates = (Candidate(ids=(best,), text=self._tokenizer.decode([best]), cumulative_logprob=-0.1, finish_reason="length"),)
        else:
            candidates = tuple(self._candidate(request, prompt, number) for number in range(request.n))
        known = tuple(request.prompt_ids)
        cached, written = len(known) - 1 if known in self._seen else 0, sum(len(candidate.ids) for candidate in candidates)
        self._seen.add(known)
        usage = Usage(input_tokens=len(known), cached_input_tokens=cached, output_tokens=written)
        self._meter.count(usage)
        return Completion(candidates=candidates, option_logprobs=logprobs, usage=usage)

    def _candidate(self, request: Request, prompt: str, number: int) -> Candidate:
        done = prompt.count("Step ")
        if prompt.rstrip().endswith(THINK_CLOSE):
            text, stop = "\\boxed{4}", None
        elif done == STEPS:
            text, stop = f"Done.{THINK_CLOSE}", self._tokenizer.special_ids[THINK_CLOSE]
        else:
            word = "wrong" if (request.seed + number) % 3 == 0 else "right"
            text, stop = f"Step {done + 1}, {word}.\n\n", "\n\n"
        return Candidate(
            ids=tuple(self._tokenizer.encode(text)), text=text, cumulative_logprob=None, finish_reason="stop", stop_reason=stop
        )


def load(setup: Setup) -> ScribeModel:
    """What the worker process does first; an interrupt, which all processes of a job get, leaves it alone."""
    os.kill(os.getpid(), signal.SIGINT)
    spec = setup.spec_as(ScribeSpec)
    if spec.loads == "never":
        subprocess.run(["sleep", "600"], check=False)
    if spec.loads == "not":
        raise UsageError("there is no scribe here")
    return ScribeModel(spec)


@asynccontextmanager
async def open_scribe(specs: Mapping[str, ScribeSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """One worker for each role."""
    program = Program(module="pipeline.engines.process.worker", arguments=(f"{__name__}:load",))
    workers = [[Worker(Setup.of(role, spec, spec.model), program, SimTokenizer)] for role, spec in specs.items()]
    async with open_workers(workers) as opened:
        yield opened


BACKEND = Backend(spec=ScribeSpec, open=open_scribe)
