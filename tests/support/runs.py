"""Whole runs, most of them on simulated engines, and what their folders hold."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from pipeline.engine import Engine
from pipeline.engines.sim.text import sim_answer
from pipeline.options import RunOptions
from pipeline.run import run as session
from pipeline.run.prepare import load_plan, prepare
from pipeline.run.run import Observer, SessionResult, run
from tests.support.paths import ROOT, SIM

SolveTestSet = Callable[..., SessionResult]
"""What the fixture `solve_test_set` gives."""


def write_problems(folder: Path, count: int = 12, extra: tuple[bytes, ...] = ()) -> Path:
    path = folder / "problems.jsonl"
    lines = [
        msgspec.json.encode({"problem_id": f"p{i}", "problem": f"Problem number {i}?", "answer": sim_answer(f"Problem number {i}?")})
        for i in range(count)
    ]
    path.write_bytes(b"\n".join([*lines, *extra]) + b"\n")
    return path


def options_of(folder: Path, name: str = "run", graph: str = "speccot", **options: Any) -> RunOptions:
    """A run of `write_problems` into `folder`/`name`, on simulated engines unless others are given."""
    problems = options.pop("input", None) or write_problems(folder)
    return RunOptions(graph=ROOT / f"graphs/{graph}.yaml", **{"engines": SIM, "input": (str(problems),), "output": folder / name} | options)


def solve(folder: Path, name: str = "run", graph: str = "speccot", **options: Any) -> SessionResult:
    return run(options_of(folder, name, graph, **options))


def solve_short(folder: Path, name: str = "run", graph: str = "speccot", settings: tuple[str, ...] = (), **options: Any) -> SessionResult:
    """As `solve`, of thoughts of some three steps where no setting is about texts."""
    if not any(".text." in each for each in settings):
        settings = (*settings, "engines.*.text.steps_mean=3")
    return solve(folder, name, graph, settings=settings, **options)


def servers_file(folder: Path, *, model: str = "", more: str = "", **urls: str) -> Path:
    """An engines file in which each role is a server."""
    path = folder / "engines.yaml"
    roles = [
        f"{role}: {{backend: openai, model: {model or role}, base_url: {url}, tokenizer: 'bundled:tiny-{role}'{more}}}\n"
        for role, url in urls.items()
    ]
    path.write_text("".join(roles))
    return path


async def solve_on(engines: Mapping[str, Engine], options: RunOptions) -> SessionResult:
    """A finished run on engines that are open already, and stay open."""
    plan = load_plan(options.graph, options.engines, options.settings)
    with prepare(options, plan) as checked:
        result = await session.solve(checked, Observer(), engines=engines)
    assert (result.exit_code, result.done) == (0, checked.record.input.chains), result.error
    return result


def rows(run: SessionResult | Path, table: str) -> list[dict[str, Any]]:
    """Of a run, or of its folder."""
    found: list[dict[str, Any]] = pq.read_table((run if isinstance(run, Path) else run.folder) / table).to_pylist()
    return found


def said(result: SessionResult | Path) -> dict[str, Any]:
    """Everything that the chains of a run, or of its folder, said, in no particular order of time."""
    steps: dict[str, list[Any]] = {}
    for row in rows(result, "steps"):
        steps.setdefault(row["chain_id"], []).append((row["step_index"], row["decision"], row["step_text"], row["candidate_texts"]))
    return {row["chain_id"]: (row["answer"], row["stop_reason"], steps.get(row["chain_id"])) for row in rows(result, "chains")}


def status(out: Path) -> str:
    found: str = json.loads((out / "run.json").read_text())["status"]
    return found
