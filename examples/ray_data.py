"""Ray Data: `map_batches` with an actor that opens its engines once and solves batch after batch on them.

python examples/ray_data.py
"""

import asyncio
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import ray
from anyio.from_thread import BlockingPortal, start_blocking_portal

import pipeline
from pipeline.engine import Completion, Engine, Request
from pipeline.engines.registry import open_engines
from pipeline.store.rows import ChainRow

PROBLEMS = [
    {"problem_id": "zoe", "problem": "Zoe has 9 pens. Zoe collects 2. Zoe buys 2 packs of 5. How many pens has Zoe now?", "answer": "21"},
    {
        "problem_id": "anna",
        "problem": "Anna has 10 figs. Anna loses 5. Anna finds 9. Anna sells 7. How many figs has Anna now?",
        "answer": "7",
    },
]


class OnItsLoop:
    """An open engine for runs on any event loop: it answers on the one where it was opened."""

    def __init__(self, engine: Engine, portal: BlockingPortal) -> None:
        self._engine, self._portal = engine, portal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        return await asyncio.wrap_future(self._portal.start_task_soon(self._engine.generate, request))


class Solver:
    """The engines live as long as the actor, on an event loop in a thread."""

    def __init__(self, graph: str, engines: str | None = None, **options: Any) -> None:
        self.graph, self.options, self.kept = graph, options, ExitStack()
        # Ray's own policy brings uvloop, which starts no processes from a thread.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        self.portal = self.kept.enter_context(start_blocking_portal())
        opening = open_engines(pipeline.load_graph(graph, engines).engines)
        engines = self.kept.enter_context(self.portal.wrap_async_context_manager(opening))
        self.engines = {role: OnItsLoop(engine, self.portal) for role, engine in engines.items()}

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The batch with what its problems were answered, or why they were not."""
        chains = sorted(self.portal.call(self.solve, batch), key=lambda chain: chain.input_row)
        batch = batch.append_column("solution", pa.array([chain.answer for chain in chains], pa.string()))
        batch = batch.append_column("correct", pa.array([chain.correct for chain in chains], pa.bool_()))
        return batch.append_column("error", pa.array([chain.error_message for chain in chains], pa.string()))

    async def solve(self, batch: pa.Table) -> list[ChainRow]:
        return [chain async for chain in pipeline.solve_async(self.graph, batch, engines=self.engines, **self.options)]


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    problems = ray.data.from_items(PROBLEMS)
    solver = {"graph": "speccot", "engines": "tiny", "batch_size": 64}
    actors = ray.data.ActorPoolStrategy(size=1)  # with a GPU for each of two engines: num_gpus=2
    solved = problems.map_batches(Solver, fn_constructor_kwargs=solver, batch_size=256, batch_format="pyarrow", compute=actors)
    rows = solved.take_all()
    for row in rows:
        print(row["problem_id"], row["solution"], "right" if row["correct"] else "wrong")
    print(f"{sum(row['correct'] for row in rows) / len(rows):.0%} right")
