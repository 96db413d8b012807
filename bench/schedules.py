"""How much does each schedule take for the same work? Pipelined, lockstep, sequential and the target alone.

    python -m bench.schedules --engines graphs/engines/tiny.yaml --problems 192 --batch-size 32,64 --repeats 3

Same graph, problems and seeds; engines are opened anew and warmed up for every run, runs are interleaved, and only
the time from the first chain's start to the last one's end counts. `limit` replays the calls that each engine got in the
pipelined run, alone and all ready at once, with the same `max_in_flight`: the longer of the two is what no schedule of
these calls can beat. With a simulated engines file all times are simulated, and exact. Prints a table and writes
bench/results/schedules-ENGINES.json.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import click
from msgspec import Struct, structs

from bench.figures import RESULTS, ROOT, Results, begin, grid, percent
from bench.runs import ARITH, say
from pipeline.analysis.summary import summarize
from pipeline.data.problems import Problem, open_problems
from pipeline.engine import Completion, Engine, Request
from pipeline.engines.registry import open_engines, virtual_time
from pipeline.engines.sim.text import sim_answer
from pipeline.grading.grader import Grader
from pipeline.graph.plan import Plan
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.runtime.admission.feed import InputFeed, SampleCounts
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.inline_grader import open_inline_grader
from pipeline.runtime.schedule import SCHEDULES, Pipelined, Schedule
from pipeline.session.loop import in_loop
from pipeline.session.prepare import load_plan
from pipeline.stages.build import build_stages
from pipeline.store.read import read_batches
from pipeline.store.recorder import open_recorder
from pipeline.store.run_store import RunStore

SYSTEMS = {"pipelined": "speccot", "lockstep": "speccot", "sequential": "speccot", "target-alone": "target"}
WARM_UP_PROBLEMS = 8


def table(results: Results) -> str:
    """A row for each batch size and system."""
    runs = max(row["runs"] for row in results["results"])
    about = f"{results['engines']}, {results['problems']} problems, medians of up to {runs} interleaved runs"
    about += "; **simulated** times" if results["simulated"] else ""
    columns = ("batch", "system", "wall s", "/ pipelined", "/ limit", "cpu s", "accuracy", "same", "busy target, draft")
    order = ("pipelined", "lockstep", "sequential", "target-alone")
    rows = []
    for row in sorted(results["results"], key=lambda row: (row["batch_size"], order.index(row["system"]))):
        # On simulated machines the engines share a device, and the replay of the limit has it to itself.
        limit = f"{row['over_limit']:.2f}" if row["over_limit"] and not results["simulated"] else ""
        busy = ", ".join(percent(row["busy"][role], 0) for role in ("target", "draft") if role in row["busy"])
        same = "" if row["same_answers"] is None else percent(row["same_answers"], 0)
        times = (f"{row['wall_s']:.2f}", f"{row['over_pipelined']:.2f}", limit, f"{row['orchestrator_cpu_s']:.2f}")
        rows.append((str(row["batch_size"]), row["system"], *times, percent(row["accuracy"]), same, busy))
    return f"{about}\n\n{grid(columns, rows)}"


class HeardEngine:
    """An engine that keeps the requests that it gets. It cannot be restarted: a run in which an engine died is no measurement."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.requests = engine, list[Request]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        return await self._engine.generate(request)


async def replay_s(engine: Engine, requests: list[Request], max_in_flight: int) -> float:
    """Seconds that `engine` takes for `requests`, all ready at once and sent in their order, at most `max_in_flight` at a time."""
    waiting = iter(requests)

    async def send_in_turn() -> None:
        for request in waiting:
            await engine.generate(request)

    started = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(min(max_in_flight, len(requests))):
            tasks.start_soon(send_in_turn)
    return anyio.current_time() - started


