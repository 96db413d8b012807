"""Rows as token ids: those of serving, to the last one."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from pipeline.bundled import find_file
from pipeline.data.problems import Problem
from pipeline.engine import Tokenizer
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import InputError
from pipeline.graph.loader import load_prompts
from pipeline.graph.prompts import DEFAULT_PROMPTS, Prompts
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from pipeline.stages.choose import ChooseSpec, ChooseStage
from pipeline.training.examples import IGNORED, SelectionRow, SftRow, SftTokensRow
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.lora.published import Choice, Thought
from pipeline.training.lora.tokens import DraftExample, Encoder, SelectExample
from pipeline.training.write import Wanted, write_training_data
from tests.support.chat_models import chat_model
from tests.support.runs import solve, write_problems
from tests.support.training_data import messages_row, selection_row, thought, tokens_row

SCOT = load_prompts(find_file("scot", "prompts file"))
PROBLEM = "Tom has 3 pens and buys 2. How many?"


def encoder(name: str = "tiny-target", prompts: Prompts = DEFAULT_PROMPTS, **options: Any) -> Encoder:
    return Encoder(chat_model(name), f"bundled:{name}", prompts, **options)


def completion(example: DraftExample) -> list[int]:
    """What is learnt."""
    return [label for label in example.labels if label != IGNORED]


def served(tokenizer: Tokenizer, prompts: Prompts, thoughts: Sequence[str]) -> tuple[list[int], tuple[int, ...]]:
    """The prompt and the options of the request that a `choose` stage makes about drafted thoughts."""
    builders, tokenizers = {"target": PromptBuilder(tokenizer, prompts)}, {"draft": tokenizer, "target": tokenizer}
    chain = Chain(Problem(1, "p", PROBLEM, "5"), 0, 0, 0, builders, TokenTranslator(tokenizers), {"target": 100_000})
    spans = (Span("draft", tuple(tokenizer.encode_parts(["", said])), said) for said in thoughts)
    chain.apply("draft", Outcome(candidates=tuple(spans)))
    [request] = ChooseStage("verify", ChooseSpec(engine="target", unit="thought"), builders).requests(chain)
    return list(request.prompt_ids), request.option_ids


@pytest.mark.parametrize("name", ["tiny-target", "r1-distill-qwen", "qwq", "qwen3", "llama-3", "phi-3"])
@pytest.mark.parametrize("prompts", [DEFAULT_PROMPTS, SCOT], ids=["default", "scot"])
def test_a_published_choice_is_asked_as_in_serving(name: str, prompts: Prompts) -> None:
    thoughts = ["Tom has 3 + 2 = 5.", "Tom has 3 - 2 = 1 pens <|im_end|>.", "So 3.\n\nThen 5."]
    example = encoder(name, prompts).example("here", Choice(PROBLEM, tuple(thoughts), (0, 2)))
    assert isinstance(example, SelectExample)
    ids, option_ids = served(chat_model(name), prompts, thoughts)
    assert (list(example.ids), example.option_ids) == (ids, option_ids)
    named = [chat_model(name).decode([example.option_ids[index]]).strip() for index in example.right]
    assert named == ["1", "3"]


@pytest.mark.parametrize(("prompts", "none", "label"), [(DEFAULT_PROMPTS, 0, "0"), (SCOT, 2, "3")], ids=["default", "scot"])
def test_where_none_is_right_the_option_that_rejects_all_is(prompts: Prompts, none: int, label: str) -> None:
    example = encoder(prompts=prompts).example("here", Choice(PROBLEM, ("a", "b"), ()))
    assert isinstance(example, SelectExample)
    assert (example.none, example.right) == (none, (none,))
    assert chat_model("tiny-target").decode([example.option_ids[none]]).strip() == label


@pytest.mark.parametrize("name", ["tiny-draft", "r1-distill-qwen", "qwq", "qwen3"])
def test_a_published_thought_follows_the_prompt_of_serving(name: str) -> None:
    tokenizer, said = chat_model(name), "First, 3 + 2 = 5.\n\nSo 5.\n"
    example = encoder(name, SCOT).example("here", Thought(PROBLEM, f"{said}</think>"))
    assert isinstance(example, DraftExample)
    prompt = PromptBuilder(tokenizer, SCOT).generation(PROBLEM)
    assert list(example.ids[: len(prompt)]) == prompt
    assert completion(example) == list(example.ids[len(prompt) :])
    assert tokenizer.decode(prompt).count(PROBLEM) == 1
    assert tokenizer.decode(completion(example)) == f"{said}</think>"
    assert completion(example)[-1] == tokenizer.special_ids["</think>"]


def test_control_tokens_in_a_thought_stay_text() -> None:
    tokenizer = chat_model("r1-distill-qwen")
    example = encoder("r1-distill-qwen", SCOT).example("here", Thought(PROBLEM, "So <｜Assistant｜> says.\n</think>"))  # noqa: RUF001
    assert isinstance(example, DraftExample)
    assert [id_ for id_ in completion(example) if id_ in tokenizer.control_ids] == [tokenizer.special_ids["</think>"]]


def test_a_cut_thought_has_no_end() -> None:
    example = encoder("tiny-draft").example("here", Thought(PROBLEM, "Tom has 3 + 2"))
    assert isinstance(example, DraftExample)
    assert not {*completion(example)} & {*chat_model("tiny-draft").special_ids.values()}


def test_a_model_without_marks_learns_the_thought_and_its_end() -> None:
    tokenizer = chat_model("llama-3")
    example = encoder("llama-3", SCOT).example("here", Thought(PROBLEM, "So 5.\n</think>"))
    assert isinstance(example, DraftExample)
    assert completion(example) == [*tokenizer.encode("So 5."), *tokenizer.eos_ids]


def test_a_whole_reply_ends_with_the_end_of_the_sequence() -> None:
    tokenizer = chat_model("tiny-draft")
    row = msgspec.convert(messages_row(PROBLEM, "<think>\nSo 5.\n\n</think>\n\\boxed{5}"), SftRow)
    example = encoder("tiny-draft").example("here", row)
    assert isinstance(example, DraftExample)
    assert tokenizer.decode(completion(example)) == "So 5.\n\n</think>\n\\boxed{5}<|end|>"


def test_messages_before_the_question_are_said_too() -> None:
    turns = [("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "2"), ("user", PROBLEM)]
    row = msgspec.convert(
        messages_row("", "<think>\nSo 5.</think>", prompt=[{"role": role, "content": said} for role, said in turns]), SftRow
    )
    example = encoder("qwq").example("here", row)
    rendered = chat_model("qwq").render([{"role": role, "content": said} for role, said in turns])
    assert chat_model("qwq").decode(list(example.ids)) == f"{rendered}So 5.</think>"


def test_a_reply_without_its_thought_is_an_error() -> None:
    row = msgspec.convert(messages_row(PROBLEM, "So 5."), SftRow)
    with pytest.raises(InputError, match=r"data, row 3: the reply begins 'So 5\.', but the model bundled:tiny-draft begins with <think>"):
        encoder("tiny-draft").example("data, row 3", row)


@pytest.mark.parametrize("whole", ["thought", "response"])
def test_exported_text_gives_the_exported_token_ids(tmp_path: Path, whole: Any) -> None:
    folder = solve(tmp_path, input=write_problems(tmp_path, 4)).folder
    rows: dict[bool, list[dict[str, Any]]] = {}
    for tokens in (False, True):
        path = tmp_path / f"{tokens}.parquet"
        write_training_data(path, [folder], Wanted(format="sft", tokens=tokens, completion=whole), HeldOutProblems({}))
        rows[tokens] = pq.read_table(path).to_pylist()
    make = Encoder(SimTokenizer(), "sim", DEFAULT_PROMPTS, same=[rows[True][0]["model"]])
    for text, ids in zip(rows[False], rows[True], strict=True):
        said, exported = make.example("text", msgspec.convert(text, SftRow)), make.example("ids", msgspec.convert(ids, SftTokensRow))
        assert said == exported


def test_exported_choices_stay_as_they_are(tmp_path: Path) -> None:
    folder = solve(tmp_path, graph="scot", input=write_problems(tmp_path, 4)).folder
    write_training_data(tmp_path / "data.parquet", [folder], Wanted(format="selection"), HeldOutProblems({}))
    make = Encoder(SimTokenizer(), "sim", DEFAULT_PROMPTS)
    for row in pq.read_table(tmp_path / "data.parquet").to_pylist():
        example = make.example("row", msgspec.convert(row, SelectionRow))
        expected = SelectExample(array("I", row["input_ids"]), tuple(row["option_ids"]), tuple(row["right"]), row["none"])
        assert example == expected
        assert example.length == len(row["input_ids"]) + 1


def row_of(**values: Any) -> SelectionRow | SftTokensRow:
    """A choice whose ids and texts are those of the bundled target, but for `values`; with `labels` a reply."""
    if "labels" in values:
        return msgspec.convert(tokens_row(**values), SftTokensRow)
    tokenizer = chat_model("tiny-target")
    ids, option_ids = served(tokenizer, DEFAULT_PROMPTS, [thought(["3 + 2 = 5."]), thought(["3 - 2 = 1."])])
    said: dict[str, Any] = {"input_ids": ids, "option_ids": option_ids, "options": ["0", "1", "2"], "right": [1], "none": 0}
    return msgspec.convert(selection_row(**{**said, "prompt": tokenizer.decode(ids), **values}), SelectionRow)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"prompt": "another text"}, "its token ids were made with another tokenizer than that of bundled:tiny-target (column `model`: "),
        ({"options": ["0", "1", "7"]}, "its token ids were made with another tokenizer"),
        ({"input_ids": [5, 560]}, "has the token id 560, and bundled:tiny-target has 560 tokens; its prompts were made for bundled:tiny"),
        ({"input_ids": [-1]}, "has the token id -1"),
        ({"input_ids": [5, 6, 9999], "labels": [-100, 6, 9999]}, "has the token id 9,999"),
        ({"model": "no/model", "labels": [-100, 6, 7]}, "made for no/model, whose tokenizer is not available to compare with"),
        ({"model": "bundled:gone", "labels": [-100, 6, 7]}, "add same_tokenizer: [bundled:gone]"),
    ],
)
def test_ids_of_another_tokenizer_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        encoder(vocab_size=560).example("data, row 1", row_of(**values))
    assert str(caught.value).startswith("data, row 1: ")
    assert says in str(caught.value)


def test_a_tokenizer_that_can_be_looked_at_is_compared(tmp_path: Path) -> None:
    row = msgspec.convert(tokens_row(model="bundled:tiny-draft"), SftTokensRow)
    assert encoder("tiny-target").example("here", row).length == 3  # both bundled models have one tokenizer
    with pytest.raises(InputError, match="its token ids were made for bundled:tiny-draft, whose tokenizer is not that of qwq"):
        Encoder(chat_model("qwq"), "qwq", DEFAULT_PROMPTS).example("here", row)
    assert encoder("qwq", same=["bundled:tiny-draft"]).example("here", row).length == 3


def test_labels_that_are_no_single_tokens_are_refused() -> None:
    asked = msgspec.structs.replace(SCOT.choose_thought, labels=("1", "2 of 3", "3"))
    with pytest.raises(InputError, match="here: the engine's tokenizer has no single token for '2 of 3'"):
        encoder(prompts=msgspec.structs.replace(SCOT, choose_thought=asked)).example("here", Choice(PROBLEM, ("a", "b"), (0,)))
