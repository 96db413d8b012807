"""Batch reasoning with a draft and a target model that take turns on every step.

    import pipeline

    result = pipeline.solve("speccot", "problems.parquet", engines="engines.yaml", batch_size=32)
    for chain in result:
        print(chain.problem_id, chain.answer, chain.correct)

`pipeline.api` says what the entry points take and give. A name is loaded when it is first used, so that importing the package
costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import Result as Result
    from pipeline.api import load_graph as load_graph
    from pipeline.api import solve as solve
    from pipeline.api import solve_async as solve_async
    from pipeline.data.problems import Problem as Problem
    from pipeline.engine import Candidate as Candidate
    from pipeline.engine import Completion as Completion
    from pipeline.engine import Engine as Engine
    from pipeline.engine import Request as Request
    from pipeline.engine import Usage as Usage
    from pipeline.errors import PipelineError as PipelineError
    from pipeline.graph.plugins import grader as grader
    from pipeline.reasoning.chain import Verdict as Verdict
    from pipeline.stages.function_judge import judge as judge
    from pipeline.store.query import query as query

_HOMES = {
    **dict.fromkeys(("Result", "load_graph", "solve", "solve_async"), "pipeline.api"),
    **dict.fromkeys(("Candidate", "Completion", "Engine", "Request", "Usage"), "pipeline.engine"),
    "PipelineError": "pipeline.errors",
    "Problem": "pipeline.data.problems",
    "Verdict": "pipeline.reasoning.chain",
    "grader": "pipeline.graph.plugins",
    "judge": "pipeline.stages.function_judge",
    "query": "pipeline.store.query",
}
"""The module of each public name."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
