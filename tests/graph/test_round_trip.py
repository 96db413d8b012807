"""A param is the same value of the same type however it travels: through `--set`, `run.json`, resume, replay, sweeps and replicas."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api import load_graph
from pipeline.errors import GraphError, UsageError
from pipeline.graph.files import parse, setting, written
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan, resume_options
from pipeline.run.run import run
from pipeline.store.run_file import RunFile
from pipeline.study.systems import Matrix, SystemEntry, read_systems
from tests.support.graphs import NAMES, OURS
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

PARAMS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(PARAMS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3), max_leaves=6)
GRAPH = {
    "name": "one",
    "params": {"x": None},
    "stages": {"s": {"kind": "answer", "engine": "a", "adapter": "$x"}},
}


def params_of(plan: Plan) -> list[tuple[str, str]]:
    """Names and values, where True is not 1 and 1 is not 1.0."""
    return [(name, repr(value)) for name, value in plan.params.items()]


@given(value=VALUES)
def test_what_is_written_is_read_as_the_same_value(value: Any) -> None:
    assert repr(parse(written(value))) == repr(value)
    assert "\n" not in written(value)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("inf"), float("nan"), b"x"], ids=["object", "set", "inf", "nan", "bytes"])
def test_a_value_that_no_record_can_hold_is_refused(value: Any) -> None:
    with pytest.raises((GraphError, UsageError), match=r"params|x"):
        load_graph(GRAPH, engines={"a": {"backend": "sim"}}, set={"x": value})


def _at_replica(plan: Plan) -> Plan:
    """The plan as Ray brings it to another process."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    found: Plan = pickle.loads(cloudpickle.dumps(plan))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *OURS])
def test_params_of_a_bundled_graph_are_the_same_wherever_they_went(name: str, tmp_path: Path) -> None:
    graph, engines = ROOT / f"graphs/{name}.yaml", SIM.with_name(f"{OURS.get(name, SIM.stem)}.yaml")
    plan = load_plan(graph, engines)
    given_params = tuple(setting(param, value) for param, value in plan.params.items())
    given = RunOptions(
        graph=graph, engines=engines, input=(str(write_problems(tmp_path, 4)),), settings=given_params, output=tmp_path / "run"
    )
    assert run(given).failed == 0
    recorded = RunFile.read(tmp_path / "run").plan
    again = tuple(setting(param, value) for param, value in recorded.params.items())
    replayed = RunOptions(
        graph=graph, engines=Path(f"replay:{tmp_path / 'run'}"), input=given.input, settings=again, output=tmp_path / "again"
    )
    assert run(replayed).failed == 0
    resumed = load_plan(graph, engines, resume_options(tmp_path / "run").settings)
    swept = read_systems(Matrix(shared=given, systems=(SystemEntry(graph=str(graph)),)))
    own = swept[-1]
    everywhere = [recorded, resumed, own.plan, load_graph(graph, engines, set=plan.params), _at_replica(plan)]
    assert [each.digest for each in everywhere] == [plan.digest] * len(everywhere)
    assert [params_of(each) for each in (*everywhere, RunFile.read(tmp_path / "again").plan)] == [params_of(plan)] * (len(everywhere) + 1)
