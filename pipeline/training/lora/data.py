"""The data of a training: rows of files enter, examples to learn from and to measure on leave, with what was counted; or an error about
what must not be learnt."""

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from pipeline.errors import InputError
from pipeline.training.examples import Origin
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.lora.config import TrainConfig
from pipeline.training.lora.files import Row, RowsFile, problem_of, text_of
from pipeline.training.lora.published import Choice, Thought
from pipeline.training.lora.tokens import Encoder, TokenExample
from pipeline.training.split import split_of

SHOWN = 60
"""Most characters of a problem in a message."""


class Asking(Struct, frozen=True, kw_only=True):
    """How problems were asked, and are to be asked when the adapter is served."""

    graph: str
    """The name of a graph."""
    prompts: str | None
    """A prompts file; None: it is not known."""


class FileCounts(Struct, frozen=True, kw_only=True):
    """One file of the data, and what became of its rows."""

    name: str
    form: str
    """What its rows are, as a noun."""
    sha256: str
    train: int
    validation: int
    too_long: int = 0
    """Rows that were left out because they have more tokens than an example may have."""
    held_out: int = 0
    """Rows that were left out because their problem is in a test set."""
    cut: int = 0
    """Published thoughts without an end, which are learnt as they are."""
    runs: tuple[str, ...] = ()
    """Where its rows come from, a clause for each run."""
    asked: tuple[Asking, ...] = ()
    """How the problems of its rows were asked; empty in a record of an earlier version."""


class Data(Struct, frozen=True, kw_only=True):
    """What is learnt from and what is measured on."""

    train: Sequence[TokenExample]
    validation: Sequence[TokenExample]
    files: tuple[FileCounts, ...]
    longest: int
    """Most tokens that an example may have."""

    def notices(self) -> list[str]:
        """What a person should know before the training begins."""
        said = self.left_out()
        for file in self.files:
            if file.cut:
                said.append(f"{file.name}: {file.cut:,} thoughts have no end and are used as they are")
        if not self.validation:
            said.append("no example is held back for validation: nothing is measured")
        return said

    def left_out(self) -> list[str]:
        """What was left out, a clause for each file and reason."""
        said = []
        for file in self.files:
            if file.too_long:
                said.append(f"{file.name}: {file.too_long:,} rows have more than {self.longest:,} tokens and are left out")
            if file.held_out:
                said.append(f"{file.name}: {file.held_out:,} rows are about problems of a test set and are left out")
        return said


def prepare(files: Sequence[RowsFile], config: TrainConfig, held_out: HeldOutProblems, encoder: Encoder, longest: int) -> Data:
    """The examples of all `files`; `longest` is the most tokens that one may have.

    Raises `InputError` for a row that does not fit to the model, for problems of a test set, for a problem in both splits, and where
    nothing is left to learn from.
    """
    found: dict[str, list[TokenExample]] = {"train": [], "validation": []}
    splits: dict[str, tuple[str, str]] = {}
    counts = []
    for file in files:
        held = _held_out(file, config, held_out, encoder.decode)
        count: Counter[str] = Counter(held_out=0)
        for number, row in file.rows:
            if problem_of(row) in held:
                count["held_out"] += 1
                continue
            where = f"{file.name}, row {number}"
            example = encoder.example(where, row)
            if example.length > longest:
                count["too_long"] += 1
                continue
            split = row.split if isinstance(row, Origin) else split_of(row.problem, config.validation)
            _check_split(splits, where, row, split)
            count[split] += 1
            count["cut"] += isinstance(row, Thought) and not row.closed
            found[split].append(example)
        counts.append(_counted(file, count, config))
    data = Data(train=found["train"], validation=found["validation"], files=tuple(counts), longest=longest)
    if not data.train:
        why = "; ".join(data.left_out() or ["all rows are held back for validation"])
        raise InputError(", ".join(file.name for file in files), f"nothing is left to learn from: {why}")
    return data


def _check_split(splits: dict[str, tuple[str, str]], where: str, row: Row, split: str) -> None:
    """Raise `InputError` where the problem of a row is in another split than before, as `splits` has it: the split and the row of each."""
    first, place = splits.setdefault(problem_of(row), (split, where))
    if first != split:
        what = f"its problem, {_called(row)}, is in the split {split}, and in {first} in {place}"
        remedy = "export all files with one --validation, and set `validation` to the same share for published data"
        raise InputError(where, f"{what}, so validation would measure training data; {remedy}")


def _asked(file: RowsFile, config: TrainConfig) -> tuple[Asking, ...]:
    """How the rows of a file were asked; published ones are choices and thoughts of SCoT, asked as the config says."""
    said = sorted({(row.graph, row.prompts or "") for _, row in file.rows if isinstance(row, Origin)})
    return tuple(Asking(graph=graph, prompts=prompts or None) for graph, prompts in said or [("scot", config.prompts)])


def _counted(file: RowsFile, count: Counter[str], config: TrainConfig) -> FileCounts:
    return FileCounts(
        name=file.name,
        form=file.form,
        sha256=file.sha256,
        train=count["train"],
        validation=count["validation"],
        too_long=count["too_long"],
        held_out=count["held_out"],
        cut=count["cut"],
        runs=tuple(file.runs),
        asked=_asked(file, config),
    )


def _held_out(file: RowsFile, config: TrainConfig, test_sets: HeldOutProblems, decode: Callable[[Sequence[int]], str]) -> set[str]:
    """The problems of a file that are in a test set; raises `InputError` where there are any and they are not to be left out."""
    seen: dict[str, str | None] = {}
    first: tuple[int, Row] | None = None
    for number, row in file.rows:
        problem = problem_of(row)
        if problem not in seen:
            seen[problem] = test_sets.found_in(text_of(row, decode))
            first = first or ((number, row) if seen[problem] is not None else None)
    found = {problem: name for problem, name in seen.items() if name is not None}
    if first is not None and config.overlap == "refuse":
        number, row = first
        name = found[problem_of(row)]
        what = f"{len(found):,} of its {len(seen):,} problems are in a test set, the first in row {number}, {_called(row)}, in {name}"
        raise InputError(file.name, f"{what}; train on other problems, or leave these out with overlap: leave_out")
    return set(found)


def _called(row: Row) -> str:
    """What a person calls the problem of a row."""
    if isinstance(row, Thought | Choice):
        return repr(row.problem if len(row.problem) <= SHOWN else f"{row.problem[:SHOWN]}...")
    return row.problem_id