class Outcome(Struct, kw_only=True):
    """One run: seconds, and what they were spent on."""

    wall_s: float
    orchestrator_cpu_s: float
    accuracy: float | None
    answers: dict[str, str | None]
    busy: dict[str, float]
    limit_s: float | None = None


class Bench(Struct, kw_only=True):
    """The settings that all runs share."""

    engines: Path
    problems: list[Problem]
    virtual: bool = False

    def run(self, system: str, batch_size: int) -> Outcome:
        """One run of one system; a pipelined one with its limit."""
        plan = load_plan(ROOT / f"graphs/{SYSTEMS[system]}.yaml", self.engines)
        outcome, requests = in_loop(lambda: self._solve(plan, system, batch_size), virtual=self.virtual)
        if system == "pipelined":
            outcome.limit_s = max(in_loop(partial(self._replay, plan, role, requests[role]), virtual=self.virtual) for role in requests)
        return outcome

    async def _solve(self, plan: Plan, system: str, batch_size: int) -> tuple[Outcome, dict[str, list[Request]]]:
        schedule = SCHEDULES.get(system, Pipelined)(batch_size)
        async with open_engines(plan.engines) as opened:
            await self._warm_up(opened)
            heard = {role: HeardEngine(engine) for role, engine in opened.items()}
            with tempfile.TemporaryDirectory() as folder:
                cpu, started = time.process_time(), anyio.current_time()
                await self._execute(plan, heard, schedule, Path(folder), self.problems)
                wall, cpu = anyio.current_time() - started, time.process_time() - cpu
                outcome = _outcome(Path(folder), wall, cpu)
        return outcome, {role: engine.requests for role, engine in heard.items()}

    async def _execute(self, plan: Plan, engines: Mapping[str, Any], schedule: Schedule, folder: Path, problems: list[Problem]) -> None:
        builders = {role: PromptBuilder(engine.tokenizer) for role, engine in engines.items()}
        stages = build_stages(plan, builders, "bench")
        settings = Settings(run_id="bench", virtual_time=self.virtual)
        async with AsyncExitStack() as stack:
            grader = stack.enter_context(Grader())
            recorder = await stack.enter_async_context(open_recorder(RunStore(folder), virtual=self.virtual))
            rows = await stack.enter_async_context(open_inline_grader(recorder, grader, self.virtual))
            clock = Clock(time.time_ns()) if self.virtual else Clock(time.time_ns(), time.monotonic)
            feed = InputFeed(iter(problems), SampleCounts(1, 1), lambda place: False, threads=not self.virtual)
            executor = Executor(plan, stages, engines, builders, schedule, rows, clock, settings)
            await executor.run(feed)
        if executor.progress.done < len(problems):
            raise click.ClickException(f"{len(problems) - executor.progress.done} chains failed; no figure is made of such a run")

    async def _warm_up(self, engines: Mapping[str, Engine]) -> None:
        """Each engine answers a few requests that the run will not make."""
        async with anyio.create_task_group() as tasks:
            for engine in engines.values():
                for i in range(WARM_UP_PROBLEMS):
                    prompt = engine.tokenizer.encode(f"warm up {i}")
                    request = Request(request_id=f"warm-{i}", prompt_ids=prompt, max_tokens=8, n=2, temperature=1.0)
                    tasks.start_soon(engine.generate, request)

    async def _replay(self, plan: Plan, role: str, requests: list[Request]) -> float:
        """Seconds that one engine needs for `requests`, all ready at once, with nothing next to it."""
        async with open_engines({role: plan.engines[role]}) as engines:
            await self._warm_up(engines)
            return await replay_s(engines[role], requests, plan.engines[role].max_in_flight)


def _outcome(folder: Path, wall_s: float, cpu_s: float) -> Outcome:
    summary = summarize(folder)
    chains = [row for batch in read_batches(folder, "chains", ("problem_id", "answer")) for row in batch.to_pylist()]
    return Outcome(
        wall_s=wall_s,
        orchestrator_cpu_s=cpu_s,
        accuracy=summary.accuracy,
        answers={row["problem_id"]: row["answer"] for row in chains},
        busy={role: round(engine.busy_s / wall_s, 3) for role, engine in summary.engines.items()},
    )


