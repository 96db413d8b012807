"""The data of a training: files of `pipeline export` enter, examples as token ids leave; or an error about what must not be learnt.

Text is put into the prompts of serving by the same `PromptBuilder`, so that both agree to the last id.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from pipeline.data.files import Flaw, rows_of
from pipeline.engine import Tokenizer
from pipeline.errors import GraphError, InputError, RequestRefused, boundary, reason
from pipeline.graph.prompts import Example, Marks, Message, Prompts
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.training.examples import IGNORED, Origin, SelectionRow, SftRow, SftTokensRow, tokenizer_hash
from pipeline.training.lora.config import Task, TrainConfig
from pipeline.training.problems import HeldOutProblems

TokenExample: TypeAlias = dict[str, Any]
"""The columns that a collator reads: `input_ids` and `labels` of a reply; `input_ids`, `option_ids`, `right` and `none` of a choice, where
`none` is -1 without an option that rejects all."""
LEARNS: dict[Task, str] = {"draft": "sft", "select": "selection"}
"""The format of `pipeline export --as` that each training learns from."""


class TrainingData(Struct, frozen=True, kw_only=True):
    """Examples to learn from, and to measure on."""

    train: Sequence[TokenExample]
    validation: Sequence[TokenExample]
    sha256: Mapping[str, str]
    """The hash of each file, by the name that the config has for it."""
    notices: Sequence[str]
    """Sentences about what was left out."""


def read_data(
    task: Task, config: TrainConfig, paths: Sequence[Path], test_sets: HeldOutProblems, tokenizer: Tokenizer, longest: int
) -> TrainingData:
    """The examples in the files of `config.data`, which are at `paths`; `longest` is the maximum number of tokens of one.

    Raises `InputError` for a row that the training cannot learn from, that was made for another tokenizer or is about a problem of a test
    set, for a problem in both splits, and where nothing is left to learn from.
    """
    found: dict[str, list[TokenExample]] = {"train": [], "validation": []}
    splits: dict[str, tuple[str, str]] = {}
    left: Counter[str] = Counter()
    encoder = Encoder(tokenizer, config.model)
    in_test_set = cache(lambda problem_hash, text: test_sets.found_in(text))
    for name, path in zip(config.data, paths, strict=True):
        for number, row in _rows(task, name, path):
            where = f"{name}, row {number}"
            if (test_set := in_test_set(row.problem_hash, encoder.asked(row))) is not None:
                if config.overlap == "refuse":
                    what = f"its problem, {row.problem_id}, is in the test set {test_set}"
                    raise InputError(where, f"{what}; train on other problems, or leave such rows out with overlap: leave_out")
                left[f"{name}: {{:,}} rows are about problems of a test set and are left out"] += 1
                continue
            example = encoder.example(where, row)
            if len(example["input_ids"]) + (task == "select") > longest:  # the token of the option, too
                left[f"{name}: {{:,}} rows have more than {longest:,} tokens and are left out"] += 1
                continue
            first, place = splits.setdefault(row.problem_hash, (row.split, where))
            if first != row.split:
                what = f"its problem, {row.problem_id}, is in the split {row.split}, and in {first} in {place}"
                raise InputError(where, f"{what}, so validation would measure training data; export all files with one --validation")
            found[row.split].append(example)
    notices = [sentence.format(count) for sentence, count in left.items()]
    if not found["train"]:
        why = "; ".join(notices or ["all rows are held back for validation"])
        raise InputError(", ".join(config.data), f"nothing is left to learn from: {why}")
    if not found["validation"]:
        notices.append("no example is held back for validation: nothing is measured")
    sha256 = {name: _sha256(path) for name, path in zip(config.data, paths, strict=True)}
    return TrainingData(train=found["train"], validation=found["validation"], sha256=sha256, notices=notices)


class Encoder:
    """Makes examples of rows for one model."""

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self._tokenizer, self._model, self._hash = tokenizer, model, tokenizer_hash(tokenizer)
        self._chat = cache(partial(_chat, tokenizer, model))

    def asked(self, row: Origin) -> str:
        """A text that contains the problem of a row."""
        if isinstance(row, SftRow):
            return row.prompt[-1].content
        if isinstance(row, SelectionRow):
            return row.prompt
        assert isinstance(row, SftTokensRow)
        with boundary(InputError, self._model, foreign=(RequestRefused, OverflowError)):
            return self._tokenizer.decode(row.input_ids[: row.labels.count(IGNORED)])

    def example(self, where: str, row: Origin) -> TokenExample:
        """The example of a row, which is at `where`; raises `InputError` where the two do not fit together."""
        if isinstance(row, SftRow):
            with boundary(InputError, where, foreign=(RequestRefused, GraphError, ValueError)):
                return self._reply(where, row)
        if row.tokenizer != self._hash:
            what = f"its token ids come from another tokenizer than {self._model}'s (column `model`: {row.model})"
            raise InputError(where, f"{what}; export them for this model")
        if isinstance(row, SftTokensRow):
            return {"input_ids": np.array(row.input_ids), "labels": np.array(row.labels)}
        assert isinstance(row, SelectionRow)
        if not row.right or not {*row.right} <= {*range(len(row.option_ids))}:
            raise InputError(where, f"`right` is {list(row.right)}; expected indices of `option_ids`, at least one")
        none = -1 if row.none is None else row.none
        return {"input_ids": np.array(row.input_ids), "option_ids": row.option_ids, "right": row.right, "none": none}

    def _reply(self, where: str, row: SftRow) -> TokenExample:
        """A question and the whole reply to it, with the marks of its thought where the model has them.

        A reply that continues after the thought, and one of a model that marks none, ends with the end of the sequence.
        """
        *before, asked = row.prompt
        reply, builder = row.completion[0].content, self._chat(tuple(before))
        prompt, marks = builder.generation(asked.content), Marks()
        parts = ["", reply]
        if builder.thinks:
            if not reply.startswith(marks.open):
                what = f"the reply begins {reply[:20]!r}, but the model {self._model} begins with {marks.open}"
                raise InputError(where, f"{what}; export replies with their thoughts, or with --tokens where a graph marks them otherwise")
            thought, close, answer = reply.removeprefix(marks.open).partition(marks.close)
            if self._tokenizer.decode(prompt[-4:]).endswith("\n"):  # the line break belongs to the template's opening of the thought
                thought = thought.removeprefix("\n")
            parts = ["", thought, close, answer]
        ids = self._tokenizer.encode_parts(parts)
        if parts[-1]:
            ids = [*ids, *sorted(self._tokenizer.eos_ids)[:1]]
        return {"input_ids": np.array([*prompt, *ids]), "labels": np.array([*([IGNORED] * len(prompt)), *ids])}


def _chat(tokenizer: Tokenizer, where: str, before: Sequence[Message]) -> PromptBuilder:
    """A builder whose chats have the messages `before` the question, which it takes as it is."""
    system = before[0].content if before and before[0].role == "system" else None
    turns = before[0 if system is None else 1 :]
    examples = tuple(Example(problem=one.content, reply=two.content) for one, two in zip(turns[::2], turns[1::2], strict=True))
    return PromptBuilder(tokenizer, Prompts(system=system, problem="{{problem}}", examples=examples), where)


def _rows(task: Task, name: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a file, each with its number from 1; raises `InputError` for one that `task` does not learn from."""
    number = 0
    for number, record in enumerate(rows_of(path), 1):
        if isinstance(record, Flaw):
            raise InputError(f"{name}, row {number}", str(record))
        row = SelectionRow if task == "select" else SftTokensRow if "input_ids" in record else SftRow
        try:
            yield number, msgspec.convert(record, row)
        except msgspec.ValidationError as error:
            what = f"`train {task}` learns from files of `pipeline export --as {LEARNS[task]}`"
            raise InputError(f"{name}, row {number}", f"{reason(error)}; {what}") from error
    if not number:
        raise InputError(name, "holds no rows")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
