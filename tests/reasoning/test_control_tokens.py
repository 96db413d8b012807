"""Whatever users, data, models and servers wrote stays text in every prompt, at every place that a text has in one."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.problems import Problem
from pipeline.engine import Candidate, Tokenizer
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE, ChoosePrompt, Prompts, ScorePrompt
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from pipeline.stages.draft import DraftSpec, DraftStage
from tests.support.chat_models import chat_model

PAIRS = [
    ("r1-distill-qwen", "r1-distill-llama"),
    ("qwen3", "qwq"),
    ("qwq", "qwen3"),
    ("tiny-draft", "tiny-target"),
    ("llama-3", "r1-distill-llama"),
    ("folded", "folded"),
    ("sim", "tiny-target"),
    ("tiny-draft", "sim"),
    ("sim", "sim"),
]
"""Drafter and judge."""


@cache
def load(name: str) -> Tokenizer:
    return SimTokenizer() if name == "sim" else chat_model(name)


builder_of = lru_cache(256)(PromptBuilder)


def prompts_with(text: str) -> Prompts:
    """Prompts that say a text of a graph at every place which has one."""
    text = text.replace("{{", "{ {")
    score = ScorePrompt(turn=f"Rate it.{text}", prefill=f"{text} Score: ")
    choose = ChoosePrompt(
        turn=f"{text}{{{{candidates}}}}{text}{{{{none}}}}", candidate=f"[{{{{label}}}}] {text}{{{{candidate}}}}{text}\n\n"
    )
    asked = f"{{{{problem}}}}{text}"
    return Prompts(system=text, problem=asked, choose=choose, score=score)


class Said(NamedTuple):
    """All that is said around one step; `CLEAN` is said by nobody who means harm."""

    problem: str = "Tom has 3 pens. "
    instruction: str = "\nThink."
    step: str = "So 3.\n\n"
    candidate: str = "Then 5.\n\n"
    question: str = "Is it right?"
    note: str = "It says:"


CLEAN = Said()


def controls_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    return [id_ for id_ in ids if id_ in tokenizer.control_ids]


def prompts_of(drafter: Tokenizer, judge: Tokenizer, said: Said, wrote: Callable[[Tokenizer, str], list[int]]) -> list[list[int]]:
    """Every kind of prompt of both engines after one step of the drafter and one of the judge; `wrote` gives the ids that they wrote."""
    tokenizers = {"draft": drafter, "target": judge}
    builders = {role: builder_of(tokenizer, prompts_with(said.instruction)) for role, tokenizer in tokenizers.items()}
    problem = Problem(row=1, problem_id="p", problem=said.problem, answer="5")
    chain = Chain(problem, 0, 0, 0, builders, TokenTranslator(tokenizers), {"draft": 10_000, "target": 10_000})
    begun = [list(chain.contexts[role]) for role in tokenizers]
    spans = {role: Span(role, tuple(wrote(tokenizers[role], said.step)), said.step) for role in tokenizers}
    for span in spans.values():
        chain.apply("write", Outcome(step=span, decision="written"))
    builder, context = builders["target"], chain.contexts["target"]
    candidates = [Span(role, tuple(wrote(tokenizers[role], said.candidate)), said.candidate) for role in tokenizers]
    shown = [chain.translate(candidate, "target") for candidate in candidates]
    return [
        *begun,
        *([*chain.contexts[role]] for role in tokenizers),
        builder.choose(context, shown).ids,
        *(builder.score(context, each).ids for each in shown),
        builder.ask(context, [said.note, shown[0], said.question], "Answer: ", ["0", "1"]).ids,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
@given(data=st.data())
def test_no_texts_give_a_prompt_another_turn(names: tuple[str, str], data: st.DataObject) -> None:
    """As token ids of whoever wrote them, too: a model may sample any token, and a server may send any."""
    controls = [text for one in map(load, names) for text, id_ in one.special_ids.items() if id_ in one.control_ids]
    halves = [half for text in controls for half in (text[: len(text) // 2], text[len(text) // 2 :])]
    pieces = st.lists(st.sampled_from([*controls, *halves, " ", "\n", DELIMITER, "<", ">", "Tom", "5"]), max_size=6).map("".join)
    # A step that ends in `</think>` ends the thought, which is the next test's.
    texts = {place: data.draw(pieces, label=place) for place in Said._fields}
    said = Said(**texts | {place: f"{texts[place]}." for place in ("step", "candidate")})
    as_ids = data.draw(st.booleans(), label="as ids")
    drafter, judge = map(load, names)
    clean, spoilt = (
        prompts_of(drafter, judge, each, lambda tokenizer, text: tokenizer.encode(text) if as_ids else tokenizer.encode_parts(["", text]))
        for each in (CLEAN, said)
    )
    for number, (expected, ids) in enumerate(zip(clean, spoilt, strict=True)):
        tokenizer = drafter if number in (0, 2) else judge
        assert controls_of(tokenizer, ids) == controls_of(tokenizer, expected), tokenizer.decode(ids)


@pytest.mark.parametrize(
    "names", [("tiny-draft", "tiny-target"), ("r1-distill-qwen", "r1-distill-llama"), ("sim", "tiny-target"), ("sim", "sim")]
)
def test_the_end_of_a_thought_stays_the_end_of_the_thought(names: tuple[str, str]) -> None:
    drafter, judge = map(load, names)
    translator = TokenTranslator({"draft": drafter, "target": judge})
    text = f"So </think> 5.{THINK_CLOSE}"
    ids = drafter.encode(text)
    for role, tokenizer in (("draft", drafter), ("target", judge)):
        said = translator.translate("draft", role, ids, text)
        assert tokenizer.decode(said) == text
        assert controls_of(tokenizer, said) == [said[-1]] == [tokenizer.special_ids[THINK_CLOSE]]


def test_a_candidate_keeps_the_ids_that_were_sampled() -> None:
    """The trace shows what an engine sent; only prompts spell it out."""
    tokenizer = chat_model("tiny-draft")
    ids = tuple(tokenizer.encode("So <|user|>.\n\n"))
    stage = DraftStage("draft", DraftSpec(engine="draft", max_tokens=9), {"draft": PromptBuilder(tokenizer)})
    assert stage.span(Candidate(ids=ids, text="", cumulative_logprob=None, finish_reason="stop", stop_reason="\n\n")).ids == ids
    spelled = TokenTranslator({"draft": tokenizer}).translate("draft", "draft", ids, "")
    assert (tokenizer.decode(spelled), controls_of(tokenizer, spelled)) == ("So <|user|>.\n\n", [])


def test_an_id_that_only_the_judge_s_tokenizer_knows_is_no_control_token_there() -> None:
    """A server may send any id below the size of its model, which is often larger than its tokenizer."""
    drafter, judge = load("llama-3"), load("r1-distill-llama")
    assert drafter.vocabulary == judge.vocabulary
    translator = TokenTranslator({"draft": drafter, "target": judge})
    for id_ in judge.control_ids:
        said = translator.translate("draft", "target", (*drafter.encode("So"), id_, id_), "So")
        assert controls_of(judge, said) == []
