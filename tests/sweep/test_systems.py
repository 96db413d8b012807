"""Which systems a sweep compares, and what the target alone gets of their engines' memory and devices."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError, UsageError
from pipeline.sweep.plan import SweepOptions, SweepSystem, parts, planned_points, together
from pipeline.sweep.systems import all_virtual, baselines, read_systems, unequal_rules

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
SPECCOT = Path("speccot")


def systems(*engines: str, **fields: Any) -> dict[str, SweepSystem]:
    given: dict[str, Any] = {
        "graphs": (SPECCOT,),
        "input": Path("p.csv"),
        "batch_sizes": (1, 8),
        "engines": tuple(map(Path, engines)),
    }
    return {system.label: system for system in read_systems(SweepOptions(**given | fields))}


def cache_tokens(system: SweepSystem) -> int:
    target = system.engines["target"]
    assert isinstance(target, SimSpec)
    return target.kv_cache_tokens


def test_the_target_alone_has_the_memory_of_the_draft_on_the_same_devices() -> None:
    found = systems("sim-2xh100")
    freed = 1.78e9 * 2 + 430_000 * 28_672  # the draft's weights and its cache
    tokens = int(238_000 + freed / 262_144)
    assert (cache_tokens(found["speccot"]), cache_tokens(found["target"])) == (238_000, tokens)
    assert found["target"].widened == (f"engines.target.kv_cache_tokens={tokens}",)
    assert list(found["target"].engines) == ["target"]
    assert list(found["speccot"].engines) == ["target", "draft"]
    sentence = f"target has the memory of the engines that it does not use: --set engines.target.kv_cache_tokens={tokens}"
    assert baselines(list(found.values())) == [sentence]


def test_the_target_alone_on_further_engines_files_has_the_memory_of_the_draft_in_each() -> None:
    files = ("sim-2xh100-eagle3", "sim-2xh100-decode")
    found = systems("sim-2xh100", baseline_engines=tuple(map(Path, files)))
    assert list(found) == ["target", "speccot", "target on sim-2xh100-eagle3", "target on sim-2xh100-decode"]
    assert [system.baseline for system in found.values()] == [True, False, True, True]
    freed = 1.78e9 * 2 + 430_000 * 28_672
    assert cache_tokens(found["target on sim-2xh100-eagle3"]) == int(228_000 + freed / (262_144 + 4096))
    assert list(found["target on sim-2xh100-eagle3"].engines) == ["target"]
    assert cache_tokens(found["target"]) == cache_tokens(systems("sim-2xh100")["target"])
    for name in ("target", "speccot"):
        spec = found[name].engines["target"]
        assert isinstance(spec, SimSpec)
        assert spec.speculative is None


def test_a_label_has_values_as_the_user_writes_them() -> None:
    found = systems("sim-2xh100", graphs=(Path("gated"),), vary={"answer_confident": ("null", "0.9"), "method": ("greedy",)})
    assert list(found) == ["target", "gated answer_confident=null method=greedy", "gated answer_confident=0.9 method=greedy"]


def test_systems_that_are_held_to_other_rules_than_the_target_alone_are_named() -> None:
    none = "the baseline has none"
    graphs = {"graphs": (Path("specreason"), SPECCOT)}
    assert unequal_rules([*systems("sim-2xh100", **graphs).values()]) == [
        f"warning: specreason against the target alone: answer_boxed is true, {none}; repeated is 2, {none}; max_steps is 256, {none}",
        f"warning: speccot against the target alone: max_steps is 256, {none}",
    ]
    stepwise = systems("sim-2xh100", baseline=Path("target-steps"), settings=("answer_boxed=true", "repeated=2"), **graphs)
    assert unequal_rules([*stepwise.values()]) == []


def test_steps_between_two_trials_are_no_tokens_of_the_target_alone() -> None:
    found = systems("sim-2xh100", graphs=(Path("specreason"),), settings=("answer_stable=2", "every=2"))
    assert (found["target"].settings[:1], found["target"].plan.loops[0].pace) == (("answer_stable=2",), "every 64 tokens")
    assert found["specreason"].plan.loops[0].pace == "every 2 steps"


def test_what_the_user_sets_is_where_the_memory_is_added() -> None:
    found = systems("sim-2xh100", settings=("engines.target.kv_cache_tokens=100000", "engines.draft.kv_cache_tokens=1000", "candidates=2"))
    assert cache_tokens(found["speccot"]) == 100_000
    assert cache_tokens(found["target"]) == int(100_000 + (1.78e9 * 2 + 1000 * 28_672) / 262_144)
    assert found["speccot"].plan.params["candidates"] == 2


def test_vllm_s_target_has_the_draft_s_share_of_the_gpu() -> None:
    target = systems("qwq-r1_1.5b-2x80gb")["target"].engines["target"]
    assert isinstance(target, VllmSpec)
    assert target.args["gpu_memory_utilization"] == 0.9


def test_engines_chosen_for_named_models_are_those_of_all_systems_but_a_baseline_with_a_file_of_its_own() -> None:
    shares = {"target": 0.7, "draft": 0.2}
    planned = {role: {"backend": "vllm", "model": "m", "args": {"gpu_memory_utilization": share}} for role, share in shares.items()}
    found = systems(planned_engines=planned)
    spec = found["target"].engines["target"]
    assert isinstance(spec, VllmSpec)
    assert spec.args["gpu_memory_utilization"] == 0.9
    assert set(found["speccot"].engines) == {"target", "draft"}
    fields = {"planned_engines": planned, "settings": ("engines.*.args.max_model_len=10240",)}
    found = systems(**fields, baseline_engines=(Path("qwq-r1_1.5b-2x48gb"),))
    alone = found["target on qwq-r1_1.5b-2x48gb"].engines["target"]
    assert isinstance(alone, VllmSpec)
    assert alone.args["tensor_parallel_size"] == 2


def test_the_baseline_may_have_an_engines_file_of_its_own_with_the_memory_of_all_in_it() -> None:
    found = systems("sim-2xh100-own", baseline_engines=(Path("sim-2xh100"),), settings=("engines.target.kv_cache_tokens=9000",))
    assert list(found) == ["target", "speccot", "target on sim-2xh100"]
    assert cache_tokens(found["target on sim-2xh100"]) == 9000 + 298_611 - 238_000
    assert cache_tokens(found["speccot"]) == 9000


def test_each_engines_file_has_a_baseline_of_its_own() -> None:
    names = ("sim-2xh100", "sim-2xh100-own")
    found = systems(*names)
    assert list(found) == [f"{graph} on {name}" for name in names for graph in ("target", "speccot")]
    assert [system.placement for system in found.values()] == [name for name in names for _ in range(2)]
    assert list(systems(*names, baseline_engines=(Path(names[0]),))) == list(found), "which it has anyway"


def test_settings_are_of_all_systems_on_every_engines_file_as_far_as_it_has_such_a_role(tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text(
        (ROOT / "graphs/engines/sim-2xh100.yaml").read_text().partition("\ntarget:")[2].join(["target:", ""])
    )
    names, settings = ("sim-2xh100", "sim-1xh200"), ("engines.*.text.preset=math", "engines.draft.max_num_seqs=7")
    for baseline in ((), (Path("sim-2xa6000"),), (tmp_path / "alone.yaml",)):
        for system in systems(*names, baseline_engines=baseline, settings=settings).values():
            assert {spec.text.preset for spec in system.plan.engines.values() if isinstance(spec, SimSpec)} == {"math"}
            assert [spec.max_num_seqs for role, spec in system.plan.engines.items() if isinstance(spec, SimSpec) and role == "draft"] in (
                [],
                [7],
            )
            assert not [clause for clause in system.unlike if "text" in clause]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vary": {"token_budget": ("100", "8192")}}, "thought_tokens is 100, the baseline's "),
        ({"settings": ("stages.fallback.temperature=0.1",)}, "sampling to write is temperature 0.1, the baseline's "),
    ],
)
def test_options_that_give_a_system_other_work_than_the_target_alone_are_said(fields: dict[str, Any], said: str) -> None:
    found = list(systems("sim-2xh100", **fields).values())
    assert any(clause.startswith(said) for system in found for clause in system.unlike)
    assert any(said in sentence for sentence in unequal_rules(found))


def test_points_on_the_same_engines_follow_each_other() -> None:
    found = list(systems("sim-2xh100").values())
    given = SweepOptions(graphs=(SPECCOT,), input=Path("p.csv"), batch_sizes=(1, 8))
    cut = [[point.coordinates.system for point in part] for part in parts(together(planned_points(found, given, 3)))]
    assert cut == [["speccot"] * 2, ["target"] * 4, ["speccot"] * 4, ["target"] * 2]


@pytest.mark.parametrize(
    ("engines", "fields", "error", "message"),
    [
        (("sim-2xh100",), {"baseline_engines": (Path("nothere"),)}, UsageError, "no engines file is named `nothere`"),
        (("sim-2xh100", "nothere"), {}, UsageError, "no engines file is named `nothere`"),
        (("sim-2xh100", "graphs/engines/sim-2xh100.yaml"), {}, UsageError, "--engines sim-2xh100: two engines files have this name"),
        (
            ("sim-2xh100",),
            {"settings": ("engines.draft.device.sharing=mps",)},
            GraphError,
            r"^engine 'draft': device.sharing: is mps, but time_slices for engine 'target' on the same device `h100-0\+1`; give both",
        ),
        (
            ("sim-2xh100",),
            {"settings": ("engines.*.device.kernel_wait=0.3",)},
            GraphError,
            "kernel_wait=0.3: is for `sharing: mps`, here it is",
        ),
        (("sim-2xh100",), {"settings": ("engines.draft.device.sharing=mpx",)}, GraphError, "unknown value `mpx`; did you mean `mps`?"),
        (("sim-2xh100",), {"settings": ("engines.draft.device.kernel_wait=2",)}, GraphError, "expected `float` <= 1.0, got 2"),
    ],
)
def test_wrong_engines_are_refused_before_anything_starts(
    engines: tuple[str, ...], fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        systems(*engines, **fields)


def test_graphs_that_name_other_engines_are_refused_also_where_one_is_the_baseline(tmp_path: Path) -> None:
    for name, engines in (("speccot", "sim-2xh100"), ("target", "sim-1xh200")):
        text = (ROOT / f"graphs/{name}.yaml").read_text().replace("engines: engines/tiny.yaml", f"engines: {engines}")
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(GraphError, match="engine 'target' differs from earlier graphs; give one for all with --engines"):
        systems(graphs=(tmp_path / "speccot.yaml",))


def test_simulated_and_real_engines_are_not_compared() -> None:
    with pytest.raises(UsageError, match="speccot on sim-2xh100 would run on simulated time, the other systems would not"):
        all_virtual(list(systems("sim-2xh100", "tiny").values()))
