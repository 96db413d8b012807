"""Study files: what they expand into, what they refuse, and a whole study that goes on where it ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from pipeline.analysis.points import Point, read_points
from pipeline.analysis.studies import grouped, read_study, study_tables
from pipeline.analysis.sweep_tables import crossings
from pipeline.analysis.tables import Table, named_queries
from pipeline.data.prepare import RECIPES
from pipeline.errors import GraphError, UsageError
from pipeline.graph.files import bundled_files
from pipeline.run.observer import Observer
from pipeline.run.prepare import Prepared
from pipeline.runtime.executor import Executor
from pipeline.show.report import report
from pipeline.sweep.plan import SweepOptions, SweepPlan
from pipeline.sweep.study import StudyOptions, file_of, missing_data, plan_study, score_steps
from pipeline.sweep.study_file import read_study_file
from pipeline.sweep.sweep import carry_out, sweep
from tests.support.paths import SIM, TEST_SET
from tests.support.runs import write_problems

STUDIES = bundled_files("study file")
Write = Callable[..., StudyOptions]


@pytest.fixture(name="study")
def _study(tmp_path: Path) -> Write:
    """Writes a study of SpecCoT on simulated engines, with other values for some of its keys; None leaves a key out."""

    def write(**keys: Any) -> StudyOptions:
        given = {"title": "Mine", "systems": ["speccot"], "engines": [str(SIM)], "data": [str(TEST_SET)], "limit": 4, "batch_sizes": [2]}
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in (given | keys).items() if value is not None}, sort_keys=False))
        return StudyOptions(file=path, output=tmp_path / "out", workers=1)

    return write


def labels(plan: SweepPlan) -> list[str]:
    return [system.label for system in plan.systems]


@pytest.mark.slow
@pytest.mark.parametrize("small", [False, True], ids=["whole", "small"])
@pytest.mark.parametrize("name", STUDIES)
def test_every_bundled_study_can_be_planned(name: str, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs, engines, presets, tables and data sets exist, its sides are alike, and no table lacks a system."""
    monkeypatch.chdir(tmp_path)
    plan = plan_study(StudyOptions(file=Path(name), small=small))
    assert plan.study is not None
    assert plan.study.source.split(" ")[0] in ("SpecCoT", "SCoT", "SpecReason")
    assert all(tables.names and tables.runs for tables in plan.study.tables)
    assert {run for tables in plan.study.tables for run in tables.runs} == {point.name for point in plan.points}
    inputs = {point.sweep.input for point in plan.points}
    recipes = {file_of(name) for name in RECIPES}
    assert inputs <= recipes
    assert (missing_data(plan) == "") is small
    if small:
        assert len(plan.points) <= 16
        assert {spec.backend for point in plan.points for spec in point.system.engines.values()} <= {"sim", "torch"}


def test_every_table_of_a_paper_has_a_study_that_says_how_it_is_run() -> None:
    files = [read_study_file(path, small=False) for path in STUDIES.values()]
    named = {name for file in files for tables in (file.tables, *(part.tables for part in file.parts)) for name in tables}
    assert named <= named_queries().keys()
    assert [name for name, path in STUDIES.items() if f"# pipeline study {name}\n" not in path.read_text()] == []


def test_the_baseline_runs_on_further_engines_files(study: Write) -> None:
    plan = plan_study(study(engines=["sim-2xh100"], baseline_engines=["sim-2xh100-eagle3"]))
    assert labels(plan) == ["target", "speccot", "target on sim-2xh100-eagle3"]


@pytest.mark.slow
def test_params_data_sets_and_seeds_are_multiplied(study: Write, tmp_path: Path) -> None:
    other = write_problems(tmp_path, 3)
    given = study(data=[str(TEST_SET), {"data": str(other)}], params={"candidates": [1, 5], "token_budget": [64, 8192]}, seeds=[0, 7])
    plan = plan_study(given)
    budgets = [f"token_budget={budget}" for budget in (64, 8192)]
    assert labels(plan) == [f"{of}" for b in budgets for of in (f"target {b}", f"speccot {b} candidates=1", f"speccot {b} candidates=5")]
    assert len(plan.points) == 2 * 2 * 3 * 2
    assert plan.study is not None
    assert list(plan.study.groups) == [f"{data} limit=4, {budget}" for budget in budgets for data in ("arith", tmp_path.name)]
    assert plan.points[0].name == "arith_limit=4_target_token_budget=64_pipelined_b2_r0_s0"
    assert {point.sweep.seed for point in plan.points} == {0, 7}
    assert {point.system.plan.params["token_budget"] for point in plan.points if "=64" in point.name} == {64}
    once = plan_study(study(seeds=[7]))
    assert [(point.name, point.sweep.seed) for point in once.points] == [
        (f"arith_limit=4_{graph}_pipelined_b2_r0", 7) for graph in ("target", "speccot")
    ]


