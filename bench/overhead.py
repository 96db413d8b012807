"""What does orchestration cost? CPU time per call with an engine that answers at once, trace on, against a bare loop.

    python bench/overhead.py [--live 1000,10000] [--repeats 3]

The bare loop makes the same calls with one semaphore for each engine and records nothing. `admission` is the same run with
caches into which the contexts of two thirds of the live chains fit; `controller` is what `speculate: auto` does at each call, without a
run. All run in this process, in turns. Prints a table and writes bench/results/overhead.json.
"""

import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import click
from recording import begin
from tables import overhead as table

from pipeline.data.problems import Problem
from pipeline.engine import Candidate, Completion, EngineStatistics, Request, Usage
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.spec import Purpose
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.admission.order import InputOrder
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.schedule import Pipelined
from pipeline.runtime.speculation.adaptive import Adaptive
from pipeline.runtime.speculation.modes import CallFacts
from pipeline.session.loop import rare_collection
from pipeline.session.preflight import load_plan
from pipeline.stages.build import build_stages
from pipeline.trace.recorder import open_recorder
from pipeline.trace.store import TraceStore

ROOT = Path(__file__).parent.parent
WRITTEN_PER_S = 1000.0
"""Tokens that each chain gets in a second from the target alone, for the controller."""
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


async def ours(engines: dict[str, Instant], live: int, chains: int) -> float:
    """CPU seconds of a run with everything on: lanes, chains, prompts, grading, Parquet; no cache limits the live chains."""
    return await solved(engines, live, chains, None)


async def admission(engines: dict[str, Instant], live: int, chains: int) -> float:
    """CPU seconds of the same run where the caches do limit the live chains."""
    tokens = live * CONTEXT_TOKENS * 2 // 3
    return await solved(engines, live, chains, Admission([CacheLimit(role=role, tokens=tokens) for role in engines]))


async def solved(engines: dict[str, Instant], live: int, chains: int, admission: Admission | None) -> float:
    """CPU seconds of a run."""
    limits = (f"engines.{role}.max_in_flight={MAX_IN_FLIGHT}" for role in engines)
    settings = (f"max_steps={STEPS}", *limits)
    plan = load_plan(ROOT / "bench/graphs/overhead.yaml", None, settings)
    builders = {role: PromptBuilder(engine.tokenizer) for role, engine in engines.items()}
    problems = (Problem(i, str(i), f"Tom has {i % 20} pens. Tom buys 4. How many pens has Tom now?", "7") for i in range(chains))
    with tempfile.TemporaryDirectory() as folder:
        cpu = time.process_time()
        async with open_recorder(TraceStore(Path(folder)), virtual=False) as recorder:
            clock = Clock(time.time_ns(), time.monotonic)
            stages = build_stages(plan, builders, "bench")
            run = Executor(plan, stages, engines, builders, Pipelined(live, admission), recorder, clock, Settings(run_id="bench"))
            await run.run(InputFeed(iter(problems), InputOrder(1, lambda order: False), threads=True))
        assert run.progress.done == chains
        return time.process_time() - cpu


async def bare(engines: dict[str, Instant], live: int, chains: int) -> float:
    """CPU seconds of the same calls from a loop with semaphores."""
    lanes = {role: anyio.Semaphore(MAX_IN_FLIGHT) for role in engines}
    batch = anyio.Semaphore(live)
    request = Request(request_id="", prompt_ids=[1], max_tokens=1)

    async def chain() -> None:
        for call in range(CALLS_PER_CHAIN):
            role = "draft" if call % 2 else "target"
            async with lanes[role]:
                await engines[role].generate(request)
        batch.release()

    cpu = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(chains):
            await batch.acquire()
            tasks.start_soon(chain)
    return time.process_time() - cpu


async def controller(engines: dict[str, Instant], live: int, chains: int) -> float:
    """CPU seconds that the controller of `speculate: auto` takes for as many calls: rounds of three, or direct requests, as it decides."""
    control, now, tick = Adaptive(written=lambda: int(now * WRITTEN_PER_S)), 0.0, 1.0 / (live * WRITTEN_PER_S / STEP_TOKENS)
    answered, turn, cpu = 0, 0, time.process_time()
    for order in range(live):
        control.enter(order, now)
    while answered < chains * CALLS_PER_CHAIN:
        order, turn = turn % live, turn + 1
        mode, begun = control.mode(order, CONTEXT_TOKENS, now), now
        for role, purpose in (("draft", "draft"), ("target", "judge"), ("target", "write"))[: 3 if mode == "speculative" else 1]:
            now, answered = now + tick, answered + 1
            control.called(_facts(role, purpose, mode == "direct", begun, now, live))
            control.interrupts(now)
        control.wrote(order, mode, STEP_TOKENS, turn % 4 > 0, now)
        control.interrupts(now)
    return time.process_time() - cpu


def _facts(role: str, purpose: Purpose, direct: bool, begun: float, now: float, live: int) -> CallFacts:
    return CallFacts(
        role=role,
        purpose=purpose,
        direct=direct,
        n=1,
        input_tokens=CONTEXT_TOKENS,
        cached_input_tokens=CONTEXT_TOKENS - STEP_TOKENS,
        output_tokens=STEP_TOKENS,
        submit=begun,
        end=now,
        in_flight=live,
    )


PLAYS = {"bare": bare, "ours": ours, "admission": admission, "controller": controller}


def measure(engines: dict[str, Instant], live: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Microseconds per call of all, in turns."""
    chains = max(2000, live)
    for _ in range(repeats):
        row: dict[str, Any] = {"live": live, "chains": chains, "calls": chains * CALLS_PER_CHAIN}
        for name, play in PLAYS.items():
            gc.collect()
            with rare_collection():
                row[f"{name}_us"] = 1e6 * anyio.run(play, engines, live, chains) / row["calls"]
        yield row


@click.command()
@click.option("--live", default="1000,10000", show_default=True, help="Live chains, separated by commas.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/overhead.json")
def main(live: str, repeats: int, output: Path) -> None:
    """Print the cost per call."""
    if (pool := "ARROW_DEFAULT_MEMORY_POOL") not in os.environ:  # as `pipeline run` has it, which Arrow reads as it is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {pool: "system"})
    recording = begin(__file__)
    tokenizer = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
    engines = {role: Instant(role, tokenizer) for role in ("draft", "target")}
    results = []
    for count in map(int, live.split(",")):
        rows = list(measure(engines, count, repeats))
        row = {**rows[0], **{key: statistics.median(r[key] for r in rows) for key in (f"{name}_us" for name in PLAYS)}}
        row["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        results.append(row)
    click.echo(table(recording.write(output, {"bench": "overhead", "repeats": repeats, "results": results})))


if __name__ == "__main__":
    main()
