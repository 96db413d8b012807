"""What the orchestration of a call and a durable row cost, in microseconds of CPU: the workloads of bench/cost/against_parent.py.

The engines answer at once. `orchestration` is a whole run of them with everything on, `admission` the same where the caches limit the
live chains, `rows` the rows of calls straight into a store.
"""

import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engine import Candidate, Completion, EngineStatistics, Request, Usage
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.run.loop import rare_collection
from pipeline.run.prepare import load_plan
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.chain_recorder import Recording
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor, Fitted, Settings
from pipeline.runtime.progress import Progress
from pipeline.runtime.schedule import Schedule
from pipeline.stages.build import build_stages
from pipeline.store.folder import FILE, FORMAT
from pipeline.store.recorder import open_recorder
from pipeline.store.resume import ResumeState
from pipeline.store.store import RunStore

ROOT = Path(__file__).parent.parent.parent
LIVE, ROWS_AT_ONCE = 1000, 1024
STEPS, STEP_TOKENS, MAX_IN_FLIGHT = 10, 12, 256
CALLS_PER_CHAIN = 2 + 2 * STEPS
CONTEXT_TOKENS = 120
"""About the context of a chain in the middle of its thought."""


class Instant:
    """An engine that answers after one turn of the event loop: drafts differ, the first candidate is always chosen."""

    max_model_len = 1 << 20
    vocab_size = 1 << 20

    def __init__(self, role: str, tokenizer: HFTokenizer) -> None:
        self.role, self.tokenizer, self.facts = role, tokenizer, {}
        step = tokenizer.encode("Tom buys 4, so 3 + 4 = 7.\n\n")[:STEP_TOKENS]
        self._drafts = tuple(self._candidate([*step[:-2], token, step[-1]]) for token in tokenizer.encode(" 1 2 3 4 5"))
        self._texts = (self._candidate(step),)

    def _candidate(self, ids: list[int]) -> Candidate:
        text = self.tokenizer.decode(ids)
        return Candidate(ids=tuple(ids), text=text, cumulative_logprob=-1.0, finish_reason="stop", stop_reason="\n\n")

    async def generate(self, request: Request) -> Completion:
        await anyio.lowlevel.checkpoint()
        candidates, logprobs = self._drafts if request.n > 1 else self._texts, ()
        if request.option_ids:
            candidates = (Candidate(ids=request.option_ids[1:2], text="1", cumulative_logprob=-0.2, finish_reason="length"),)
            logprobs = (-3.0, *[-0.2] * (len(request.option_ids) - 1))
        usage = Usage(input_tokens=len(request.prompt_ids), output_tokens=sum(len(c.ids) for c in candidates))
        return Completion(candidates=candidates, option_logprobs=logprobs, usage=usage)

    def statistics(self) -> EngineStatistics:
        zeros = dict.fromkeys(EngineStatistics.__struct_fields__, 0)
        return EngineStatistics(**zeros)

    async def aclose(self) -> None:
        return None


async def orchestration(engines: dict[str, Instant], live: int, chains: int) -> float:
    """CPU seconds of a run with everything on: lanes, chains, prompts, grading, Parquet; no cache limits the live chains."""
    return await solved(engines, live, chains, None)


async def admission(engines: dict[str, Instant], live: int, chains: int) -> float:
    """CPU seconds of the same run where the caches do limit the live chains."""
    tokens = live * CONTEXT_TOKENS * 2 // 3
    return await solved(engines, live, chains, Admission([CacheLimit(role=role, tokens=tokens) for role in engines]))


async def solved(engines: dict[str, Instant], live: int, chains: int, admission: Admission | None, store: RunStore | None = None) -> float:
    """CPU seconds of a run, in a folder of its own where no `store` is given."""
    limits = (f"engines.{role}.max_in_flight={MAX_IN_FLIGHT}" for role in engines)
    settings = (f"max_steps={STEPS}", *limits)
    plan = load_plan(ROOT / "bench/graphs/workload.yaml", None, settings)
    builders = {role: PromptBuilder(engine.tokenizer) for role, engine in engines.items()}
    problems = (Problem(i, str(i), f"Tom has {i % 20} pens. Tom buys 4. How many pens has Tom now?", "7") for i in range(chains))
    with tempfile.TemporaryDirectory() as folder:
        cpu = time.process_time()
        async with open_recorder(store or RunStore(begun(folder)), virtual=False) as recorder:
            clock = Clock(time.time_ns(), time.monotonic)
            progress = Progress(plan, ResumeState(), print, clock, admission)
            recording = Recording(run_id="bench", rows=recorder, progress=progress, clock=clock)
            fitted = Fitted(plan, engines, builders, build_stages(plan, builders, "bench"))
            run = Executor(fitted, Schedule(live, admission), recording, Settings())
            await run.run(InputFeed(problems, 1, 1, lambda place: False, threads=True))
        assert run.progress.done == chains
        return time.process_time() - cpu


def begun(folder: str) -> Path:
    """The path of `folder`, which becomes that of a run."""
    (Path(folder) / FILE).write_text(f'{{"format": {FORMAT}}}')
    return Path(folder)


class Kept(RunStore):
    """A store that keeps the calls it is given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls: list[Struct] = []

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        super().append(table, rows)
        if table == "calls":
            self.calls += rows


async def recorded_calls(engines: dict[str, Instant]) -> list[Struct]:
    """The calls of a run."""
    with tempfile.TemporaryDirectory() as folder:
        store = Kept(begun(folder))
        await solved(engines, LIVE, LIVE, None, store)
    return store.calls


def written(rows: Sequence[Struct]) -> float:
    """Microseconds of CPU a row that a store needs for `rows`, `ROWS_AT_ONCE` with each append."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        cpu = time.process_time()
        store = RunStore(begun(folder))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            store.append("calls", rows[start : start + ROWS_AT_ONCE])
        store.close()
        return 1e6 * (time.process_time() - cpu) / len(rows)


def workloads() -> Mapping[str, Callable[[], float]]:
    """The cost of each, in microseconds of CPU a call or a row, by name."""
    tokenizer = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
    engines = {role: Instant(role, tokenizer) for role in ("draft", "target")}
    rows = anyio.run(recorded_calls, engines)

    def measured(play: Callable[[dict[str, Instant], int, int], Awaitable[float]]) -> Callable[[], float]:
        def cost() -> float:
            gc.collect()
            with rare_collection():
                return 1e6 * anyio.run(play, engines, LIVE, LIVE) / (LIVE * CALLS_PER_CHAIN)

        return cost

    plays = {play.__name__: measured(play) for play in (orchestration, admission)}
    return plays | {"rows": lambda: written(rows)}
