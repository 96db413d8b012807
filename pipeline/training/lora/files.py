"""The files of training data: paths enter, typed rows leave, with what identifies each file; or an error about the first wrong row.

What a file is for is told by its columns. Nothing is said to a tokenizer here and no model is needed.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from pipeline.data.formats import open_source
from pipeline.data.rows import DAMAGE, Flaw
from pipeline.errors import InputError, boundary, reason
from pipeline.training.examples import IGNORED, Origin, SelectionRow, SftRow, SftTokensRow
from pipeline.training.lora.config import Task
from pipeline.training.lora.published import Choice, Thought, parse_choice, parse_thought
from pipeline.training.split import problem_hash

Row: TypeAlias = SftRow | SftTokensRow | SelectionRow | Thought | Choice
LEARNS: dict[Task, str] = {
    "draft": "what a target wrote: files of `pipeline export --as sft`",
    "select": "choices among options: files of `pipeline export --as selection`",
}


class RowsFile(Struct, frozen=True, kw_only=True):
    """One file of training data."""

    name: str
    """As the config names it."""
    form: str
    """What its rows are, as a noun."""
    sha256: str
    rows: tuple[tuple[int, Row], ...]
    """Each with its number in the file, from 1."""

    @property
    def runs(self) -> list[str]:
        """Where its rows come from, a clause for each run."""
        return sorted({f"run {row.run_id} of {row.graph}, {row.model}" for _, row in self.rows if isinstance(row, Origin)})


class _Form(NamedTuple):
    """A kind of rows."""

    noun: str
    columns: frozenset[str]
    """Columns that only this kind has together."""
    task: Task | None
    """The training that learns from it; None: neither does."""
    read: Callable[[Mapping[str, Any]], Row]
    """A record as a row; raises `Flaw`."""


def read_files(task: Task, files: Iterable[tuple[str, Path]]) -> list[RowsFile]:
    """The rows of all `files`, each a name and where it is. Raises `InputError` for a file that the training `task` cannot learn from."""
    return [_read(task, name, path) for name, path in files]


def text_of(row: Row, decode: Callable[[Sequence[int]], str]) -> str:
    """A text that contains the problem of a row: the problem itself or what was asked; of token ids that which `decode` makes of them."""
    match row:
        case Thought() | Choice():
            return row.problem
        case SftRow():
            return row.prompt[-1].content
        case SelectionRow():
            return row.prompt
        case SftTokensRow():
            return decode([id_ for id_, label in zip(row.input_ids, row.labels, strict=True) if label == IGNORED])


def problem_of(row: Row) -> str:
    """What rows about the same problem have in common, in whatever file they are; without a `problem_hash` those of one input alone."""
    if not isinstance(row, Origin):
        return problem_hash(row.problem)
    return row.problem_hash or f"{row.problem_id} of {row.input_sha256}"


def _read(task: Task, name: str, path: Path) -> RowsFile:
    source, rows = open_source(path), []
    form: _Form | None = None
    try:
        for number, record in source.records(None):
            with boundary(InputError, f"{name}, row {number}", foreign=Flaw):
                if isinstance(record, Flaw):
                    raise record
                form = form or _form_of(task, name, record)
                rows.append((number, form.read(record)))
    except DAMAGE as error:
        raise InputError(name, reason(error)) from error
    if form is None:
        raise InputError(name, "holds no rows")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return RowsFile(name=name, form=form.noun, sha256=sha256, rows=tuple(rows))


def _form_of(task: Task, name: str, record: Mapping[str, Any]) -> _Form:
    """The form of a file, told by its first record; raises `InputError` where `task` does not learn from it."""
    form = next((form for form in FORMS if form.columns <= record.keys()), None)
    if form is None:
        there = ", ".join(f"`{column}`" for column in list(record)[:12])
        raise InputError(name, f"its columns, {there}, are not those of training data; `train {task}` learns {LEARNS[task]}")
    if form.task is None:
        raise InputError(name, f"holds {form.noun}, which `pipeline train` does not learn from; `train {task}` learns {LEARNS[task]}")
    if form.task != task:
        raise InputError(name, f"holds {form.noun}, which `train {form.task}` learns from; `train {task}` learns {LEARNS[task]}")
    return form


def _typed(to: type[Origin]) -> Callable[[Mapping[str, Any]], Any]:
    """What makes a `to` of a record; raises `Flaw`."""

    def read(record: Mapping[str, Any]) -> Origin:
        try:
            row = msgspec.convert(record, to)
        except msgspec.ValidationError as error:
            raise Flaw(reason(error)) from error
        if (flaw := next(_flaws(row), None)) is not None:
            raise Flaw(flaw)
        return row

    return read


def _flaws(row: Origin) -> Iterator[str]:
    """What is wrong with a row beyond its types, as clauses."""
    if row.split not in ("train", "validation"):
        yield f"`split` is {row.split!r}, expected train or validation"
    match row:
        case SelectionRow():
            yield from _flaws_in_selection(row)
        case SftTokensRow():
            ids, labels = row.input_ids, row.labels
            begin = next((place for place, label in enumerate(labels) if label != IGNORED), 0)
            if len(labels) != len(ids):
                yield f"`labels` has {len(labels):,} values, and `input_ids` {len(ids):,}"
            elif not begin or labels[begin:] != ids[begin:]:
                yield f"`labels` must be {IGNORED} for the prompt, which comes first, and the ids of the completion"
        case SftRow():
            roles = [message.role for message in row.prompt]
            turns = roles[1:] if roles[:1] == ["system"] else roles
            if not turns or turns != [("user", "assistant")[place % 2] for place in range(len(turns))] or turns[-1] != "user":
                yield f"the roles of `prompt` are {', '.join(roles) or 'none'}; expected user and assistant in turn, the last one user"
            if [message.role for message in row.completion] != ["assistant"] or not row.completion[0].content.strip():
                yield "`completion` must be one message of the assistant that is not empty"


def _flaws_in_selection(row: SelectionRow) -> Iterator[str]:
    count = len(row.option_ids)
    if not row.input_ids:
        yield "`input_ids` is empty"
    if count < 2 or len(set(row.option_ids)) < count or count != len(row.options):
        different = f"{len(set(row.option_ids))} different `option_ids`"
        yield f"has {len(row.options)} `options` and {different}; expected as many of each, at least 2"
    if not row.right:
        yield "`right` is empty; expected the indices of all right options, at least one"
    if wrong := [each for each in row.right if not 0 <= each < count]:
        yield f"`right` has {wrong[0]}; expected indices from 0 to {count - 1}"
    if len(set(row.right)) < len(row.right):
        yield f"`right` is {list(row.right)}, which has an index twice"
    if row.none is not None and not 0 <= row.none < count:
        yield f"`none` is {row.none}; expected an index from 0 to {count - 1}, or null"


FORMS = (
    _Form("SCoT's published thoughts", frozenset({"pred"}), "draft", parse_thought),
    _Form("SCoT's published choices", frozenset({"input", "label"}), "select", parse_choice),
    _Form("choices among options", frozenset({"input_ids", "option_ids", "right"}), "select", _typed(SelectionRow)),
    _Form("replies as token ids", frozenset({"input_ids", "labels"}), "draft", _typed(SftTokensRow)),
    _Form("preferences", frozenset({"chosen", "rejected"}), None, parse_thought),
    _Form("preferences as token ids", frozenset({"chosen_ids", "rejected_ids"}), None, parse_thought),
    _Form("replies as messages", frozenset({"prompt", "completion"}), "draft", _typed(SftRow)),
)
