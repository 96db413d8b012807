"""Batch reasoning with a draft and a target model that take turns on every step.

    import pipeline

    result = pipeline.solve("speccot", "problems.parquet", engines="engines.yaml", batch_size=32)
    for chain in result:
        print(chain.problem_id, chain.answer, chain.correct)

`pipeline.api` says what the entry points take and give. A name is loaded when it is first used; `__init__.pyi` shows them to type checkers.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    **dict.fromkeys(("Result", "load_graph", "solve", "solve_async"), "pipeline.api"),
    **dict.fromkeys(("Candidate", "Completion", "Engine", "Request", "Usage"), "pipeline.engine"),
    "PipelineError": "pipeline.errors",
    "Problem": "pipeline.data.problems",
    "Verdict": "pipeline.reasoning.chain",
    "grader": "pipeline.grading.plugins",
    "judge": "pipeline.stages.function_judge",
    "query": "pipeline.store.query",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
