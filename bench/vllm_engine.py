"""Requests per second through the engine `vllm` against a bare loop over `AsyncLLM.generate`: what does our way cost?

    python -m bench.vllm_engine

Both are open at once with the same engine arguments on the same cores, and take turns on the same requests: drafts of five
candidates and one-token choices, new problems in every round, at most `max_in_flight` at a time. The bare loop lives in a
process of its own, sends vLLM's own objects and drops the outputs. Writes bench/results/vllm-engine.json.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from itertools import islice
from typing import Any

import anyio
import click
import msgspec

from bench.figures import ROOT, TRIAL, Results, begin, grid
from bench.runs import ARITH, say
from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.engine import Engine, Request
from pipeline.engines.process.wire import Setup
from pipeline.engines.registry import open_engines
from pipeline.engines.vllm.backend import is_cpu_build, program, setup
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.load import load_engines
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.system.machine import look

ENGINES, ROLE = ROOT / "graphs/engines/tiny-vllm.yaml", "target"
PROBLEMS, REPEATS = (24, 2) if TRIAL else (480, 5)


def table(results: Results) -> str:
    """Requests a second of both, and their ratio in each round."""
    ratios, rates = results["ratios"], results["requests_per_s"]
    by_round = f"{' '.join(f'{ratio:.2f}' for ratio in ratios)}, median **{statistics.median(ratios):.2f}**"
    rows = [("engine `vllm`", f"{rates['engine']:.1f}", by_round), ("bare loop", f"{rates['bare']:.1f}", "")]
    return grid(("", "requests/s, median", f"engine over bare, by round of {results['requests_per_round']} requests"), rows)


def requests_of(builder: PromptBuilder, problems: list[Problem]) -> list[Request]:
    """A draft and a choice for each problem."""
    made = []
    for number, problem in enumerate(problems):
        context = builder.generation(problem.problem)
        candidates = [builder.tokenizer.encode(f"Then {n} + {number % 9} = {n + number % 9}.\n\n") for n in range(5)]
        choice = builder.choose(context, candidates)
        draft = {"n": 5, "max_tokens": 40, "temperature": 0.6, "seed": number, "stop": ("\n\n",)}
        made.append(Request(request_id=f"{problem.problem_id}/draft", prompt_ids=context, **draft))
        made.append(Request(request_id=f"{problem.problem_id}/choice", prompt_ids=choice.ids, max_tokens=1, option_ids=choice.option_ids))
    return made


async def through_the_engine(engine: Engine, requests: list[Request], in_flight: int) -> float:
    """Seconds for all of `requests`."""
    limiter = anyio.Semaphore(in_flight)

    async def send(request: Request) -> None:
        async with limiter:
            await engine.generate(request)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for request in requests:
            tasks.start_soon(send, request)
    return time.perf_counter() - started


class Bare:
    """The bare loop, in a process of its own."""

    def __init__(self, setup: Setup, environment: dict[str, str], in_flight: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.vllm_engine", str(in_flight)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            cwd=ROOT,
            text=True,
            process_group=0,
        )
        self._say(setup)

    def _say(self, message: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(message, enc_hook=list).decode() + "\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("bare: "):
            if not line:
                raise click.ClickException("the bare loop died; what it said stands above")
        return line.removeprefix("bare: ")

    def run(self, requests: list[Request]) -> float:
        """Seconds for all of `requests`."""
        return float(self._say(requests))

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # with all that vLLM started
        self._process.wait()


async def _bare_loop(in_flight: int) -> None:
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    # It imports vLLM, which only this process does.
    from pipeline.engines.vllm.terms import arguments, sampling_params

    setup = msgspec.json.decode(sys.stdin.readline(), type=Setup)
    options = arguments(setup.role, setup.spec_as(VllmSpec), setup.model, on_cpu=current_platform.is_cpu())
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))
    limiter, numbers = asyncio.Semaphore(in_flight), iter(range(1 << 60))

    async def send(request: Request) -> None:
        params = sampling_params(request, engine.model_config.max_model_len, speculates=False)
        async with limiter:
            async for _ in engine.generate({"prompt_token_ids": list(request.prompt_ids)}, params, request_id=str(next(numbers))):
                pass

    print("bare: ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        requests = msgspec.json.decode(line, type=list[Request])
        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                tasks.create_task(send(request))
        print(f"bare: {time.perf_counter() - started}", flush=True)
    engine.shutdown()


async def measure(problems: list[Problem]) -> dict[str, list[float]]:
    """Seconds of every round."""
    spec, machine = load_engines(ENGINES)[ROLE], look()
    assert isinstance(spec, VllmSpec)
    cores = tuple(range(spec.core or 0, (spec.core or 0) + spec.threads)) if is_cpu_build(machine) else None
    bare = Bare(setup(ROLE, spec, cores or ()), program(spec, cores, machine).environment, spec.max_in_flight)
    times: dict[str, list[float]] = {"engine": [], "bare": []}
    async with open_engines({ROLE: spec}) as opened:
        builder = PromptBuilder(opened[ROLE].tokenizer)
        size = len(problems) // (REPEATS + 1)
        for number in range(REPEATS + 1):
            requests = requests_of(builder, problems[number * size : (number + 1) * size])
            for name in sorted(times, reverse=number % 2 == 0):
                if name == "engine":
                    took = await through_the_engine(opened[ROLE], requests, spec.max_in_flight)
                else:
                    took = await anyio.to_thread.run_sync(bare.run, requests)
                if number:  # the first round warms up
                    times[name].append(took)
                    say(f"{name}: {len(requests) / took:.1f} requests/s")
    bare.close()
    return times


def main() -> None:
    """Measure; with a number as argument be the bare loop, with that many requests at a time."""
    if sys.argv[1:]:
        asyncio.run(_bare_loop(int(sys.argv[1])))
        return
    recording = begin(__file__)
    problems = [each for each in islice(read_problems(ARITH), PROBLEMS) if isinstance(each, Problem)]
    times = anyio.run(measure, problems)
    count = 2 * (len(problems) // (REPEATS + 1))
    rates = {name: count / statistics.median(took) for name, took in times.items()}
    ratios = [bare / ours for ours, bare in zip(times["engine"], times["bare"], strict=True)]
    about = {"bench": "vllm_engine", "engines": ENGINES.stem, "role": ROLE, "requests_per_round": count, "seconds": times, "ratios": ratios}
    recording.write("vllm-engine", {**about, "requests_per_s": rates})


if __name__ == "__main__":
    main()
