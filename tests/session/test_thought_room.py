"""Simulated thoughts of measured length: engines must agree on them, and a run holds those that it had."""

from pathlib import Path

import pytest

from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import GraphError, UsageError
from pipeline.graph.plan import Plan
from pipeline.session.options import resume_options
from pipeline.session.prepare import load_plan
from pipeline.session.run import run
from tests.support.runs import solve, write_problems

SIM = Path("sim-2xh100")


def plan(graph: str, *settings: str) -> Plan:
    return load_plan(Path(graph), SIM, settings)


def test_engines_that_disagree_on_the_number_of_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as error:
        plan("speccot", "engines.target.text.preset=math")
    assert str(error.value) == (
        "engine 'target': text: its thoughts differ in numbers of steps from those of 'draft', which continues them; "
        "give both the same `preset`, or the `lengths` of the same run"
    )
    solve(tmp_path, "recorded", "target", input=write_problems(tmp_path, 3))
    agreed = plan("speccot", f"engines.*.text.lengths={tmp_path / 'recorded'}")
    specs = [spec.text for spec in agreed.engines.values() if isinstance(spec, SimSpec)]
    assert [text.distribution("steps") for text in specs] == [specs[0].distribution("steps")] * 2
    assert plan("target", "engines.target.text.preset=math").engines.keys() == {"target"}


def test_a_run_holds_the_lengths_it_had(tmp_path: Path) -> None:
    """So that it can be resumed, and is refused where the recorded run is another one by then."""
    for name, steps in (("one", 3), ("other", 6)):
        solve(tmp_path, name, "target", input=write_problems(tmp_path, 3), settings=(f"engines.target.text.steps_mean={steps}",))
    recorded = (tmp_path / "one").rename(tmp_path / "recorded")
    result = solve(tmp_path, graph="specreason", input=write_problems(tmp_path, 1), settings=(f"engines.*.text.lengths={recorded}",))
    assert result.exit_code == 0
    assert run(resume_options(tmp_path / "run")).nothing_to_do
    recorded.rename(tmp_path / "one")
    (tmp_path / "other").rename(recorded)
    with pytest.raises(UsageError, match=r"engines.draft.text is .*'lengths': .*, was .*'lengths': "):
        run(resume_options(tmp_path / "run"))
