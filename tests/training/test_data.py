"""What is learnt from, to the last token id, and what must not be learnt; problems of test sets and splits are known by their words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import InputError
from pipeline.graph.prompts import Prompts
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.training.config import CONFIGS, Task
from pipeline.training.data import IGNORED, TrainingData, read_data
from pipeline.training.examples import problem_hash, read_held_out, split_of
from pipeline.training.write import Wanted, write_training_data
from tests.support.chat_models import chat_model
from tests.support.runs import solve_short, write_problems
from tests.support.training_data import arith, choices, replies, reply, write_lines

PROBLEM = "Tom has 3 pens and buys 2. How many?"


def read(
    *paths: Path,
    task: Task = "draft",
    tokenizer: Any = "tiny-draft",
    held_out: Mapping[str, str] | None = None,
    longest: int = 10_000,
    **values: Any,
) -> TrainingData:
    config = CONFIGS[task](model="m", data=tuple(path.name for path in paths), **values)
    return read_data(task, config, paths, held_out or {}, chat_model(tokenizer) if isinstance(tokenizer, str) else tokenizer, longest)


def learnt(folder: Path, name: str, row: dict[str, Any]) -> tuple[str, list[int]]:
    """The text before the reply and the ids of the reply, as the model `name` learns one row."""
    [example] = read(write_lines(folder / "one.jsonl", [row | {"split": "train"}]), tokenizer=name).train
    labels = list(example["labels"])
    begin = labels.count(IGNORED)
    assert labels == [IGNORED] * begin + list(example["input_ids"][begin:])
    return chat_model(name).decode(list(example["input_ids"][:begin])), labels[begin:]


@pytest.mark.parametrize("name", ["tiny-draft", "r1-distill-qwen", "qwq", "qwen3"])
def test_a_thought_follows_the_prompt_of_serving_and_a_whole_reply_ends(tmp_path: Path, name: str) -> None:
    tokenizer, thought = chat_model(name), "First, <|im_end|> 3 + 2 = 5.\n\n</think>"
    before, said = learnt(tmp_path, name, reply(PROBLEM, f"<think>\n{thought}"))
    assert before == tokenizer.decode(PromptBuilder(tokenizer, Prompts(problem="{{problem}}")).generation(PROBLEM))
    assert tokenizer.decode(said) == thought
    assert [id_ for id_ in said if id_ in tokenizer.control_ids] == [tokenizer.special_ids["</think>"]], "of what is said none"
    messages = [{"role": role, "content": said} for role, said in (("user", "1 + 1?"), ("assistant", "2"), ("user", PROBLEM))]
    before, [*whole, end] = learnt(tmp_path, name, reply("", f"<think>\n{thought}\n\\boxed{{5}}", prompt=messages))
    assert before.startswith(tokenizer.render(messages)), "what was said before the question is said, too"
    assert (tokenizer.decode(whole), end in tokenizer.eos_ids) == (f"{thought}\n\\boxed{{5}}", True)


def test_a_model_without_reasoning_tags_learns_answers(tmp_path: Path) -> None:
    _, said = learnt(tmp_path, "llama-3", reply(PROBLEM, "<think>\nHm.</think>\n\nSo 5."))
    assert said == [*chat_model("llama-3").encode("So 5."), *chat_model("llama-3").eos_ids]
    with pytest.raises(InputError, match="m has no reasoning tags, so it learns answers; export with --completion response"):
        learnt(tmp_path, "llama-3", reply(PROBLEM, "<think>\nHm.</think>"))


@pytest.mark.parametrize("part", ["thought", "response"])
def test_exported_text_is_learnt_as_it_was_served(tmp_path: Path, part: Literal["thought", "response"]) -> None:
    """To the last token id: the prompt, the steps and the answer of the run."""
    folder, tokenizer = solve_short(tmp_path, graph="target", input=write_problems(tmp_path, 4)).folder, SimTokenizer()
    write_training_data(path := tmp_path / "data.parquet", [folder], Wanted(format="sft", completion=part, validation=0.0))
    examples = {tuple(example["input_ids"]): example for example in read(path, tokenizer=tokenizer).train}
    answers = {row["chain_id"]: row["answer_text"] for row in pq.read_table(folder / "chains").to_pylist()}
    calls, steps = (pq.read_table(folder / name).to_pylist() for name in ("calls", "steps"))
    for chain, answer in answers.items():
        ids = [id_ for step in steps if step["chain_id"] == chain for id_ in step["step_token_ids"]]
        end = [*tokenizer.encode(answer), *sorted(tokenizer.eos_ids)[:1]] if part == "response" else []
        [length] = {call["input_tokens"] for call in calls if call["chain_id"] == chain and call["step_index"] == 1 and not call["attempt"]}
        [found] = [each for each in examples if list(each[length:]) == [*ids, *end]]
        assert list(examples[found]["labels"]) == [IGNORED] * length + [*ids, *end]


def test_exported_choices_stay_as_they_are(tmp_path: Path) -> None:
    folder, path = solve_short(tmp_path, graph="scot", input=write_problems(tmp_path, 4)).folder, tmp_path / "data.parquet"
    write_training_data(path, [folder], Wanted(format="selection", validation=0.0))
    for row, example in zip(pq.read_table(path).to_pylist(), read(path, task="select", tokenizer=SimTokenizer()).train, strict=True):
        assert {name: list(ids) for name, ids in example.items()} == {name: row[name] for name in ("input_ids", "option_ids", "right")}


def test_too_long_examples_and_problems_of_a_test_set_are_left_out_whole_and_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", replies(20, split="train"))
    lengths = sorted(len(example["input_ids"]) for example in read(path).train)
    data = read(path, longest=lengths[9])
    left = sum(length > lengths[9] for length in lengths)
    assert sorted(len(example["input_ids"]) for example in data.train) == lengths[: 20 - left]
    assert data.notices == [
        f"data.jsonl: {left} rows have more than {lengths[9]} tokens and are left out",
        "no example is held back for validation: nothing is measured",
    ]
    with pytest.raises(InputError, match=r"data.jsonl: nothing is left to learn from: data.jsonl: 20 rows have more than 3 tokens"):
        read(path, longest=3)
    data = read(path, held_out={problem_hash(problem): "mine" for problem, _ in arith(6, 4)})
    assert (len(data.train), data.notices[0]) == (14, "data.jsonl: 6 rows are about problems of the test set mine and are left out")


def test_a_problem_in_both_splits_is_refused(tmp_path: Path) -> None:
    said = "<think>\nSo.</think>"
    rows = [reply("A?", said, split="train"), reply("B?", said, split="validation")]
    one = write_lines(tmp_path / "one.jsonl", rows)
    other = write_lines(tmp_path / "other.jsonl", [reply("b?", said, split="train", problem_id="c")])
    assert (len(read(one).train), len(read(one).validation)) == (1, 1)
    with pytest.raises(InputError) as caught:
        read(one, other)
    what = "its problem, c, is in the split train, and in validation in one.jsonl, row 2, so validation would measure training data"
    assert str(caught.value) == f"other.jsonl, row 1: {what}; export all files with one --validation"


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        ("select", reply(PROBLEM, "<think>\nSo.</think>"), "Expected `str`, got `array` - at `$.prompt`; `train select` learns"),
        ("draft", choices(1)[0], "Expected `array`, got `str` - at `$.prompt`; `train draft` learns from files of `pipeline export"),
        ("select", choices(1)[0] | {"tokenizer": "other"}, "come from another tokenizer than m's (column `model`: bundled:tiny-target)"),
        ("select", choices(1)[0] | {"right": [9]}, "`right` is [9]; expected indices of `option_ids`, at least one"),
        ("draft", reply(PROBLEM, "So 5."), "the reply has no </think>; export it with `pipeline export --as sft`"),
    ],
)
def test_rows_that_cannot_be_learnt_are_refused(tmp_path: Path, task: Task, row: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write_lines(tmp_path / "data.jsonl", [row]), task=task, tokenizer="tiny-target")
    assert str(caught.value).startswith("data.jsonl, row 1: ")
    assert says in str(caught.value)


def test_problems_of_a_test_set_are_known_by_their_words_whatever_their_column_is_called(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(json.dumps({"question": "How many pens?", "answer": "5"}) + "\n")
    assert read_held_out({"gsm8k": [path]}) == {problem_hash(" how MANY\n pens?"): "gsm8k"}
    assert problem_hash("How many pens?") != problem_hash("How many pen?")
    assert len(problem_hash("\ud800")) == 16
    path.write_text('{"text": "x"}\n')
    with pytest.raises(InputError, match="gsm8k: no column `problem`"):
        read_held_out({"gsm8k": [path]})


def test_a_share_of_the_problems_is_for_validation_and_stays_there_when_it_grows() -> None:
    texts = [f"Problem number {number}?" for number in range(2000)]
    none, some, more = ({text for text in texts if split_of(text, share) == "validation"} for share in (0.0, 0.1, 0.3))
    assert none == set()
    assert 150 < len(some) < 250
    assert some < more
