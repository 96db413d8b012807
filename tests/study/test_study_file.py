"""Study files: what they expand into, what they refuse, and a whole study that goes on where it ended."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.analysis.curves import curves as curves_of
from pipeline.analysis.curves import read_card, read_points, study_tables, unlike, verdict
from pipeline.analysis.tables import Table, named_queries
from pipeline.data.prepare import RECIPES
from pipeline.errors import GraphError, UsageError
from pipeline.graph.files import bundled_files
from pipeline.options import RunOptions
from pipeline.store.run_file import RunFile
from pipeline.study.points import Point, Study
from pipeline.study.run import carry_out
from pipeline.study.study_file import is_study, read_study
from tests.support.paths import SIM, TEST_SET
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # reads many files, or solves

STUDIES = bundled_files("study file")
Write = Callable[..., Study]


@pytest.fixture(name="study")
def _study(tmp_path: Path) -> Write:
    """Reads a study of SpecCoT on simulated engines, with other values for some of its keys; None leaves a key out."""

    def read(models: Mapping[str, str] = {}, *, small_form: bool = False, resume: bool = False, **keys: Any) -> Study:
        given = {"title": "Mine", "systems": ["speccot"], "engines": [str(SIM)], "data": [str(TEST_SET)], "limit": 4, "batch_sizes": [2]}
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in (given | keys).items() if value is not None}, sort_keys=False))
        folder = RunOptions(graph=path, input=(), output=tmp_path / "out", resume=resume)
        return read_study(path, folder, models, small=small_form)

    return read


def systems(study: Study) -> list[str]:
    return list(dict.fromkeys(point.label.curve for points in study.groups.values() for point in points))


def test_every_point_loads_the_models_that_are_named_beside_a_study(study: Write) -> None:
    named = study({"target": "bundled:tiny-selection"}, engines=["tiny"])
    assert {point.plan.engines["target"].model for point in named.points} == {"bundled:tiny-selection"}


@pytest.mark.parametrize(
    ("role", "model", "engines", "said"),
    [
        ("judge", "x", "tiny", "no graph or engines file here has `engines.judge.model`"),
        ("target", "http://localhost:8000/v1", "tiny", "a study's engines files name its servers"),
        ("target", "x", str(SIM), "load no model"),
        ("target", "x", {"engines": "tiny", "name": "other", "set": {"engines.target.model": "y"}}, "sets engines.target.model"),
    ],
)
def test_a_study_that_names_its_models_otherwise_refuses_one(study: Write, role: str, model: str, engines: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        study({role: model}, engines=[engines])


@pytest.mark.parametrize("small", [False, True], ids=["whole", "small"])
@pytest.mark.parametrize("name", STUDIES)
def test_every_bundled_study_can_be_planned(name: str, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs, engines, presets, tables and data sets exist."""
    monkeypatch.chdir(tmp_path)
    assert is_study(Path(name))
    study = read_study(Path(name), RunOptions(graph=Path(name), input=()), small=small)
    assert study.title.partition("(")[2].startswith(("SpecCoT", "SCoT", "SpecReason"))
    assert {table for table, _ in study.tables} <= named_queries().keys()
    assert {run for _, runs in study.tables for run in runs} == {point.folder for point in study.points}
    assert {point.options.input[0] for point in study.points} <= RECIPES.keys()
    if small:
        assert len(study.points) <= 16
        assert {spec.backend for point in study.points for spec in point.plan.engines.values()} <= {"sim", "torch"}
        assert {point.options.input for point in study.points} == {("arith",)}


def test_a_graph_is_no_study_and_a_study_says_how_it_is_run() -> None:
    assert not any(map(is_study, (Path("speccot"), SIM)))
    assert [name for name, path in STUDIES.items() if f"# pipeline sweep {name}\n" not in path.read_text()] == []


