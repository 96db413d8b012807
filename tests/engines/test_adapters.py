"""Adapters of an engine: what is refused before it starts, what they take, and that no cache is shared between them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pipeline.engine import Request
from pipeline.engines.adapters import VARIANTS, AdapterCard, adapter_findings, read_adapter
from pipeline.engines.model_card import ModelCard, ModelShape, read_card
from pipeline.engines.models import resolve
from pipeline.engines.sim.cache import LONG, PrefixCache
from pipeline.engines.torch.backend import torch_examination
from pipeline.engines.torch.slots import SlotTable
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.validate import validate_request
from pipeline.engines.vllm.check import findings
from pipeline.engines.vllm.memory import memory_plan
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import RequestRefused
from pipeline.system.machine import GIB, Gpu, Machine
from tests.support.adapters import write_adapter
from tests.support.paths import MODELS

SHAPE = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=16, hidden_size=64, intermediate_size=128, vocab_size=1000)
QWQ = ModelCard(model="Qwen/QwQ-32B", source="its files", folder="/big", parameters=GIB, shape=SHAPE, max_model_len=512)
BUNDLED = sorted(path.parent.name for path in MODELS.glob("*/adapter_config.json"))
GPU = Gpu(index=0, cuda_name="0", name="H100", memory_bytes=40 * GIB, free_bytes=39 * GIB)


def matrices(name: str, takes: int, gives: int, rank: int = 4) -> Mapping[str, Any]:
    return {name: (np.ones((rank, takes), np.float32), np.ones((gives, rank), np.float32))}


def found(adapter: AdapterCard, card: ModelCard = QWQ) -> list[str]:
    return [f"{each.what}; {each.remedy}" for each in adapter_findings("target", {"selection": adapter}, card) if each.fatal]


def emptied(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"")


def without_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def with_broken_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def saying(**config: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | config))

    return change


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (emptied, "cannot be loaded: its adapter_model.safetensors is damaged or cut short"),
        (without_weights, "cannot be loaded: its adapter_model.safetensors is missing"),
        (with_broken_config, "cannot be loaded: its adapter_config.json holds no JSON object"),
        (saying(peft_type="IA3"), "says peft_type: IA3, and only LORA is supported"),
        (saying(r=0), "says r: 0, which is not a rank"),
        (saying(modules_to_save=["lm_head"]), "has modules_to_save in its adapter_config.json, which this engine does not support"),
        (saying(init_lora_weights="pissa"), "has init_lora_weights: pissa in its adapter_config.json, which this engine does not support"),
        (saying(base_model_name_or_path="Qwen/Qwen2.5-7B"), "says that it was trained on Qwen/Qwen2.5-7B, and the model is Qwen/QwQ-32B"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_refused(tmp_path: Path, spoil: Callable[[Path], None], what: str) -> None:
    write_adapter(tmp_path, matrices("model.layers.0.self_attn.q_proj", 64, 64))
    spoil(tmp_path)
    [said] = found(read_adapter(str(tmp_path)))
    assert what in said


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (matrices("model.layers.0.self_attn.q_proj", 5120, 64), "self_attn.q_proj takes 5,120 values, the model's 64"),
        (matrices("model.layers.1.mlp.down_proj", 128, 5120), "mlp.down_proj gives 5,120 values, the model's 64"),
    ],
)
def test_an_adapter_of_another_model_is_known_by_its_sizes(tmp_path: Path, made: Mapping[str, Any], what: str) -> None:
    [said] = found(read_adapter(str(write_adapter(tmp_path, made))))
    assert said.startswith("the adapter selection belongs to another model: ")
    assert what in said


@pytest.mark.parametrize("base", ["", "Qwen/QwQ-32B", "unsloth/qwq-32b-bnb-4bit", "/models/another", "Qwen/QwQ-32B-AWQ"])
def test_an_adapter_of_the_model_or_of_a_copy_fits(tmp_path: Path, base: str) -> None:
    made = matrices("model.layers.1.self_attn.v_proj", 64, 32)
    assert found(read_adapter(str(write_adapter(tmp_path, made, base_model_name_or_path=base)))) == []


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_adapter_is_whole_and_fits_its_model(name: str) -> None:
    adapter = read_adapter(f"bundled:{name}")
    assert (adapter.path, adapter.flaw, adapter.unusual) == (f"bundled:{name}", None, ())
    assert adapter.base_model.startswith("bundled:"), "not a folder of the machine that it was trained on"
    assert found(adapter, read_card(resolve("target", adapter.base_model))) == []


def test_vllm_takes_plain_adapters_alone(tmp_path: Path) -> None:
    odd = str(write_adapter(tmp_path, matrices("model.layers.0.self_attn.q_proj", 64, 64), use_dora=True))
    here = Machine(cores=(0,), memory_bytes=8 * GIB, free_memory_bytes=8 * GIB, gpus=(GPU,), versions={"vllm": "0.32.0"})
    adapters = {odd: read_adapter(odd)}
    [finding] = findings(memory_plan({"target": VllmSpec(model="big", lora_path=odd)}, here, {"big": QWQ}, adapters))
    assert finding.what == "the adapter of lora_path has use_dora in its adapter_config.json, which this engine does not support"
    assert list(adapter_findings("target", {"odd": adapters[odd]}, QWQ, VARIANTS)) == [], "torch computes it"


def test_the_memory_plans_count_adapters(tmp_path: Path) -> None:
    path = str(write_adapter(tmp_path, matrices("model.layers.0.self_attn.q_proj", 64, 64, rank=20)))
    adapter = read_adapter(path)
    here = Machine(cores=(0,), memory_bytes=8 * GIB, free_memory_bytes=8 * GIB, gpus=(GPU,), versions={"vllm": "0.32.0", "torch": "2.13.0"})
    planned = [
        memory_plan({"target": VllmSpec(model="big", adapters=named)}, here, {"big": QWQ}, {path: adapter}).rows[0].weights_bytes
        for named in ({}, {"a": path}, {"a": path, "b": path})
    ]
    assert planned[1] - planned[0] == 2 * adapter.parameters == 2 * 20 * 128 == planned[2] - planned[0]  # type: ignore[operator]
    card, spec = structs.replace(QWQ, dtype="bfloat16"), TorchSpec(model="big")
    rows = [torch_examination({"target": spec}, here, {"target": card}, {"target": beside}).memory[0] for beside in ({}, {"a": adapter})]
    assert rows[1].weights_bytes - rows[0].weights_bytes == 2 * adapter.parameters  # type: ignore[operator]


def test_an_engine_refuses_an_adapter_that_it_does_not_have() -> None:
    request = Request(request_id="r", prompt_ids=[1], max_tokens=1, adapter="selection")
    with pytest.raises(RequestRefused, match="request 'r': the engine has no adapter 'selection', but other"):
        validate_request(request, 16, 16, ("other",))
    with pytest.raises(RequestRefused, match=r"the engine has no adapter 'selection'$"):
        validate_request(request, 16, 16)
    validate_request(request, 16, 16, ("selection",))
    assert len({structs.replace(request, adapter=adapter).digest() for adapter in (None, "selection", "other")}) == 3


@pytest.mark.parametrize("length", [40, LONG + 100])
def test_a_simulated_cache_shares_no_prefix_between_adapters(length: int) -> None:
    cache, prompt = PrefixCache(10_000), list(range(length))
    for adapter in (None, "a", "b"):
        node, cached = cache.match(prompt, length - 1, adapter)
        assert cached == 0
        cache.extend(node, prompt)
        assert cache.match(prompt, length - 1, adapter)[1] == length - 1
    assert cache.cached == 3 * length


def slots_after(slots: SlotTable, calls: Sequence[tuple[str, str | None]], prompt: np.ndarray[Any, Any]) -> list[int]:
    """How much of `prompt` was cached for each call of a chain with an adapter, one after the other."""
    cached = []
    for chain, adapter in calls:
        placed = slots.place(prompt, chain, adapter)
        cached.append(placed.cached)
        rest = np.arange(placed.cached, len(prompt))
        slots.write(np.full(len(rest), placed.slot), rest, prompt[rest])
        slots.release(placed.slot)
    return cached


def test_slots_are_matched_within_an_adapter_wherever_they_move() -> None:
    prompt = np.arange(40, dtype=np.int64)
    calls = [("c", None), ("c", "a"), ("c", None), ("c", "a"), ("d", "b"), ("d", None), ("d", "b"), ("c", "a")]
    assert slots_after(SlotTable(6, 64), calls, prompt) == [0, 0, 39, 39, 0, 39, 39, 39]
