"""The data of a training: files of `pipeline export` enter, examples as token ids leave; or an error about what must not be learnt.

Text is put into the prompts of serving by the same `PromptBuilder`, so that both agree to the last id.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from pipeline.data.files import Flaw, rows_of
from pipeline.engine import Tokenizer
from pipeline.errors import GraphError, InputError, RequestRefused, boundary, reason
from pipeline.graph.prompts import Marks, Prompts
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.training.config import Task, TrainConfig
from pipeline.training.examples import Origin, SelectionRow, SftRow, tokenizer_hash

IGNORED = -100
"""The label of a token that nothing is learnt from, as torch, transformers and TRL have it."""
TokenExample: TypeAlias = dict[str, Any]
"""The columns that a collator reads: `input_ids` and `labels` of a reply; `input_ids`, `option_ids` and `right` of a choice."""
ROWS: dict[Task, type[Origin]] = {"draft": SftRow, "select": SelectionRow}
"""The rows that each training learns from."""


class TrainingData(Struct, frozen=True, kw_only=True):
    """Examples to learn from, and to measure on."""

    train: Sequence[TokenExample]
    validation: Sequence[TokenExample]
    notices: Sequence[str]
    """Sentences about what was left out."""


def read_data(
    task: Task, config: TrainConfig, paths: Sequence[Path], held_out: Mapping[str, str], tokenizer: Tokenizer, longest: int
) -> TrainingData:
    """The examples in the files of `config.data`, which are at `paths`; `held_out` has the test set of each problem that must not be learnt
    by its hash, and `longest` is the maximum number of tokens of an example.

    Raises `InputError` for a row that the training cannot learn from, or that was made for another tokenizer, for a problem in both splits,
    and where nothing is left to learn from.
    """
    found: dict[str, list[TokenExample]] = {"train": [], "validation": []}
    splits: dict[str, tuple[str, str]] = {}
    left: Counter[str] = Counter()
    encoder = Encoder(tokenizer, config.model)
    for name, path in zip(config.data, paths, strict=True):
        for number, row in _rows(task, name, path):
            where = f"{name}, row {number}"
            if (test_set := held_out.get(row.problem_hash)) is not None:
                left[f"{name}: {{:,}} rows are about problems of the test set {test_set} and are left out"] += 1
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
    return TrainingData(train=found["train"], validation=found["validation"], notices=notices)


class Encoder:
    """Makes examples of rows for one model."""

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self._tokenizer, self._model, self._hash = tokenizer, model, tokenizer_hash(tokenizer)

    @cached_property
    def _builder(self) -> PromptBuilder:
        return PromptBuilder(self._tokenizer, Prompts(problem="{{problem}}"), self._model)

    def example(self, where: str, row: Origin) -> TokenExample:
        """The example of a row, which is at `where`; raises `InputError` where the two do not fit together."""
        if isinstance(row, SftRow):
            with boundary(InputError, where, foreign=(RequestRefused, GraphError, ValueError)):
                return self._reply(where, row)
        assert isinstance(row, SelectionRow)
        if row.tokenizer != self._hash:
            what = f"its token ids come from another tokenizer than {self._model}'s (column `model`: {row.model})"
            raise InputError(where, f"{what}; export them from a run of this model")
        if not row.right or not {*row.right} <= {*range(len(row.option_ids))}:
            raise InputError(where, f"`right` is {list(row.right)}; expected indices of `option_ids`, at least one")
        return {"input_ids": np.array(row.input_ids), "option_ids": row.option_ids, "right": row.right}

    def _reply(self, where: str, row: SftRow) -> TokenExample:
        """A question and the reply to it: with the thought between the tags of the model or, where it has none, without the thought.

        A reply that has an answer ends with the end of the sequence.
        """
        *before, asked = row.prompt
        builder, marks = self._builder, Marks()
        prompt = builder.generation(asked.content, (), before)
        thought, closes, answer = row.completion[0].content.removeprefix(marks.open).partition(marks.close)
        if not closes:
            raise InputError(where, f"the reply has no {marks.close}; export it with `pipeline export --as sft`")
        parts = ["", answer.lstrip()]
        if builder.thinks:
            if self._tokenizer.decode(prompt[-4:]).endswith("\n"):  # the line break belongs to the template's opening of the thought
                thought = thought.removeprefix("\n")
            parts = ["", thought, builder.prompts.thought.close, answer]
        elif not answer:
            raise InputError(where, f"{self._model} has no reasoning tags, so it learns answers; export with --completion response")
        ids = self._tokenizer.encode_parts(parts)
        if answer:
            ids = [*ids, *sorted(self._tokenizer.eos_ids)[:1]]
        return {"input_ids": np.array([*prompt, *ids]), "labels": np.array([*([IGNORED] * len(prompt)), *ids])}


def _rows(task: Task, name: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a file, each with its number from 1; raises `InputError` for one that `task` does not learn from."""
    number = 0
    for number, record in enumerate(rows_of(path), 1):
        if isinstance(record, Flaw):
            raise InputError(f"{name}, row {number}", str(record))
        try:
            yield number, msgspec.convert(record, ROWS[task])
        except msgspec.ValidationError as error:
            kind = "sft" if task == "draft" else "selection"
            what = f"`train {task}` learns from files of `pipeline export --as {kind}`"
            raise InputError(f"{name}, row {number}", f"{reason(error)}; {what}") from error
    if not number:
        raise InputError(name, "holds no rows")