def test_params_data_sets_and_seeds_are_multiplied(study: Write, tmp_path: Path) -> None:
    data = [str(TEST_SET), {"data": str(write_problems(tmp_path, 3))}]
    found = study(data=data, params={"candidates": [1, 5], "token_budget": [64, 8192]}, seeds=[0, 7])
    budgets = [f"token_budget={budget}" for budget in (64, 8192)]
    assert systems(found) == [f"{of}" for b in budgets for of in (f"target {b}", f"speccot candidates=1 {b}", f"speccot candidates=5 {b}")]
    assert len(found.points) == 2 * 2 * 3 * 2
    assert list(found.groups) == [f"{data} limit=4, {budget}" for budget in budgets for data in ("arith", tmp_path.name)]
    assert found.points[0].folder == "arith_limit=4_target_token_budget=64_b2_r0_s0"
    assert {(point.options.seed, point.options.limit) for point in found.points} == {(0, 4), (7, 4)}
    assert {point.plan.params["token_budget"] for point in found.points if "=64" in point.folder} == {64}
    once = study(seeds=[7])
    assert [(point.folder, point.options.seed) for point in once.points] == [
        (f"arith_limit=4_{graph}_b2_r0", 7) for graph in ("target", "speccot")
    ]
    further = study(engines=["sim-2xh100"], baseline_engines=["sim-2xh100-eagle3"])
    assert systems(further) == ["target", "speccot", "target on sim-2xh100-eagle3"]


def test_a_part_has_the_keys_of_the_study_and_its_own(study: Write) -> None:
    parts = {
        "one": {},
        "many": {"batch_sizes": [8], "set": {"candidates": 2}, "systems": [{"graph": "speccot", "set": {"step_tokens": 64}}]},
    }
    keys: dict[str, Any] = {"parts": parts, "small": {"limit": 2, "engines": ["sim-instant"]}, "tables": ["speccot-6"]}
    found = study(**keys)
    assert {(p.label.system, p.options.batch_size, p.plan.params.get("candidates")) for p in found.points} == {
        ("target", 2, None),
        ("speccot", 2, 5),
        ("target", 8, None),
        ("speccot step_tokens=64", 8, 2),
    }
    assert [(name, len(runs)) for name, runs in found.tables] == [("speccot-6", 4)]
    own = study(tables=["speccot-6"], parts={"one": {}, "many": {"batch_sizes": [8], "tables": ["data-sets"]}})
    assert own.tables == (("speccot-6", ("arith_limit=4_target_b2_r0", "arith_limit=4_speccot_b2_r0")), ("data-sets", own.tables[1][1]))
    small = study(small_form=True, **keys)
    assert {(point.options.limit, point.options.engines) for point in small.points} == {(2, Path("sim-instant"))}
    parts = {"a": {"random": "3:0", "small": {"limit": 1}}, "b": {}}
    for small_form, wanted in ((False, [(None, "3:0"), (4, None)]), (True, [(1, None), (None, "2:0")])):
        chosen = study(small_form=small_form, small={"random": "2:0"}, parts=parts).groups.values()
        assert [(points[0].options.limit, points[0].options.random) for points in chosen] == wanted


