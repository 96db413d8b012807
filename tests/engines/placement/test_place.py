"""Engines for models that were only named, on machines that are not this one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.engines.placement.machines import machine_named
from pipeline.engines.placement.place import Placement, place
from pipeline.errors import GraphError, UsageError
from pipeline.system.machine import GIB, Machine

PAIR = {"target": "Qwen/QwQ-32B", "draft": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"}
SMALL = {"target": "bundled:tiny-target", "draft": "bundled:tiny-draft"}
LAPTOP = Machine(cores=(0, 1), memory_bytes=16 * GIB, free_memory_bytes=8 * GIB, versions={"torch": "2.13.0+cpu"})


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of the hub, whatever the machine has."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def placed(machine: str | Machine, models: dict[str, str] = PAIR, graph: str = "speccot", **options: Any) -> Placement:
    where = machine_named(machine) if isinstance(machine, str) else machine
    return place([Path(graph)], models, machine=where, **options)


def gpus(engine: dict[str, Any]) -> Sequence[int]:
    devices: Sequence[int] = engine.get("devices") or range(engine.get("tensor_parallel_size", 1))
    return list(devices)


def test_both_models_share_one_card_where_they_fit() -> None:
    found = placed("1xH100-80GB")
    target, draft = found.engines["target"], found.engines["draft"]
    assert (gpus(target), gpus(draft)) == ([0], [0])
    assert 0.9 < target["gpu_memory_utilization"] + draft["gpu_memory_utilization"] <= 0.95
    assert target["gpu_memory_utilization"] > 0.8
    assert target["max_model_len"] == 10496
    assert list(found.engines) == ["target", "draft"]
    assert target["max_num_batched_tokens"] == 2048
    assert any("full contexts at once" in sentence and "quantization=fp8" in sentence for sentence in found.sentences)


def test_two_cards_are_shared_by_both_models_where_that_leaves_more_room() -> None:
    engines = placed("2xH100-80GB").engines
    assert (gpus(engines["target"]), gpus(engines["draft"])) == ([0, 1], [0, 1])
    assert "max_num_batched_tokens" not in engines["target"]


def test_models_get_cards_of_their_own_where_there_is_room_for_every_chain() -> None:
    found = placed("8xH100-80GB")
    assert (gpus(found.engines["target"]), gpus(found.engines["draft"])) == ([0, 1, 2, 3], [7])
    assert found.sentences[-1] == "GPU 4-6 will be idle; `pipeline run --replicas 2` would place all engines on each half of the GPUs"


def test_of_replicas_each_gets_its_part_of_the_machine() -> None:
    found = placed("8xH100-80GB", replicas=4)
    assert found.engines == placed("2xH100-80GB").engines
    small = {"target": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "draft": PAIR["draft"]}
    assert placed("8xH100-80GB", small, replicas=2).sentences[-1] == "GPU 2, 6 will be idle"
    with pytest.raises(UsageError, match=r"^--replicas 9: each replica needs a GPU, but this machine has 8"):
        placed("8xH100-80GB", replicas=9)


def test_engines_get_calls_and_sequences_for_the_batch() -> None:
    engines = placed("2xH100-80GB", batch_size=32).engines
    assert (engines["target"]["max_in_flight"], engines["target"]["max_num_seqs"]) == (32, 32)
    assert (engines["draft"]["max_in_flight"], engines["draft"]["max_num_seqs"]) == (32, 160)


def test_models_that_do_not_fit_are_one_error_with_what_would_do() -> None:
    with pytest.raises(UsageError) as raised:
        placed("1xRTX4090-24GB")
    assert "target Qwen/QwQ-32B (61.0 GiB of weights) and draft" in str(raised.value)
    assert "do not fit on 1 x RTX4090-24GB of 24.0 GiB" in str(raised.value)
    assert str(raised.value).endswith("; 4 such GPUs would be enough")
    with pytest.raises(
        UsageError, match=r"2 such GPUs would be enough, or --set engines.target.quantization=fp8, which halves its weights"
    ):
        placed("1xA6000-48GB")


def test_settings_of_engines_are_planned_with() -> None:
    found = placed("1xH100-80GB", settings=["engines.target.quantization=fp8"])
    assert found.engines["target"]["quantization"] == "fp8"
    assert not any("full contexts" in sentence for sentence in found.sentences)


def test_a_size_that_only_the_name_tells_is_said_to_be_assumed() -> None:
    found = placed("2xH100-80GB", PAIR | {"target": "nobody/Model-14B"})
    assert "the size of nobody/Model-14B is guessed from its name: 14,000,000,000 parameters" in found.sentences


def test_a_size_that_nothing_tells_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the size of nobody/model is unknown: it is not on this machine, and its name does not state it"):
        placed("2xH100-80GB", PAIR | {"target": "nobody/model"})
    with pytest.raises(
        UsageError, match=rf"the size of {tmp_path} is unknown: the folder has no config.json that tells it, and no weights"
    ):
        placed("2xH100-80GB", PAIR | {"target": str(tmp_path)})


@pytest.mark.parametrize(("graph", "said"), [("speccot", []), ("specreason", ["specreason"]), ("scot", ["scot"])])
def test_prompts_that_are_not_those_of_the_paper_are_said_where_models_are_not_bundled(graph: str, said: list[str]) -> None:
    found = placed("8xH200", graph=graph)
    ending = [f"{graph}: its judge is asked as in the paper, problems are not; for the paper's: --set prompts={name}" for name in said]
    assert [sentence for sentence in found.sentences if "paper" in sentence] == ending
    assert found.sentences[0].endswith(f"; prompts: {'published' if said else 'default'}")
    assert not any("paper" in sentence for sentence in placed(LAPTOP, SMALL, graph=graph).sentences)


def test_without_a_gpu_torch_computes_on_the_cpu() -> None:
    found = placed(LAPTOP, SMALL)
    assert {role: engine["backend"] for role, engine in found.engines.items()} == {"target": "torch", "draft": "torch"}
    assert found.sentences[0].startswith(
        "engines: target bundled:tiny-target (torch, CPU), draft bundled:tiny-draft (torch, CPU); prompts: "
    )


def test_without_vllm_torch_computes_on_gpus_and_says_what_to_install() -> None:
    two = structs.replace(machine_named("2xRTX4090-24GB"), versions={"torch": "2.13.0"})
    found = placed(two, SMALL)
    assert (found.engines["target"].get("device"), found.engines["draft"].get("device")) == (None, "cuda:1")
    assert any('pip install "speculative-pipeline[vllm]"' in sentence for sentence in found.sentences)


def test_a_role_that_the_graph_lacks_or_needs_is_an_error() -> None:
    with pytest.raises(UsageError, match="speccot has no role `drafft`; did you mean `draft`"):
        placed(LAPTOP, {"target": "bundled:tiny-target", "drafft": "bundled:tiny-draft"})
    with pytest.raises(UsageError, match="speccot also needs a model for draft; add --model draft=NAME"):
        placed(LAPTOP, {"target": "bundled:tiny-target"})


def test_servers_need_no_gpu() -> None:
    models = {"target": "http://127.0.0.1:8000/v1#Qwen/QwQ-32B", "draft": "bundled:tiny-draft"}
    found = placed(LAPTOP, models)
    assert found.engines["target"] == {
        "backend": "openai",
        "model": "Qwen/QwQ-32B",
        "base_url": "http://127.0.0.1:8000/v1",
        "max_in_flight": 64,
    }


def test_models_replace_those_of_an_engines_file() -> None:
    file = Path("qwq-r1_1.5b-2x80gb")
    found = placed(LAPTOP, {"target": "Qwen/Qwen2.5-32B-Instruct"}, engines=file).engines
    assert found["target"]["model"] == "Qwen/Qwen2.5-32B-Instruct"
    assert found["target"]["tensor_parallel_size"] == 2
    assert found["draft"]["model"] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    with pytest.raises(UsageError, match="has no role `tagret`; did you mean `target`"):
        placed(LAPTOP, {"tagret": "a/b"}, engines=file)
    with pytest.raises(UsageError, match="which loads no model; leave out --model, or --engines"):
        placed(LAPTOP, {"target": "a/b"}, engines=Path("sim-2xh100"))


def test_a_model_that_is_too_large_for_this_machine_is_refused_before_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises((GraphError, UsageError), match="weights"):
        place([Path("speccot")], dict.fromkeys(PAIR, "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"))
