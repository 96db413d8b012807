"""Which systems a sweep compares, what the target alone gets of their engines' memory, and the points that come of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import PipelineError, UsageError
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.study.points import grid, plan_sweep, same_engines
from pipeline.study.systems import EnginesEntry, Matrix, System, SystemEntry, engines_name, read_systems, run_baseline, said, varied
from tests.support.paths import ROOT, SIM
from tests.support.sweeps import SPECCOT, matrix_of

TARGET = ROOT / "graphs/target.yaml"
FREED = 1.78e9 * 2 + 430_000 * 28_672
"""The weights and the cache of the draft of sim-2xh100."""


def matrix(*engines: str, **fields: Any) -> Matrix:
    shared = {name: fields.pop(name) for name in ("settings", "planned_engines") if name in fields}
    compared = varied([SystemEntry(graph=graph) for graph in fields.pop("graphs", ("speccot",))], fields.pop("vary", {}))
    files = [EnginesEntry(engines=each, name=engines_name(Path(each)) if len(engines) > 1 else "") for each in engines]
    given: dict[str, Any] = {"systems": compared, "engines": files, "batch_sizes": (1, 8)}
    return Matrix(shared=RunOptions(graph=Path("speccot"), input=("p.csv",), **shared), **given | fields)


def systems(*engines: str, **fields: Any) -> dict[str, System]:
    found = read_systems(matrix(*engines, **fields))
    return {f"{each.name} on {each.engines}" if each.engines else each.name: each for each in found}


def cache_tokens(system: System) -> int:
    target = system.plan.engines["target"]
    assert isinstance(target, SimSpec)
    return target.kv_cache_tokens


def test_the_target_alone_on_each_engines_file_has_the_memory_of_the_draft_in_it() -> None:
    files = ("sim-2xh100-eagle3", "sim-2xh100-decode")
    found = systems("sim-2xh100", baseline_engines=tuple(map(Path, files)))
    assert [(name, each.baseline, list(each.plan.engines)) for name, each in found.items()] == [
        ("target", True, ["target"]),
        ("speccot", False, ["target", "draft"]),
        *((f"target on {file}", True, ["target"]) for file in files),
    ]
    tokens, eagle3 = int(238_000 + FREED / 262_144), int(228_000 + FREED / (262_144 + 4096))
    assert [cache_tokens(each) for each in found.values()][:3] == [tokens, 238_000, eagle3]
    setting = f"engines.target.kv_cache_tokens={tokens}"
    assert found["target"].widened == (setting,)
    assert found["target"].notices == (f"target: given the unused memory of the other engines (--set {setting})",)
    names = ("sim-2xh100", "sim-2xh100-own")
    each = [f"{graph} on {name}" for name in names for graph in ("target", "speccot")]
    assert list(systems(*names)) == each
    assert list(systems(*names, baseline_engines=(Path(names[0]),))) == each, "which it has anyway"


def test_vllm_s_target_has_the_draft_s_share_of_the_gpu_also_of_engines_chosen_for_named_models() -> None:
    shares = {"target": 0.7, "draft": 0.2}
    planned = {role: {"backend": "vllm", "model": "m", "args": {"gpu_memory_utilization": share}} for role, share in shares.items()}
    fields = {"planned_engines": planned, "settings": ("engines.*.args.max_model_len=10240",)}
    other = (Path("qwq-r1_1.5b-2x48gb"),)
    found = systems(**fields, baseline_engines=other)
    specs = [each["target"].plan.engines["target"] for each in (systems("qwq-r1_1.5b-2x80gb"), found)]
    assert [spec.args["gpu_memory_utilization"] for spec in specs if isinstance(spec, VllmSpec)] == [0.9, 0.9]
    alone = found["target on qwq-r1_1.5b-2x48gb"].plan.engines["target"]
    assert isinstance(alone, VllmSpec)
    assert alone.args["tensor_parallel_size"] == 2


def test_settings_are_of_the_graphs_and_engines_that_have_them(tmp_path: Path) -> None:
    text = (ROOT / "graphs/engines/sim-2xh100.yaml").read_text()
    (tmp_path / "alone.yaml").write_text(text.partition("\ntarget:")[2].join(["target:", ""]))
    settings = ("engines.*.text.preset=math", "engines.draft.max_num_seqs=7", "candidates=2", "threshold=5")
    found = systems(
        "sim-2xh100", "sim-1xh200", graphs=("speccot", "specreason"), baseline_engines=(tmp_path / "alone.yaml",), settings=settings
    )
    for system in found.values():
        specs = {role: spec for role, spec in system.plan.engines.items() if isinstance(spec, SimSpec)}
        assert {spec.text.preset for spec in specs.values()} == {"math"}
        assert "draft" not in specs or specs["draft"].max_num_seqs == 7
        assert system.plan.params.get("threshold", 5) == 5
        assert system.plan.params.get("candidates", 2) == 2


def test_what_a_system_has_other_work_in_than_the_target_alone_is_said() -> None:
    none = "the baseline has none"
    graphs = ("specreason", "speccot")
    assert list(said([*systems("sim-2xh100", graphs=graphs).values()]))[1:] == [
        f"warning: specreason against target: answer_boxed is true, {none}; repeated is 2, {none}; max_steps is 256, {none}",
        f"warning: speccot against target: max_steps is 256, {none}",
    ]
    alike = systems("sim-2xh100", graphs=graphs, baseline=Path("target-steps"), settings=("answer_boxed=true", "repeated=2"))
    assert len(list(said([*alike.values()]))) == 1, "the memory that it was given"


def test_params_that_vary_name_systems_and_the_baseline_is_not_one_of_them(tmp_path: Path) -> None:
    found = systems("sim-2xh100", graphs=("gated",), vary={"answer_confident": (None, 0.9), "method": ("greedy",)})
    assert list(found) == ["target", "gated answer_confident=null method=greedy", "gated answer_confident=0.9 method=greedy"]
    careful = {"graphs": ("specreason",), "baseline": Path("specreason"), "vary": {"threshold": (5, 7)}}
    assert list(systems("sim-2xh100", **careful)) == ["specreason", "specreason threshold=5"], "7 is the baseline's"
    shutil.copy(SPECCOT, tmp_path / "mine.yaml")
    mine = matrix_of(tmp_path, graphs=(tmp_path / "mine.yaml",), settings=())
    assert read_systems(mine)[0].plan == load_plan(TARGET, SIM, read_systems(mine)[0].widened)
    (tmp_path / "target.yaml").write_text(TARGET.read_text().replace("name: target", "name: other"))
    assert [system.name for system in read_systems(mine)] == ["other", "speccot"]
    assert [system.name for system in read_systems(structs.replace(mine, baseline=TARGET))] == ["target", "speccot"]


@pytest.mark.parametrize(
    ("engines", "fields", "message"),
    [
        (("sim-2xh100", "graphs/engines/sim-2xh100.yaml"), {}, "two systems are called 'target on sim-2xh100'"),
        (("sim-2xh100",), {"vary": {"candidatez": (1,)}}, "--vary candidatez: no graph here has such a param; did you mean"),
        (("sim-2xh100",), {"vary": {"candidates": (1, 1)}}, "a value is named twice"),
        (("sim-2xh100",), {"settings": ("tokens=1",)}, "--set tokens=1: no graph or engines file here has `tokens`"),
        (("sim-2xh100",), {"settings": ("engines.draft.device.sharing=mps",)}, "is mps, but time_slices for engine 'target'"),
        (("sim-2xh100", "tiny"), {}, "sim-2xh100 would run on simulated time, the others not"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(engines: tuple[str, ...], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        plan_sweep(matrix(*engines, **fields))


def test_a_run_has_the_target_alone_on_its_engines_as_its_baseline() -> None:
    alone = run_baseline(RunOptions(graph=Path("speccot"), input=("p.csv",), engines=SIM, batch_size=3, baseline=True))
    assert (alone.options.graph.stem, alone.options.batch_size, alone.options.baseline) == ("target", 3, False)
    assert alone.plan == load_plan(TARGET, SIM, alone.widened)
    with pytest.raises(UsageError, match="target is the target alone: there is nothing to compare it with"):
        run_baseline(RunOptions(graph=Path("target"), input=("p.csv",), engines=SIM))


def test_points_on_the_same_engines_follow_each_other_and_repeats_alternate() -> None:
    given = matrix("tiny", schedules=("pipelined", "sequential"), seeds=(0, 7), repeats=3)
    names = [point.folder for point in plan_sweep(structs.replace(given, seeds=(0,), schedules=("pipelined",), repeats=2)).points]
    once = [f"{system}_b{size}" for system in ("target", "speccot") for size in (1, 8)]
    assert names == [f"{name}_r0" for name in once] + [f"{name}_r1" for name in reversed(once)]
    study = plan_sweep(given)
    assert len(study.points) == 3 * 2 * (2 + 2 + 1)  # repeats, seeds, sizes of the target and of SpecCoT, and one chain at a time
    assert sorted(point.options.batch_size for point in study.points if point.label.schedule == "sequential") == [1] * 6
    assert [len(points) for _, points in same_engines(study.points)] == [len(study.points)], "the draft stays open beside the target alone"
    simulated = plan_sweep(structs.replace(given, engines=[EnginesEntry(engines="sim-2xh100", name="sim")]))
    assert {point.label.repeat for point in simulated.points} == {0}
    widened = [point for points in grid(given, read_systems(matrix("sim-2xh100"))).values() for point in points]
    assert [(list(engines), len(points)) for engines, points in same_engines(widened)] == [(["target"], 4), (["target", "draft"], 6)]
