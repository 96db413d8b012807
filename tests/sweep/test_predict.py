"""What a recorded run says of other thresholds is compared with the runs at those thresholds, on simulated engines."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.graph.spec import Param
from pipeline.graph.yaml_file import setting
from pipeline.session.prepare import load_plan
from pipeline.session.run import SessionResult
from pipeline.sweep.knobs import Knob, knobs_of
from pipeline.sweep.predict import RecordedPaths
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, solve_short, write_problems

pytestmark = pytest.mark.slow  # whole runs

CHAINS = 24


def solved(folder: Path, graph: str, values: dict[str, Param]) -> SessionResult:
    settings = (
        "engines.*.text.steps_mean=4",
        *(("statistic=min",) if graph == "gated" else ()),
        *(setting(name, value) for name, value in values.items()),
    )
    name = "_".join(f"{value}" for value in values.values())
    return solve_short(folder, name, graph, settings, batch_size=4, input=write_problems(folder, CHAINS))


def knobs(graph: str, *wishes: str) -> list[Knob]:
    file = ROOT / f"graphs/{graph}.yaml"
    return knobs_of(file, load_plan(file, SIM), wishes)


def careful(found: list[Knob]) -> dict[str, Param]:
    return {knob.param: knob.careful for knob in found}


@pytest.mark.parametrize(
    ("graph", "wishes", "other"),
    [
        ("gated", ("sure", "threshold"), {"sure": -1.5, "threshold": 9.0}),
        ("gated", ("sure", "threshold"), {"sure": -2.5, "threshold": 6.0}),
        ("gated", ("sure",), {"sure": -1.0}),
        ("specreason", ("threshold",), {"threshold": 5.0}),
        ("specreason", ("answer_confident",), {"answer_confident": 0.7}),
        ("triggered", ("overconfident",), {"overconfident": -0.5}),
        ("speccot", ("min_probability=0,0.9",), {"min_probability": 0.0}),
    ],
)
def test_chains_on_the_recorded_path_are_those_of_the_run_itself(
    tmp_path: Path, graph: str, wishes: tuple[str, ...], other: dict[str, Param]
) -> None:
    found = knobs(graph, *wishes)
    recorded, real = solved(tmp_path, graph, careful(found)), solved(tmp_path, graph, other)
    prediction, left = RecordedPaths(recorded.folder, found, careful(found)).predict(other)
    was, is_now = said(recorded), said(real)
    same = [chain for number, chain in enumerate(sorted(was)) if not left[number]]
    assert prediction.chains_known == len(same) / CHAINS
    for chain in same:  # decisions of a step differ, as one that was accepted may be unverified; what was written does not
        assert (was[chain][:2], texts(was[chain])) == (is_now[chain][:2], texts(is_now[chain])), chain
    other_path = [chain for number, chain in enumerate(sorted(was)) if left[number]]
    assert other_path, "the values make a difference"
    assert all((was[chain][1], texts(was[chain])) != (is_now[chain][1], texts(is_now[chain])) for chain in other_path)
    right = sum(bool(row["correct"]) for row in rows(real, "chains")) / CHAINS
    assert prediction.accuracy_low is not None
    assert prediction.accuracy_high is not None
    assert prediction.accuracy_low <= right <= prediction.accuracy_high
    if "answer_confident" in other:
        assert prediction.accuracy_tried == pytest.approx(right, abs=0.05)
        assert prediction.accuracy_low < (prediction.accuracy_tried or 0.0) < prediction.accuracy_high
    else:
        assert prediction.accuracy_tried is None
    seconds = sum(row["chain_time_s"] for row in rows(real, "chains")) / CHAINS
    assert prediction.chain_s == pytest.approx(seconds, rel=0.35)


def texts(chain: Any) -> list[str]:
    return [step[2] for step in chain[2]]


def test_the_recorded_values_change_nothing(tmp_path: Path) -> None:
    found = knobs("gated", "sure", "threshold")
    recording = RecordedPaths(solved(tmp_path, "gated", careful(found)).folder, found, careful(found))
    prediction, left = recording.predict(careful(found))
    assert not left.any()
    assert (prediction.chains_known, prediction.changed, prediction.unverified) == (1.0, 0.0, 0.0)
    assert prediction.accuracy_low == prediction.accuracy_high
    assert prediction.chain_s == pytest.approx(recording.chain_s)
    gate = next(knob for knob in found if knob.kind == "gate")
    shares = [recording.predict({**careful(found), "sure": value})[0].unverified for value in recording.grid(gate)]
    assert shares == sorted(shares, reverse=True), "the grid goes from the least sure draft to the surest one"
    assert shares[0] == 1.0


def test_who_writes_what_passes_takes_the_time_of_a_run_in_which_all_does(tmp_path: Path) -> None:
    found = knobs("routed", "entropy")
    [gate] = found
    least: dict[str, Param] = {"entropy": gate.careless}
    recording = RecordedPaths(solved(tmp_path, "routed", careful(found)).folder, found, careful(found))
    prediction, left = recording.predict(least)
    assert prediction.chain_s is None, "it wrote nothing in the recorded run"
    assert prediction.unverified == 1.0
    assert left.all()
    other = RecordedPaths(solved(tmp_path, "routed", least).folder, found, least)
    assert recording.predict(least, other.write_s)[0].chain_s == pytest.approx(other.chain_s, rel=0.35)
    half = sorted(value for value in recording.grid(gate) if isinstance(value, float))[5]
    between = recording.predict({"entropy": half}, other.write_s)[0].chain_s
    assert other.chain_s < (between or 0.0) < recording.chain_s
