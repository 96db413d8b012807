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
    from pipeline.api import Result, load_graph, solve, solve_async
    from pipeline.data.problems import Problem
    from pipeline.engine import Candidate, Completion, Engine, Request, Usage
    from pipeline.errors import PipelineError
    from pipeline.graph.plugins import grader
    from pipeline.reasoning.chain import Verdict
    from pipeline.stages.base import Stage
    from pipeline.stages.function_judge import judge
    from pipeline.store.events import CallRow, ChainRow, StepRow
    from pipeline.store.query import query

__all__ = [
    "CallRow",
    "Candidate",
    "ChainRow",
    "Completion",
    "Engine",
    "PipelineError",
    "Problem",
    "Request",
    "Result",
    "Stage",
    "StepRow",
    "Usage",
    "Verdict",
    "grader",
    "judge",
    "load_graph",
    "query",
    "solve",
    "solve_async",
]
_MODULES = {
    "pipeline.api": ("Result", "load_graph", "solve", "solve_async"),
    "pipeline.data.problems": ("Problem",),
    "pipeline.engine": ("Candidate", "Completion", "Engine", "Request", "Usage"),
    "pipeline.errors": ("PipelineError",),
    "pipeline.graph.plugins": ("grader",),
    "pipeline.reasoning.chain": ("Verdict",),
    "pipeline.stages.base": ("Stage",),
    "pipeline.stages.function_judge": ("judge",),
    "pipeline.store.events": ("CallRow", "ChainRow", "StepRow"),
    "pipeline.store.query": ("query",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
