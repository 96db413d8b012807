"""Arguments of a chat template (`chat_template_kwargs`): a Qwen3 that is told to think, or not to, in each backend that renders here."""

from typing import Any

import msgspec
import pytest

from pipeline.engines.openai.spec import ChatSpec, OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError
from pipeline.graph.plugins import engine_backend
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import chat_model, folder_of

SERVER = {"base_url": "http://127.0.0.1:1/v1"}


def qwen3(**arguments: Any) -> PromptBuilder:
    return PromptBuilder(HFTokenizer(str(folder_of("qwen3")), template_arguments=arguments))


def said(builder: PromptBuilder, ids: Any) -> str:
    return builder.tokenizer.decode(ids)


def test_a_model_that_is_told_to_think_begins_a_thought() -> None:
    for builder in (PromptBuilder(chat_model("qwen3")), qwen3(enable_thinking=True)):
        assert builder.thinks
        assert said(builder, builder.generation("1 + 1?")).endswith("<|im_start|>assistant\n<think>\n")


def test_a_model_that_is_told_not_to_think_replies_behind_an_empty_thought() -> None:
    builder = qwen3(enable_thinking=False)
    assert (builder.thinks, builder.think_close_id) == (False, None)
    prompt = builder.generation("1 + 1?")
    assert said(builder, prompt).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    asked = said(builder, builder.choose(prompt, [builder.tokenizer.encode("It is 2.\n\n")], problem="1 + 1?").ids)
    assert asked.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nBest candidate:") or asked.endswith("Best candidate: ")
    assert asked.count("<think>") == 2  # of the reply that was begun, and of the one to the question


def test_an_argument_that_the_template_does_not_read_is_refused() -> None:
    with pytest.raises(GraphError, match="its chat template does not use `enable_thinkin`, set in chat_template_kwargs"):
        qwen3(enable_thinkin=False)


@pytest.mark.parametrize(
    "spec",
    [
        lambda **fields: TorchSpec(model=str(folder_of("qwen3")), **fields),
        lambda **fields: VllmSpec(model=str(folder_of("qwen3")), **fields),
        lambda **fields: OpenAISpec(model="m", tokenizer=str(folder_of("qwen3")), **SERVER, **fields),
    ],
    ids=["torch", "vllm", "openai"],
)
def test_the_key_has_one_name_and_is_kept(spec: Any) -> None:
    found: EngineSpec = spec(chat_template_kwargs={"enable_thinking": False})
    tokenizer = engine_backend(found.backend).tokenizer("target", found)
    assert tokenizer.render([{"role": "user", "content": "1 + 1?"}]).endswith("</think>\n\n")
    assert msgspec.to_builtins(found)["chat_template_kwargs"] == {"enable_thinking": False}
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(ValueError, match=f"chat_template_kwargs must not hold `{name}`"):
            spec(chat_template_kwargs={name: []})


@pytest.mark.parametrize("given", ["chat_template_kwargs", "extra"])
def test_a_server_that_chats_is_told_in_every_request(given: str) -> None:
    arguments = {"enable_thinking": False}
    value = arguments if given == "chat_template_kwargs" else {"chat_template_kwargs": arguments, "top_k": 20}
    spec = ChatSpec(model="m", max_model_len=64, **SERVER, **{given: value})  # type: ignore[arg-type]
    assert spec.fields["chat_template_kwargs"] == arguments


@pytest.mark.parametrize(
    ("fields", "flaw"),
    [
        ({"extra": {"model": "x"}}, "extra must not hold `model`: each request has its own"),
        ({"extra": {"temperature": 1}}, "extra must not hold `temperature`: the graph sets it"),
        ({"extra": {"max_completion_tokens": 5}, "max_tokens_key": "max_completion_tokens"}, "must not hold `max_completion_tokens`"),
        ({"extra": {"chat_template_kwargs": {}}, "chat_template_kwargs": {"a": 1}}, "it is also set next to `extra`; set it once"),
        ({"extra": {"chat_template_kwargs": [1]}}, "extra.chat_template_kwargs must be a mapping"),
        ({"extra": {"x": float("inf")}}, "extra.x is inf, which JSON cannot represent"),
    ],
)
def test_fields_that_a_request_has_anyway_are_refused(fields: dict[str, Any], flaw: str) -> None:
    with pytest.raises(ValueError, match=flaw):
        ChatSpec(model="m", max_model_len=64, **SERVER, **fields)
    assert ChatSpec(model="m", max_model_len=64, **SERVER, send_sampling=False, extra={"temperature": 1}).fields == {"temperature": 1}
