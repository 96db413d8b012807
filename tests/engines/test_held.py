"""A folder that holds no model is named for what it holds, by `--model` and in an engines file, before anything is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.placement.choices import card_of, read_choices
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.check import check
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import PipelineError
from pipeline.system.machine import look
from tests.support.paths import MODELS

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


async def opened(model: str) -> None:
    async with open_torch({"target": TorchSpec(model=model)}):
        pass


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": b"{}", "model.safetensors": POINTER}, "only the Git LFS pointer of model.safetensors; run `git lfs pull`"),
        ({"config.json": b"{}", "tokenizer.json": POINTER}, "only the Git LFS pointer of tokenizer.json"),
        ({"small-Q4.gguf": b"GGUF"}, r"small-Q4.gguf, a GGUF file, .*: --model ROLE=http://HOST:PORT/v1#MODEL"),
        ({"adapter_config.json": b'{"base_model_name_or_path": "a/b"}'}, "a LoRA adapter of a/b and no model; .* `pipeline train merge`"),
    ],
)
async def test_a_folder_is_named_for_what_it_holds(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PipelineError, match=rf"^--model target=...: {tmp_path} holds {said}"):
        card_of("target", str(tmp_path))
    with pytest.raises(PipelineError, match=said):
        await opened(str(tmp_path))
    with pytest.raises(PipelineError, match=said):
        check({"target": VllmSpec(model=str(tmp_path))}, look())


def test_a_gguf_file_is_named_too() -> None:
    with pytest.raises(PipelineError, match=r"--model target=...: \./x\.gguf is a GGUF file; let a server load it"):
        read_choices({"target": "./x.gguf"})


def test_a_template_may_be_that_of_a_processor(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / "tiny-draft", tmp_path / "model"))
    config: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    whole = HFTokenizer(str(folder)).render([{"role": "user", "content": "1?"}])
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": config.pop("chat_template")}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert HFTokenizer(str(folder)).render([{"role": "user", "content": "1?"}]) == whole
