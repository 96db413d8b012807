"""What engine `torch` would refuse, said before a worker starts."""

from typing import Any

import anyio
import pytest

from pipeline.engine import Finding
from pipeline.engines.model_card import ModelCard, ModelShape
from pipeline.engines.torch.backend import examine_torch, torch_examination
from pipeline.engines.torch.spec import TorchSpec
from pipeline.system.machine import GIB, Gpu, Machine

SHAPE = ModelShape(layers=32, heads=32, kv_heads=8, head_dim=128, hidden_size=4096, intermediate_size=8192, vocab_size=32000)
CARD = ModelCard(model="big", source="its files", folder="/big", parameters=4 * GIB, dtype="bfloat16", shape=SHAPE, max_model_len=8192)
GPU = Gpu(index=0, cuda_name="0", name="H100", memory_bytes=80 * GIB, free_bytes=79 * GIB)

BFLOAT16 = {"dtype": "bfloat16"}


def machine(*gpus: Gpu, torch: str = "2.13.0", free: int = 60) -> Machine:
    return Machine(cores=(0, 1), memory_bytes=64 * GIB, free_memory_bytes=free * GIB, gpus=gpus, versions={"torch": torch})


def found(where: Machine, **fields: Any) -> tuple[Finding, ...]:
    return torch_examination({"target": TorchSpec(model="big", **fields)}, where, {"target": CARD}).findings


@pytest.mark.parametrize(
    ("where", "fields", "fatal", "said"),
    [
        (machine(), {"kv_cache_slots": 8}, True, "kv_cache_slots is 8, but max_num_seqs = 64 sequences need one each"),
        (machine(), {"max_model_len": 9000}, True, "big supports 8192; set max_model_len to at most 8192"),
        (machine(), {"device": "cuda"}, True, "device is cuda, but this machine shows no GPU; set device to auto or cpu"),
        (machine(GPU), {"device": "cuda:1"}, True, "device is cuda:1, but this machine has 1 GPUs"),
        (machine(GPU, torch="2.13.0+cpu"), {"device": "cuda:0"}, True, "torch 2.13.0+cpu cannot use the H100"),
        (machine(GPU, torch="2.13.0+cpu"), {"max_model_len": 64}, False, "install torch's CUDA build"),
        (machine(), {"core": 5}, True, "core 5 is not available to this process; name some of 0-1"),
        (machine(), {"threads": 4}, False, "the engines want 4 cores together, but 2 are there"),
        (
            machine(free=8),
            BFLOAT16,
            True,
            "it needs 8.8 GiB of main memory, 8.0 GiB of weights (its files) among them, but 8.0 GiB are free",
        ),
        (machine(free=20), BFLOAT16, False, "its cache may grow to 128.0 GiB, but the weights leave 11.2 GiB of CPU"),
        (machine(GPU), {}, False, "its cache may grow to 128.0 GiB, but the weights leave 70.2 GiB of GPU 0"),
    ],
)
def test_findings(where: Machine, fields: dict[str, Any], fatal: bool, said: str) -> None:
    matching = [finding for finding in found(where, **fields) if said in f"{finding.what}; {finding.remedy}"]
    assert [finding.fatal for finding in matching] == [fatal], found(where, **fields)


def test_on_a_cpu_without_instructions_for_bfloat16_weights_are_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.engines.torch.spec.cpu_has_bfloat16", lambda: False)
    assert "16.0 GiB of weights" in found(machine(free=8))[0].what
    assert found(machine(GPU, free=8), max_num_seqs=8) == ()


def test_a_model_that_fits_has_none() -> None:
    assert found(machine(), max_num_seqs=8, max_model_len=4096) == ()
    assert found(machine(GPU), max_num_seqs=8, device="cuda:0") == ()


def test_two_models_share_a_device() -> None:
    specs = {role: TorchSpec(model="big", max_num_seqs=1, max_model_len=64, dtype="bfloat16") for role in ("draft", "target")}
    examined = torch_examination(specs, machine(free=16), dict.fromkeys(specs, CARD))
    [finding] = examined.findings
    assert (finding.role, finding.fatal) == ("target", True)
    assert "but 16.0 GiB are free, and draft before it needs 8.8 GiB" in finding.what


def test_the_bundled_models_need_little() -> None:
    specs = {role: TorchSpec(model=f"bundled:tiny-{role}") for role in ("draft", "target")}
    examined = anyio.run(examine_torch, specs, machine())
    assert examined.findings == ()
    draft, target = examined.memory
    assert (draft.weights_bytes, target.weights_bytes) == (pytest.approx(4 * 118_208, rel=0.02), pytest.approx(4 * 1_564_992, rel=0.02))
    assert (target.cache_tokens, target.cache_bytes, target.sequences) == (128 * 4096, 128 * 4096 * 7168, 128.0)
