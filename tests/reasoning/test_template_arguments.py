"""Arguments of a chat template (`chat_template_kwargs`): a Qwen3 that is told to think, or not to, in each backend that renders here."""

from typing import Any

import msgspec
import pytest

from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError
from pipeline.graph.plugins import engine_backend
from pipeline.graph.prompts import CHOOSE_PREFILL
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import chat_model, folder_of

SERVER: Any = {"base_url": "http://127.0.0.1:1/v1"}
SPECS: Any = {
    "torch": lambda **fields: TorchSpec(model=str(folder_of("qwen3")), **fields),
    "vllm": lambda **fields: VllmSpec(model=str(folder_of("qwen3")), **fields),
    "openai": lambda **fields: OpenAISpec(model="m", tokenizer=str(folder_of("qwen3")), **SERVER, **fields),
}


def qwen3(**arguments: Any) -> PromptBuilder:
    return PromptBuilder(HFTokenizer(str(folder_of("qwen3")), template_arguments=arguments))


def test_a_model_that_is_told_not_to_think_replies_behind_an_empty_thought() -> None:
    for builder in (PromptBuilder(chat_model("qwen3")), qwen3(enable_thinking=True)):
        assert builder.thinks
        assert builder.tokenizer.decode(builder.generation("1 + 1?")).endswith("<|im_start|>assistant\n<think>\n")
    builder = qwen3(enable_thinking=False)
    assert (builder.thinks, builder.think_close_id) == (False, None)
    prompt = builder.generation("1 + 1?")
    asked = builder.choose(prompt, [builder.tokenizer.encode("It is 2.\n\n")], problem="1 + 1?").ids
    for ids, end in ((prompt, ""), (asked, CHOOSE_PREFILL)):
        assert builder.tokenizer.decode(ids).endswith(f"<|im_start|>assistant\n<think>\n\n</think>\n\n{end}")


def test_an_argument_that_the_template_does_not_read_is_refused() -> None:
    with pytest.raises(GraphError, match="its chat template does not use `enable_thinkin`, set in chat_template_kwargs"):
        qwen3(enable_thinkin=False)


@pytest.mark.parametrize("name", SPECS)
def test_the_key_has_one_name_and_is_kept(name: str) -> None:
    found: EngineSpec = SPECS[name](chat_template_kwargs={"enable_thinking": False})
    tokenizer = engine_backend(found.backend).tokenizer("target", found)
    assert tokenizer.render([{"role": "user", "content": "1 + 1?"}]).endswith("</think>\n\n")
    assert msgspec.to_builtins(found)["chat_template_kwargs"] == {"enable_thinking": False}


def test_fields_that_a_request_has_anyway_are_refused() -> None:
    for name in ("model", "chat_template_kwargs"):
        with pytest.raises(ValueError, match=f"extra must not hold `{name}`: "):
            OpenAISpec(model="m", extra={name: {}}, **SERVER)
