"""Runs on simulated engines that do not answer the same twice: each session draws from another seed, as servers do.

As a program it runs one session, `python -m tests.support.unrepeatable FOLDER PROBLEMS`, for tests that kill it.
"""

import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.registry import open_engines
from pipeline.options import RunOptions
from pipeline.run.loop import in_loop
from pipeline.run.observer import Observer
from pipeline.run.prepare import Prepared, load_plan, prepared
from pipeline.run.run import SessionResult, solve_on
from tests.support.paths import ROOT, SIM


class Unrepeatable:
    """An engine whose answers depend on a random number of its own too."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._nonce = engine, uuid.uuid4().int % (1 << 62)

    async def generate(self, request: Request) -> Completion:
        return await self._engine.generate(structs.replace(request, seed=request.seed ^ self._nonce))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def solve_unrepeatably(options: RunOptions, observer: Observer | None = None) -> SessionResult:
    """One session; what was said about the run folder goes to `observer`."""
    plan, observer = load_plan(options.graph, options.engines, options.settings), observer or Observer()
    with prepared(options, plan) as ready:
        for sentence in ready.remarks:
            observer.tell(sentence)
        return in_loop(lambda: _solve(ready, observer), virtual=ready.virtual_time)


async def _solve(ready: Prepared, observer: Observer) -> SessionResult:
    async with open_engines(ready.plan.engines) as engines:
        wrapped: Mapping[str, Any] = {role: Unrepeatable(engine) for role, engine in engines.items()}
        return await solve_on(wrapped, ready, observer)


def speccot(folder: Path, problems: Path, **other: Any) -> RunOptions:
    """A run of the graph speccot on simulated engines, or what is left of it."""
    given: dict[str, Any] = {"resume": True} | other
    return RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=problems, output=folder, **given)


if __name__ == "__main__":
    sys.exit(solve_unrepeatably(speccot(Path(sys.argv[1]), Path(sys.argv[2]), batch_size=16)).exit_code)
