"""Writes training data: run folders and what is wanted of them enter, a file of rows leaves, whole or not at all."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.errors import RunFolderError, UsageError, boundary
from pipeline.export.answers_file import form_of, write_rows
from pipeline.export.solved import SolvedChain, solved
from pipeline.grading.grader import Grader
from pipeline.grading.stated import CLOSE, boxed
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE, THINK_OPEN, Message
from pipeline.store.query import Query
from pipeline.store.rows import schema_of
from pipeline.store.run_file import RunFile
from pipeline.training.examples import Found, Origin, SelectionRow, SftRow, problem_hash, split_of
from pipeline.training.selections import Labels, Selections

Format: TypeAlias = Literal["sft", "selection"]
FORMATS: tuple[Format, ...] = get_args(Format)
Part: TypeAlias = Literal["thought", "response"]
"""`thought`: up to the tag that closes it (SCoT 3.3); `response`: with the answer, to the end of the sequence."""
CLOSING = re.compile(rf"(?:{CLOSE.pattern})$")
"""The closing tag at the end of a thought, whichever the model has."""
WHOLE = ("thought_closed", "answer_boxed", "answer_confident", "answer_stable")
"""The stop reasons of thoughts that were not cut."""
_MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False)]))
_SFT = [pa.field("prompt", _MESSAGES, False), pa.field("completion", _MESSAGES, False)]


class Wanted(Struct, frozen=True, kw_only=True):
    """The training data that is wanted of some runs."""

    format: Format
    completion: Part = "thought"
    """Of `sft`: what is to be learnt."""
    labels: Labels | None = None
    """Of `selection`: what says which options are right; None: see `Selections`."""
    correct: bool = False
    """Only chains whose answer is right."""
    validation: float = 0.1
    """The share of the problems in the split `validation`, 0 to 1."""


class WrittenData(Struct):
    """Counts of what was written."""

    rows: Counter[str]
    """By split."""
    left_out: Counter[str]
    """Chains or verifications that gave no row, by the reason, as a clause."""
    problems: set[str]
    """The hashes of the problems that the rows are about."""


def write_training_data(path: Path, runs: Sequence[Path], wanted: Wanted) -> WrittenData:
    """Write the rows of all `runs` to the file `path` in this format, else by its name: `.parquet` or `.jsonl`.

    Raises `UsageError` for runs that cannot give what is `wanted` or that give no rows, `InputError` for folders that cannot be read,
    `RunFolderError` where the file cannot be written; then no file is left.
    """
    if form_of(path) == ".csv":
        raise UsageError(f"{path}: CSV cannot hold lists; expected a name that ends in .jsonl or .parquet")
    written = WrittenData(Counter(), Counter(), set())
    schema = pa.schema([*schema_of(Origin), *_SFT]) if wanted.format == "sft" else schema_of(SelectionRow)
    with Grader() as grader, boundary(RunFolderError, str(path), foreign=OSError):
        write_rows(path, schema, map(msgspec.to_builtins, _some_rows(runs, wanted, grader, written)))
    return written


def _some_rows(runs: Sequence[Path], wanted: Wanted, grader: Grader, written: WrittenData) -> Iterator[Origin]:
    """The rows of all runs, in the order of their inputs. Raises `UsageError` where there are none, so that nothing is written."""
    for run in runs:
        about, row = RunFile.read(run), SftRow if wanted.format == "sft" else SelectionRow
        if wanted.format == "sft":
            found = replies(run, written.left_out, with_answer=wanted.completion == "response")
        else:
            found = Selections(run, wanted.labels, grader).found(written.left_out)
        for problem, chain, correct, columns in found:
            if wanted.correct and not correct:
                written.left_out["chains without a right answer"] += 1
                continue
            split, known = split_of(problem.problem, wanted.validation), problem_hash(problem.problem)
            written.rows[split] += 1
            written.problems.add(known)
            yield row(
                split=split,
                problem_id=problem.problem_id,
                chain_id=chain,
                correct=correct,
                run_id=about.run_id,
                graph=about.graph,
                problem_hash=known,
                **columns,
            )
    if not written.rows:
        why = ", ".join(f"{count:,} {why}" for why, count in written.left_out.items())
        raise UsageError(f"{', '.join(map(str, runs))}: gives no rows; left out: {why or 'nothing'}")


def _is_whole(chain: SolvedChain) -> bool:
    """Whether its thought was not cut. One that ended at `Answer:` has no answer."""
    return chain.stop_reason in WHOLE and (chain.stop_reason != "answer_boxed" or boxed(chain.thought or "") is not None)


def replies(run: Path, left_out: Counter[str], *, with_answer: bool) -> Iterator[Found]:
    """Each chain whose text is whole, with the columns `prompt` and `completion` of an `SftRow` (SCoT 3.3: the target's thoughts, for the
    draft).

    What was cut would teach a model never to end: it is counted in `left_out` by the reason, as a clause. with_answer: the completion has
    the answer, too. Raises `InputError` where the run cannot be read.
    """
    record = RunFile.read(run)
    prompts = record.plan.prompts
    with Query(run) as db:
        for problem, _, chains in solved(run, record, db):
            for chain in chains:
                if not isinstance(problem, Problem) or chain.stop_reason in ("error", "cancelled"):
                    left_out["chains that failed or were not finished"] += 1
                elif not _is_whole(chain) or (with_answer and chain.answer_cut is not False):
                    left_out["chains whose text was cut"] += 1
                else:
                    asked = (*prompts.before(problem.history), Message("user", prompts.asked(problem.problem, problem.options)))
                    thought = CLOSING.sub("", (chain.thought or "").removesuffix(prompts.thought.close))
                    answer = (chain.answer_text or "") if with_answer else ""
                    between = DELIMITER if answer and not answer[0].isspace() else ""
                    said = Message("assistant", f"{THINK_OPEN}\n{thought}{THINK_CLOSE}{between}{answer}")
                    yield problem, chain.chain_id, chain.correct, {"prompt": asked, "completion": (said,)}