@pytest.mark.slow
def test_a_part_has_the_keys_of_the_study_and_its_own(study: Write) -> None:
    parts = {
        "one": {},
        "many": {"batch_sizes": [8], "set": {"candidates": 2}, "systems": [{"graph": "speccot", "set": {"step_tokens": 64}}]},
    }
    small = {"limit": 2, "engines": ["sim-instant"]}
    plan = plan_study(study(parts=parts, small=small, tables=["speccot-6"]))
    assert labels(plan) == ["target", "speccot", "speccot step_tokens=64"]
    assert {(point.system.label, point.sweep.batch_sizes, point.system.plan.params.get("candidates")) for point in plan.points} == {
        ("target", (2,), None),
        ("speccot", (2,), 5),
        ("target", (8,), None),
        ("speccot step_tokens=64", (8,), 2),
    }
    assert plan.study is not None
    assert [(tables.names, len(tables.runs)) for tables in plan.study.tables] == [(("speccot-6",), 4)]
    random = plan_study(study(small={"random": "2:0"}, parts={"sampled": {"random": "3:0"}, "first": {}}))
    assert [(point.sweep.limit, point.sweep.random) for point in random.points] == [(None, "3:0")] * 2 + [(4, None)] * 2
    as_small = plan_study(structs.replace(study(parts=parts, small=small), small=True))
    assert {(point.sweep.limit, point.system.engines_file) for point in as_small.points} == {(2, Path("sim-instant"))}


@pytest.mark.slow
def test_engines_that_are_asked_for_by_two_parts_run_a_point_once(study: Write) -> None:
    names = ["sim-2xh100", {"engines": "sim-2xh100", "name": "long", "set": {"engines.*.text.preset": "math"}}]
    parts = {"both": {"engines": names}, "again": {"systems": ["specreason"], "engines": names[:1]}}
    plan = plan_study(study(parts=parts))
    assert labels(plan) == [f"{graph} on {name}" for name in ("sim-2xh100", "long") for graph in ("target", "speccot")] + [
        "specreason on sim-2xh100"
    ]
    assert len(plan.points) == 5
    assert plan.study is not None
    assert [len(names) for names in plan.study.groups.values()] == [4, 2]


