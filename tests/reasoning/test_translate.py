"""Ids of one engine become those of another: as they are, with special ones mapped, or by their text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from tests.support.chains import TOKENIZERS, World


class Bracketed(SimTokenizer):
    """The same tokens, with other tags around a thought."""

    def __init__(self) -> None:
        super().__init__()
        self.special_ids = {bracketed(text): id_ for text, id_ in self.special_ids.items()}

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("[THINK]", "<think>").replace("[/THINK]", "</think>"))

    def decode(self, ids: Sequence[int]) -> str:
        return bracketed(super().decode(ids))

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        return bracketed(super().render(messages))


def bracketed(text: str) -> str:
    return text.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")


def test_a_model_has_its_own_tags_around_a_thought() -> None:
    builder, tokenizers = PromptBuilder(Bracketed()), {"usual": SimTokenizer(), "own": Bracketed()}
    assert builder.think_close_id == builder.tokenizer.special_ids["[/THINK]"]
    assert builder.tokenizer.decode(builder.generation("Hi")).endswith("[THINK]\n")
    for source, target in (("usual", "own"), ("own", "usual")):
        ids = [*tokenizers[source].encode("So 3."), tokenizers["own"].special_ids["[/THINK]"]]
        found = TokenTranslator(tokenizers).translate(source, target, ids, tokenizers[source].decode(ids))
        assert tokenizers[target].decode(found) == {"own": "So 3.[/THINK]", "usual": "So 3.</think>"}[target]


TEXT = "Tom has 3.\n\nSo <5 汉</think>"


@pytest.fixture
def translator() -> TokenTranslator:
    return TokenTranslator({name: load() for name, load in TOKENIZERS.items()})


def encoded(role: str, text: str = TEXT) -> list[int]:
    return TOKENIZERS[role]().encode(text)


def test_ids_are_kept_where_vocabularies_agree_and_only_special_ones_are_mapped(translator: TokenTranslator) -> None:
    """Even where the text would be cut into other tokens; a special token that the target lacks becomes its text."""
    sim = TOKENIZERS["sim"]()
    ids = [*sim.encode("a"), *sim.encode("b")]
    assert sim.encode("ab") != ids
    assert translator.translate("sim", "sim", ids, "not looked at") is ids
    assert translator.translate("sim", "shifted", ids, "not looked at") is ids
    for source, target in (("sim", "shifted"), ("shifted", "sim")):
        ids = encoded(source)
        assert list(translator.translate(source, target, ids, "not looked at")) == encoded(target) != ids
    for source, target in (("sim", "tiny"), ("tiny", "sim"), ("tiny", "shifted")):
        assert translator.translate(source, target, encoded(source), TEXT) == encoded(target), "where they differ the text is encoded"
    spelled = translator.translate("sim", "plain", encoded("sim"), TEXT)
    assert (TOKENIZERS["plain"]().decode(spelled), set(spelled) & {0, 1}) == (TEXT, set())


@given(text=st.text(st.characters(codec="utf-8"), max_size=40), source=st.sampled_from(["sim", "shifted", "tiny"]))
def test_no_translation_changes_a_text(text: str, source: str) -> None:
    for target in ("sim", "shifted", "plain", "tiny"):
        here = World(draft=source, target=target)
        chain, span = here.chain(), here.span("draft", text)
        assert here.tokenizers["target"].decode(chain.translate(span, "target")) == text
