"""Tables of runs without any run folder, and runs of several replicas."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.analysis.compare.rules import Rules
from pipeline.analysis.compare.runs import Details, RunTable
from pipeline.analysis.quality.by_problem import Texts
from pipeline.analysis.resources import Resources
from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.store.run_file import Host, RunInput
from tests.support.replicas import replica_run

RULES = Rules(
    thought_tokens=100,
    answer_tokens=50,
    closes=True,
    exits=(),
    sampling={"write": "temperature 0.6"},
    asked=(),
    prompts=DEFAULT_PROMPTS,
    engines={"target": {"backend": "torch", "model": "large"}},
)


def run_table(name: str, latency: Sequence[float], **fields: Any) -> RunTable:
    """A run of one sample a problem, all right, three of four steps by the draft; `right` marks problems as right or wrong."""
    count = len(latency)
    ones = np.ones(count)
    right = np.array(fields.pop("right", ones), float)
    values: dict[str, Any] = {
        "name": name,
        "graph": name,
        "engines": {
            "draft": {"backend": "torch", "model": "org/small"},
            "target": {"backend": "torch", "model": "org/large"},
        },
        "drafters": ("draft",),
        "resources": Resources(cores=2),
        "host": Host(processor="one"),
        "params": {"token_budget": 100},
        "rules": RULES,
        "schedule": "pipelined",
        "admission": "cache",
        "batch_size": 8,
        "samples": 1,
        "seed": 0,
        "simulated": False,
        "status": "finished",
        "file": Path("data.parquet"),
        "input": RunInput(sha256="same", rows=count, chains=count, samples=1),
        "wall_time_s": 10.0,
        "problem_ids": tuple(f"p{i}" for i in range(count)),
        "failed": 0,
        "chains": ones,
        "graded": ones,
        "right": right,
        "latency_s": np.array(latency),
        "thought_tokens": 40 * ones,
        "answer_tokens": 10 * ones,
        "steps": 4 * ones,
        "accepted": 3 * ones,
        "fallbacks": ones,
        "unverified": 0 * ones,
        "gated": False,
        "thinking_s": 0.5 * np.array(latency),
        "option_mass": None,
        "scored": None,
        "texts": {
            "drafted": Texts(15 * ones, 90 * ones),
            "fallback": Texts(ones, 20 * ones),
        },
        "choices": None,
        "quality": None,
        "reward_model": None,
    }
    values |= fields
    details = Details(**{name: values.pop(name) for name in Details.__struct_fields__})
    values = {"roles": tuple(sorted(values["engines"], reverse=True))} | values
    return RunTable(**{"lost": values["failed"]} | values, read=lambda: details)


@pytest.fixture(name="table")
def _table() -> Callable[..., RunTable]:
    return run_table


@pytest.fixture(scope="session")
def replica_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs of one process and of three replicas."""
    folder = tmp_path_factory.mktemp("replicas")
    return {count: replica_run(folder / str(count), count) for count in (1, 3)}
