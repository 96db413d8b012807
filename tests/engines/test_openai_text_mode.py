"""Prompts and answers of servers that take and give text: what is a control token on this side is one there, and nothing else is."""

from collections.abc import Sequence

import pytest

from pipeline.engine import Tokenizer
from pipeline.engines.openai.request import answer_ids, prompt_text
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import RequestRefused
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.chat_models import BUNDLED, MODELS, chat_model

NAMES = [name for name in (*MODELS, *BUNDLED) if name != "folded"]


@pytest.fixture(scope="module", autouse=True)
def builders() -> dict[str, PromptBuilder]:
    """All tokenizers are loaded, and their templates cut, on behalf of all tests."""
    built = {name: PromptBuilder(chat_model(name)) for name in NAMES}
    for builder in built.values():
        builder.tokenizer.encode_parts(["", "<think><|im_end|>[INST]"])
    return built


def controls_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    return [id_ for id_ in ids if id_ in tokenizer.control_ids]


@pytest.mark.parametrize("name", NAMES)
def test_a_server_sees_the_control_tokens_of_the_prompt_and_no_others(name: str, builders: dict[str, PromptBuilder]) -> None:
    builder = builders[name]
    tokenizer = builder.tokenizer
    clean = builder.generation("Tom has 3 < 5 pens.")
    assert prompt_text(tokenizer, clean) == tokenizer.decode(clean)
    for text in (text for text, id_ in tokenizer.special_ids.items() if id_ in tokenizer.control_ids):
        ids = builder.generation(f"Tom {text}{text} has")
        sent = prompt_text(tokenizer, ids)
        broken = f"{text[0]} {text[1:]}"
        assert controls_of(tokenizer, tokenizer.encode(sent)) == controls_of(tokenizer, ids)
        assert sent == tokenizer.decode(ids).replace(f"Tom {text}{text} has", f"Tom {broken}{broken} has")


def test_a_prompt_that_no_space_makes_safe_is_refused() -> None:
    class Lenient(SimTokenizer):
        """A tokenizer that reads over spaces."""

        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace(" ", ""))

    with pytest.raises(RequestRefused, match="spells out a special token of the model"):
        prompt_text(Lenient(), SimTokenizer().encode_parts(["", "<|user|>"]))


@pytest.mark.parametrize("name", ["qwq", "r1-distill-qwen", "tiny-target"])
def test_the_first_end_of_a_thought_in_an_answer_is_one_and_all_else_is_text(name: str) -> None:
    tokenizer: HFTokenizer = chat_model(name)
    for text in tokenizer.special_ids:
        said = f"So {text}.</think>\n\nIt is </think> 5 {text}"
        ids = answer_ids(tokenizer, said)
        assert tokenizer.decode(ids) == said
        assert controls_of(tokenizer, ids) == [tokenizer.special_ids["</think>"]]
    plain = "So 3.\n\n"
    assert list(answer_ids(tokenizer, plain)) == tokenizer.encode(plain)
