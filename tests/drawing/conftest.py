"""Plans to draw: those of the checked-in graphs, one full of text that means something elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from tests.support.paths import ROOT
from tests.support.plans import GRAPH, NASTY

Draw = Callable[..., Plan]


@pytest.fixture(scope="session")
def plan() -> Draw:
    """`plan(NAME, settings)`: the plan of a checked-in graph."""

    def load(name: str, *settings: str) -> Plan:
        return load_plan(ROOT / f"graphs/{name}.yaml", settings=settings)

    return load


@pytest.fixture
def nasty(tmp_path: Path) -> Plan:
    """Two drafts at the same time, then one of two stages; texts that no format takes as they are."""
    quoted = "'" + NASTY + "'"
    path = tmp_path / "nasty.yaml"
    path.write_text(GRAPH.format(problem="'{{problem}}" + NASTY + "'", model=quoted))
    return load_plan(path)
