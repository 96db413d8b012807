"""`--model ROLE=VALUE`: what it may say, what a server or the hub is asked, and how GPUs are shared out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.models import ModelCard
from pipeline.engines.placement import pairs, place, put_on_gpus
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import UsageError
from pipeline.system.machine import GIB, Gpu
from tests.support.served import TOKENIZER
from tests.support.small_server import VLLM, SmallServer, small_server

SMALL = {"target": "bundled:tiny-target", "draft": "bundled:tiny-draft"}
CARDS = {
    "target": ModelCard(weights_bytes=61 * GIB, dtype="bfloat16", layers=64, heads=40, kv_values=131072, max_model_len=40960),
    "draft": ModelCard(weights_bytes=3 * GIB, dtype="bfloat16", layers=28, heads=12, kv_values=14336, max_model_len=131072),
}


def on_gpus(count: int, gib: int, **specs: VllmSpec) -> dict[str, dict[str, Any]]:
    """What the pair gets of so many GPUs of one size."""
    size = gib * GIB
    gpus = [Gpu(index=n, cuda_name=str(n), name="H100", memory_bytes=size, free_bytes=size - GIB // 2) for n in range(count)]
    placed: dict[str, dict[str, Any]] = {role: {"model": role, "args": {"max_model_len": 10240}} for role in CARDS}
    put_on_gpus(placed, {role: specs.get(role, VllmSpec(model=role)) for role in CARDS}, CARDS, gpus)
    return placed


@pytest.mark.parametrize(
    ("count", "gib", "target", "draft"),
    [
        (1, 140, [0], [0]),
        (2, 48, [0, 1], [0]),
        (3, 80, [0, 1], [2]),
        (5, 40, [0, 1, 2, 3], [4]),
        (8, 80, [0, 1, 2, 3, 4, 5, 6, 7], [0]),
    ],
)
def test_the_target_is_split_over_a_power_of_two_and_the_draft_is_beside_it_where_there_is_room(
    count: int, gib: int, target: list[int], draft: list[int]
) -> None:
    placed = on_gpus(count, gib)
    assert [placed[role]["devices"] for role in ("target", "draft")] == [target, draft]
    shares = {role: placed[role]["args"]["gpu_memory_utilization"] for role in placed}
    together = sum(shares.values()) if draft == [0] else max(shares.values())
    assert 0.9 <= together <= 0.92
    tokens = []
    for role, share in shares.items():
        card, parts = CARDS[role], len(placed[role]["devices"])
        assert placed[role]["args"]["tensor_parallel_size"] == parts
        left = share * gib * GIB - (card.weights_bytes or 0) / parts - 3 * GIB
        assert left > 0
        tokens.append(left * parts / (2 * (card.kv_values or 0)))
    if target == draft:  # on one GPU they cache equally many tokens; shares are hundredths
        assert tokens[0] == pytest.approx(tokens[1], rel=0.2)


def test_what_a_spec_says_of_its_gpus_is_kept_and_quantized_weights_are_half() -> None:
    with pytest.raises(UsageError, match=r"target target \(61.0 GiB of weights\) and draft .* do not fit on 1 x H100 of 48.0 GiB"):
        on_gpus(1, 48)
    placed = on_gpus(1, 48, target=VllmSpec(model="target", args={"quantization": "fp8"}))
    assert placed["target"]["args"]["gpu_memory_utilization"] > 31 / 48
    assert on_gpus(4, 80, target=VllmSpec(model="target", devices=(3,)))["target"]["devices"] == [3]
    with pytest.raises(UsageError, match=r"^--model target=\.\.\.: it is to use GPU 3, and there are 2$"):
        on_gpus(2, 80, target=VllmSpec(model="target", devices=(3,)))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["Qwen/QwQ-32B"], "--model Qwen/QwQ-32B: expected ROLE=VALUE, such as target=Qwen/QwQ-32B"),
        (["target="], "expected ROLE=VALUE"),
        (["target=http://localhost:8000"], "must include the path, up to /v1: http://localhost:8000/v1"),
        (["target=./nowhere"], "there is no such folder; expected a Hugging Face name, a folder"),
        (["tagret=bundled:tiny-target"], "has no role `tagret`; did you mean `target`"),
        (["target=bundled:tiny-target"], "speccot also needs a model for draft; add --model draft=NAME, or give --engines"),
    ],
)
def test_any_other_value_is_refused(values: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        place([Path("speccot")], pairs(values))
    assert said in str(raised.value)


def test_engines_have_limits_for_the_batch_and_the_graph() -> None:
    engines = place([Path("speccot")], SMALL, batch_size=8, settings=["token_budget=512"])[0]
    assert {role: engine["max_in_flight"] for role, engine in engines.items()} == {"target": 8, "draft": 8}
    assert {role: engine["max_num_seqs"] for role, engine in engines.items()} == {"target": 8, "draft": 40}
    assert all(1024 + 512 < engine["max_model_len"] <= 4096 for engine in engines.values())


# Servers.


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallServer]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with small_server(replace(VLLM, card={"max_model_len": 512, "root": "Qwen/QwQ-32B"}), TOKENIZER) as found:
        yield found


def served(value: str, *settings: str) -> dict[str, Any]:
    return place([Path("target")], {"target": value}, settings=settings)[0]["target"]


def test_the_one_model_of_a_server_is_taken_with_the_tokenizer_that_it_names(server: SmallServer) -> None:
    server.adapters = {"selection": "tiny"}
    fields = {"backend": "openai", "model": "tiny", "base_url": server.base_url, "max_in_flight": 64}
    assert served(server.base_url) == fields | {"tokenizer": "Qwen/QwQ-32B"}
    assert served(f"{server.base_url}/#selection") == fields | {"model": "selection"}
    assert served(f"{server.base_url}#Qwen/QwQ-32B")["model"] == "Qwen/QwQ-32B"


def test_a_model_of_several_must_be_named(server: SmallServer) -> None:
    server.adapters = {"large": ""}
    with pytest.raises(UsageError, match=rf"{server.base_url}: it serves tiny, large; name one: target={server.base_url}#tiny"):
        served(server.base_url)