@pytest.mark.slow
def test_what_is_set_to_the_value_that_it_has_anyway_is_run_once_and_keeps_its_name_in_each_part(study: Write) -> None:
    parts = {"alone": {"batch_sizes": [2, 4]}, "candidates": {"params": {"candidates": [1, 5]}}}
    given = study(parts=parts, limit=1, prm="prm-tiny", tables=["speccot-3"])
    plan = plan_study(given)
    assert labels(plan) == ["target", "speccot", "speccot candidates=1"]
    assert "speccot candidates=5 is the same as speccot: run once" in plan.remarks
    assert plan.study is not None
    assert [len(tables.runs) for tables in plan.study.tables] == [5]
    drafting = [point.name for point in plan.points if point.system.label != "target"]
    assert sorted(plan.study.rewards["prm-tiny"]) == sorted(drafting)
    result = carry_out(plan)
    found = read_study(result.folder)
    assert found is not None
    compared = grouped(found, result.points)
    assert {heading: [(point.curve, point.params, point.batch_size) for point in points] for heading, points in compared.items()} == {
        "alone, arith limit=1": [
            ("target", {}, 2),
            ("target", {}, 4),
            ("speccot, pipelined", {}, 2),
            ("speccot, pipelined", {}, 4),
        ],
        "candidates, arith limit=1": [
            ("target", {}, 2),
            ("speccot candidates=1, pipelined", {"candidates": 1}, 2),
            ("speccot candidates=5, pipelined", {"candidates": 5}, 2),
        ],
    }
    table, *_ = study_tables(result.folder, found, result.points)
    assert isinstance(table, Table)
    assert table.rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"systems": None}, "mine.yaml, line 1: $: the key `systems` is missing"),
        ({"system": ["speccot"]}, "unknown key `system`; did you mean `systems`?"),
        ({"systems": ["specot"]}, "$.systems: no graph is named `specot`"),
        ({"systems": [{"graph": "speccot", "set": {"candidatez": 2}}]}, "$.systems[0]: `candidatez` is no param of speccot; did you mean"),
        ({"params": {"treshold": [3]}}, "$.params.treshold: none of the graphs has a param `treshold`"),
        ({"params": {"candidates": [0]}}, "candidates"),
        ({"set": {"nothing": 1}}, "$.set: none of the graphs and engines has `nothing`"),
        ({"engines": ["nothere"]}, "no engines file is named `nothere`"),
        (
            {"engines": ["sim-2xh100", {"engines": "sim-1xh200", "name": "sim-2xh100"}]},
            "$.engines[1]: two engines files are named `sim-2xh100`; give one of them another `name`",
        ),
        (
            {"baseline": "speccot", "systems": [{"graph": "speccot", "set": {"candidates": 2}}]},
            "is the graph of the baseline, with other values",
        ),
        ({"random": "2:0"}, "$.random: is given beside `limit`; give only one of them"),
        ({"data": [{"data": "arith", "limit": 2, "random": "2:0"}]}, "$.data[0]: has both `limit` and `random`"),
        ({"preset": "nothere"}, "$.preset: no preset is named `nothere`"),
        ({"prm": "nothere"}, "$.prm: no reward model is named `nothere`"),
        ({"tables": ["speccot-22"]}, "$.tables[0]: --table speccot-22: no such table; did you mean"),
        (
            {"parts": {"one": {}, "two": {"set": {"candidates": 2}}}},
            "$.parts.two: speccot is a system of another part too, with other settings: candidates=2; give both the same",
        ),
        (
            {"parts": {"one": {}, "two": {"samples": 2}}},
            "$.parts.two: arith_limit=4_target_pipelined_b2_r0 is a run of another part too, with other problems or samples",
        ),
        ({"parts": {"one": {"title": "x"}}}, "unknown key `title`"),
    ],
)
def test_what_is_wrong_in_a_study_is_one_sentence_before_anything_starts(study: Write, keys: dict[str, Any], message: str) -> None:
    given = study(**keys)
    with pytest.raises(GraphError) as caught:
        plan_study(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert given.output is not None
    assert not given.output.exists()


@pytest.mark.slow
def test_problems_that_are_missing_are_named_with_what_prepares_them(study: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_study(study(data=["gsm8k", "amc23", "mine.csv", "arith"]))
    told = "amc23, gsm8k: the problems are not in `data/`; prepare them first: "
    told += "pipeline prepare amc23 --from hub; pipeline prepare gsm8k --from hub"
    assert missing_data(plan) == f"mine.csv: no such file; {told}"
    with pytest.raises(UsageError):
        carry_out(plan)


@pytest.mark.slow
def test_a_study_goes_on_where_it_ended_and_makes_its_tables(study: Write) -> None:
    keys = {"systems": ["draft", "speccot"], "tables": ["speccot-2", "speccot-6"], "parts": {"a": {}, "b": {"batch_sizes": [4]}}}
    given = study(**keys)
    seen: list[str] = []

    def stop(number: int, planned: int, point: Point) -> None:
        seen.append(point.folder)
        if number == 2:
            raise UsageError("enough")

    ended = carry_out(plan_study(given), done=stop)
    assert (len(ended.points), ended.planned, str(ended.error)) == (2, 6, "enough")
    found = read_study(ended.folder)
    assert found is not None
    parts = list(study_tables(ended.folder, found, ended.points))
    assert "4 runs of these tables are not finished: they are in none of them." in parts
    resumed = carry_out(plan_study(structs.replace(given, resume=True)), done=lambda number, planned, point: seen.append(point.folder))
    assert resumed.error is None
    assert len(seen) == len(set(seen)) == len(resumed.points) == 6
    assert read_points(resumed.folder / "points.parquet") == resumed.points
    first, second, said = study_tables(resumed.folder, found, resumed.points)
    assert isinstance(first, Table)
    assert [row[0] for row in first.rows] == ["draft", "target", "speccot"]
    assert isinstance(second, Table)
    assert [row[2] for row in second.rows] == ["2", "4"]
    assert isinstance(said, str)
    assert said.startswith("All runs are simulated: their answers are invented")
    compared = grouped(found, resumed.points)
    assert {heading: len(points) for heading, points in compared.items()} == {"a, arith limit=4": 3, "b, arith limit=4": 3}
    with pytest.raises(UsageError, match=r"cannot be resumed: seed is 3, was 0 for 'speccot'; start anew in another folder"):
        carry_out(plan_study(structs.replace(study(**keys, seeds=[3]), resume=True)))
    with pytest.raises(UsageError, match="a study and a sweep cannot share a folder; choose another directory"):
        sweep(SweepOptions(graphs=(Path("speccot"),), engines=(SIM,), input=TEST_SET, batch_sizes=(2,), output=given.output, resume=True))


@pytest.mark.slow
def test_a_run_all_of_whose_chains_failed_is_said_and_the_others_have_their_tables(study: Write, faulty: Path) -> None:
    faults = {"engines.draft.faults.garbage_share": 1, "engines.draft.max_retries": 0}
    engines = [{"engines": str(faulty), "name": "broken", "set": faults}]
    result = carry_out(plan_study(study(engines=engines, tables=["data-sets"])))
    found = read_study(result.folder)
    assert found is not None
    assert (result.failed, result.exit_code) == (4, 3)
    table, said, _ = study_tables(result.folder, found, result.points)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["target"]
    assert said == "All chains failed in arith_limit=4_speccot_pipelined_b2_r0: in none of these tables."
    assert report([result.folder]).count("chains failed, 4 at batch size 2") == 1


@pytest.mark.slow
def test_a_run_may_be_the_baseline_of_one_part_and_a_system_of_another(study: Write) -> None:
    parts = {"first": {"baseline": "speccot", "systems": ["specreason"]}, "then": {}}
    result = carry_out(plan_study(study(parts=parts, limit=1)))
    found = read_study(result.folder)
    assert found is not None
    compared = grouped(found, result.points)
    assert {heading: [(point.graph, point.baseline) for point in points] for heading, points in compared.items()} == {
        "first, arith limit=1": [("speccot", True), ("specreason", False)],
        "then, arith limit=1": [("target", True), ("speccot", False)],
    }
    said = [crossings(points)[0] for points in compared.values()]
    assert " speccot at batch size 2" in said[0]
    assert " the target alone at batch size 2 (not alike: max_steps is 256, the baseline has none" in said[1]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_a_reward_model_scores_the_runs_that_draft_once_and_goes_on_after_one_that_it_cannot_score(study: Write) -> None:
    keys = {"systems": ["specreason"], "engines": ["tiny"], "prm": "prm-tiny", "tables": ["specreason-7"]}
    parts = {"real": {}, "simulated": {"engines": [str(SIM)], "prm": None}}
    plan = plan_study(study(**keys, parts=parts))
    result = carry_out(plan)
    assert plan.study is not None
    assert [point.simulated for point in result.points] == [True, True, False, False]
    told: list[str] = []
    name = "arith_limit=4_specreason_on_tiny_pipelined_b2_r0"
    both = structs.replace(plan.study, rewards={"nothere": ("gone", name), "prm-tiny": (name,)})
    failures = score_steps(result.folder, both, told.append)
    assert [each.partition(" has no rewards: ")[0] for each in failures] == ["gone", name]
    assert score_steps(result.folder, plan.study, told.append) == []
    assert told[2:] == [f"scoring the steps of {name} with prm-tiny"]
    *tables, _ = study_tables(result.folder, plan.study, result.points)
    [table] = [each for each in tables if isinstance(each, Table)]
    assert table.rows[-1][2] == "rank correlation"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_two_systems_with_one_plan_are_warmed_up_once_at_the_largest_batch_size(study: Write) -> None:
    seen: list[tuple[bool, str, int]] = []

    @contextmanager
    def watch(run: Prepared, work: Executor) -> Iterator[None]:
        assert run.folder is not None
        seen.append((run.folder.parent.name.startswith("warm-up-"), run.plan.name, run.options.batch_size))
        yield

    parts = {"many": {"batch_sizes": [4]}, "one": {"params": {"candidates": [5]}}}
    plan = plan_study(study(engines=["tiny"], baseline="speccot", batch_sizes=[2], limit=2, parts=parts))
    assert labels(plan) == ["speccot", "speccot candidates=5"]
    assert len({system.plan.digest for system in plan.systems}) == 1
    assert carry_out(plan, Observer(watch=watch)).error is None
    assert sorted(seen, reverse=True) == [(True, "speccot", 4), (False, "speccot", 4), (False, "speccot", 2)]