def test_a_run_of_two_parts_is_made_once_and_engines_files_tell_systems_apart(study: Write) -> None:
    names = ["sim-2xh100", {"engines": "sim-2xh100", "name": "long", "set": {"engines.*.text.preset": "math"}}]
    found = study(parts={"both": {"engines": names}, "again": {"systems": ["specreason"], "engines": names[:1]}})
    both = [f"{graph} on {name}" for name in ("sim-2xh100", "long") for graph in ("target", "speccot")]
    assert systems(found) == [*both, "specreason on sim-2xh100"]
    assert [len(points) for points in found.groups.values()] == [4, 2]
    assert len(found.points) == 5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"systems": None}, "mine.yaml, line 1: $: the key `systems` is missing"),
        ({"systems": [{"graph": "speccot", "sets": {}}]}, "line 4: $.systems[0]: unknown key `sets`; did you mean `set`?"),
        ({"systems": [{"graph": "speccot", "set": {"nothing": 1}}]}, "speccot has no param `nothing`"),
        ({"data": ["arith"], "random": "2:0"}, "data arith: has both `limit` and `random`; give only one of them"),
        ({"tables": ["speccot-22"]}, "--table speccot-22: no such table; did you mean"),
        (
            {"parts": {"one": {}, "two": {"set": {"candidates": 2}}}},
            "speccot_b2_r0 is a run of another part too, with other settings or problems; give both the same",
        ),
        ({"params": {"candidate": [1, 2]}}, "candidate: no graph here has such a param; did you mean `candidates`?"),
        ({"parts": {"one": {"titel": "x"}}}, "line 13: $: unknown key `titel`; did you mean `title`?"),
    ],
)
def test_what_is_wrong_in_a_study_is_one_sentence_before_anything_starts(
    study: Write, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphError) as caught:
        study(**keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_study_goes_on_where_it_ended_and_makes_its_tables(study: Write) -> None:
    keys = {"systems": ["draft", "speccot"], "tables": ["speccot-2", "speccot-6"], "parts": {"a": {}, "b": {"batch_sizes": [4]}}}
    seen: list[str] = []

    def stop(number: int, planned: int, point: Point, run: RunFile) -> None:
        seen.append(point.folder)
        if number == 2:
            raise UsageError("enough")

    ended = carry_out(study(**keys), done=stop, workers=1)
    assert (len(ended.points), ended.planned, str(ended.error)) == (2, 6, "enough")
    assert "4 runs of these tables are not finished: they are in none of them." in list(study_tables(ended.folder))
    resumed = carry_out(study(resume=True, **keys), done=lambda number, planned, point, run: seen.append(point.folder), workers=1)
    assert resumed.error is None
    assert len(seen) == len(set(seen)) == len(resumed.points) == 6
    first, second = study_tables(resumed.folder)
    assert isinstance(first, Table)
    assert [row[0] for row in first.rows] == ["draft", "target", "speccot"]
    assert isinstance(second, Table)
    assert [row[2] for row in second.rows] == ["2", "4"]
    assert read_card(resumed.folder).title == "Mine"
    groups = read_points(resumed.folder)
    assert {heading: len(points) for heading, points in groups.items()} == {"a, arith limit=4": 3, "b, arith limit=4": 3}


def test_a_run_all_of_whose_chains_failed_is_said_and_the_others_have_their_tables(study: Write, faulty: Path) -> None:
    faults = {"engines.draft.faults.garbage_share": 1, "engines.draft.max_retries": 0}
    broken = {"engines": str(faulty), "name": "broken", "set": faults}
    result = carry_out(study(engines=[broken], tables=["data-sets"]), workers=1)
    assert (result.failed, result.exit_code) == (4, 3)
    table, said = study_tables(result.folder)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["target"]
    assert said == "All chains failed in arith_limit=4_speccot_b2_r0: in none of these tables."


def test_a_run_may_be_the_baseline_of_one_part_and_a_system_of_another(study: Write) -> None:
    result = carry_out(study(parts={"first": {"baseline": "speccot", "systems": ["specreason"]}, "then": {}}, limit=1), workers=1)
    first, then = read_points(result.folder).values()
    assert [(point.label.system, point.label.baseline) for point in first] == [("speccot", True), ("specreason", False)]
    assert [(point.label.system, point.label.baseline) for point in then] == [("target", True), ("speccot", False)]
    assert verdict("specreason", curves_of(first)).startswith("specreason against speccot: ")
    assert verdict("speccot", curves_of(then)).startswith("speccot against the target alone: ")
    assert next(iter(unlike(then))).startswith("Not alike: speccot: max_steps is 256, the baseline has none")