def rounds(bench: Bench, batch_sizes: list[int], repeats: int, sequential_repeats: int) -> Iterator[tuple[int, str, Outcome]]:
    """All runs, interleaved: every system once, then again."""
    for repeat in range(repeats):
        for batch_size in batch_sizes:
            for system in SYSTEMS:
                if system != "sequential" or (repeat < sequential_repeats and batch_size == batch_sizes[-1]):
                    yield batch_size, system, bench.run(system, batch_size)


def medians(results: dict[tuple[int, str], list[Outcome]]) -> Iterator[dict[str, Any]]:
    """Medians, and ratios over the pipelined runs of the same batch size."""
    for (batch_size, system), outcomes in sorted(results.items()):
        base = results[batch_size, "pipelined"]
        wall = statistics.median(o.wall_s for o in outcomes)
        pipelined = statistics.median(o.wall_s for o in base)
        limit = statistics.median(o.limit_s for o in base if o.limit_s)
        yield {
            "batch_size": batch_size,
            "system": system,
            "runs": len(outcomes),
            "wall_s": wall,
            "over_pipelined": wall / pipelined,
            "over_limit": wall / limit if SYSTEMS[system] == "speccot" else None,
            "orchestrator_cpu_s": statistics.median(o.orchestrator_cpu_s for o in outcomes),
            "accuracy": outcomes[0].accuracy,
            "busy": outcomes[0].busy,
            "same_answers": _same(outcomes[0].answers, base[0].answers) if SYSTEMS[system] == "speccot" else None,
        }


def _same(a: dict[str, str | None], b: dict[str, str | None]) -> float:
    return sum(a[key] == b[key] for key in b) / len(b)


@click.command()
@click.option("--engines", type=click.Path(path_type=Path), default=ROOT / "graphs/engines/tiny.yaml", show_default=True)
@click.option("--input", "input_", type=click.Path(path_type=Path), default=ARITH, show_default=True)
@click.option("--problems", default=192, show_default=True)
@click.option("--batch-size", default="32,64", show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--sequential-repeats", default=1, show_default=True, help="The slow one need not be repeated as often.")
@click.option("--output", type=click.Path(path_type=Path), help="By default bench/results/schedules-ENGINES.json.")
def main(
    engines: Path,
    input_: Path,
    problems: int,
    batch_size: str,
    repeats: int,
    sequential_repeats: int,
    output: Path | None,
) -> None:
    """Run all systems and print their times as ratios."""
    recording = begin(__file__)
    chosen = [p for p in islice(open_problems(input_), problems) if isinstance(p, Problem)]
    bench = Bench(engines=engines, problems=chosen)
    plan = load_plan(ROOT / "graphs/speccot.yaml", engines)
    bench.virtual = virtual_time(plan.engines, str(engines))
    if bench.virtual:  # simulated models know the answers to simulated problems
        bench.problems = [structs.replace(problem, answer=sim_answer(problem.problem)) for problem in chosen]
    sizes = [int(size) for size in batch_size.split(",")]
    results: dict[tuple[int, str], list[Outcome]] = {}
    for size, system, outcome in rounds(bench, sizes, repeats, sequential_repeats):
        results.setdefault((size, system), []).append(outcome)
        say(f"{size} {system}: {outcome.wall_s:.2f} s")
    rows = list(medians(results))
    about = {"bench": "schedules", "engines": engines.stem, "simulated": bench.virtual, "problems": len(chosen)}
    output = output or ROOT / RESULTS / f"schedules-{engines.stem}.json"
    click.echo(table(recording.write(output, {**about, "results": rows})))


if __name__ == "__main__":
    main()
