"""An engine as another package would write it: it writes numbered steps, in a worker process, with the simulated tokenizer.

A third of the steps say `wrong`, decided by the request's seed, and it says so when it is asked; after four steps it closes the
thought and boxes the answer.
"""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pipeline.engine import Backend, Candidate, Completion, EngineStatistics, Fact, Request, Usage
from pipeline.engines.meter import UsageMeter
from pipeline.engines.process.engine import Worker, WorkerEngine, open_workers
from pipeline.engines.process.wire import Setup
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.graph.spec import RestartableSpec
from pipeline.system.worker_process import Program

STEPS, THINK_CLOSE = 4, "</think>"


class ScribeSpec(RestartableSpec, frozen=True, kw_only=True, tag="scribe"):
    """What an engines file may say of an engine `scribe`."""

    model: str
    max_model_len: int = 4096


class ScribeModel:
    """A `BatchedModel` that finishes each request in one iteration."""

    def __init__(self, spec: ScribeSpec) -> None:
        self.max_model_len, self.vocab_size = spec.max_model_len, VOCAB_SIZE
        self.facts: dict[str, Fact] = {"answers": "simulated", "devices": ("desk",), "kv_cache_tokens": 1000}
        self._tokenizer, self._meter = SimTokenizer(), UsageMeter()
        self._waiting: dict[int, Request] = {}

    @property
    def idle(self) -> bool:
        return not self._waiting

    def add(self, number: int, request: Request) -> None:
        self._waiting[number] = request

    def abort(self, number: int) -> None:
        self._waiting.pop(number, None)

    def step(self) -> list[tuple[int, Completion]]:
        finished = [(number, self._answer(request)) for number, request in self._waiting.items()]
        self._waiting.clear()
        return finished

    def reset_prefix_cache(self) -> None:
        return

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
        usage = Usage(input_tokens=len(request.prompt_ids), output_tokens=sum(len(candidate.ids) for candidate in candidates))
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
    """What the worker process does first."""
    return ScribeModel(setup.spec_as(ScribeSpec))


@asynccontextmanager
async def open_scribe(specs: Mapping[str, ScribeSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """One worker for each role."""
    program = Program(module="pipeline.engines.process.worker", arguments=("scribe:load",))
    workers = [[Worker(Setup.of(role, spec, spec.model), program, SimTokenizer)] for role, spec in specs.items()]
    async with open_workers(workers) as opened:
        yield opened


BACKEND = Backend(spec=ScribeSpec, open=open_scribe)
