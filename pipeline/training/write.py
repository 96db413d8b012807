"""Writes training data: run folders and what is wanted of them enter, a file of rows leaves, whole or not at all."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engines.models import resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import RunFolderError, UsageError, boundary
from pipeline.export.answers_file import Form, form_of, write_rows
from pipeline.grading.grader import Grader
from pipeline.graph.bundled import bundled_files
from pipeline.graph.load import load_prompts
from pipeline.graph.prompts import Prompts
from pipeline.store.rows import schema_of
from pipeline.training.examples import Origin, PreferenceRow, SftRow
from pipeline.training.formats import FORMATS, Maker, Wanted
from pipeline.training.problems import HeldOutProblems, problem_hash, split_of
from pipeline.training.retrace import Retracer

_MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False)]))
_TEMPLATE = pa.struct([pa.field("chat_template", pa.string(), False)])
_NESTED: dict[type[Origin], dict[str, pa.DataType]] = {
    SftRow: {"prompt": _MESSAGES, "completion": _MESSAGES},
    PreferenceRow: {"prompt": _MESSAGES, "chosen": _MESSAGES, "rejected": _MESSAGES, "chat_template_kwargs": _TEMPLATE},
}
"""The columns of rows that hold messages, after those of `Origin`."""


class WrittenData(Struct):
    """Counts of what was written."""

    rows: Counter[str]
    """By split."""
    left_out: Counter[str]
    """Chains or verifications that gave no row, by the reason, as a clause."""
    problems: int = 0


def write_training_data(
    path: Path, runs: Sequence[Path], wanted: Wanted, held_out: HeldOutProblems, form: Form | None = None
) -> WrittenData:
    """Write the rows of all `runs` to the file `path` in this format, else by its name: `.parquet` or `.jsonl`.

    Raises `UsageError` for runs that cannot give what is `wanted`, that give no rows or whose problems are in `held_out`, `InputError` for
    folders that cannot be read, `RunFolderError` where the file cannot be written; then no file is left.
    """
    if form_of(path, form) == "csv":
        raise UsageError(f"{path}: CSV cannot hold lists; expected a name that ends in .jsonl, .jsonl.gz or .parquet")
    make, *rows = FORMATS[wanted.format]
    learner = None if wanted.model is None else HFTokenizer(resolve("learner", wanted.model))
    with Grader() as grader, boundary(RunFolderError, str(path), foreign=OSError):
        makers = [(retracer, make(retracer, wanted, grader)) for retracer in (Retracer(run, learner) for run in runs)]
        for retracer, _ in makers:
            asked = ((item.problem_id, item.problem) for item in retracer.problems() if isinstance(item, Problem))
            held_out.check(str(retracer.run), asked)
        written = WrittenData(Counter(), Counter())
        schema = _schema(rows[wanted.tokens])
        write_rows(path, schema, map(msgspec.to_builtins, _some_rows(makers, wanted, written)), form)
    return written


def _some_rows(makers: Sequence[tuple[Retracer, Maker]], wanted: Wanted, written: WrittenData) -> Iterator[Origin]:
    """The rows of all runs, in the order of their inputs. Raises `UsageError` where there are none, so that nothing is written."""
    yield from _rows(makers, wanted, written)
    if not written.rows:
        where, why = (
            ", ".join(str(retracer.run) for retracer, _ in makers),
            ", ".join(f"{count:,} {why}" for why, count in written.left_out.items()),
        )
        raise UsageError(f"{where}: gives no rows; left out: {why}" if why else f"{where}: gives no rows: {makers[0][1].nothing}")


def _rows(makers: Sequence[tuple[Retracer, Maker]], wanted: Wanted, written: WrittenData) -> Iterator[Origin]:
    problems = set()
    for retracer, maker in makers:
        record = retracer.record
        about = {"run_id": record.run_id, "graph": record.graph, "input_sha256": record.input.sha256}
        origin: dict[str, Any] = {**about, "prompts": _prompts_name(record.plan.prompts)}
        for chain in retracer.chains():
            if wanted.correct and not chain.correct:
                written.left_out["chains without a right answer"] += 1
                continue
            problem = chain.chain.problem
            problem_columns = {"problem_id": problem.problem_id, "problem_hash": problem_hash(problem.problem)}
            split = split_of(problem.problem, wanted.validation)
            chain_columns = {"chain_id": chain.chain.chain_id, "correct": chain.correct, "split": split}
            for row in maker.rows(chain, {**origin, **problem_columns, **chain_columns}):
                written.rows[split] += 1
                problems.add(row.problem_hash)
                yield row
        written.left_out += maker.left_out
        lost, unfinished = "chains whose recorded calls do not lead to their recorded steps", "chains that failed or were not finished"
        written.left_out += Counter({lost: retracer.lost, unfinished: retracer.unfinished})
    written.problems = len(problems)


def _prompts_name(prompts: Prompts) -> str | None:
    """The bundled prompts file with these texts; None where there is none."""
    return next((name for name, path in bundled_files("prompts file").items() if load_prompts(path) == prompts), None)


def _schema(row: type[Origin]) -> pa.Schema:
    """The Arrow schema of a row; messages are lists of structs."""
    nested = _NESTED.get(row)
    if nested is None:
        return schema_of(row)
    return pa.schema([*schema_of(Origin), *(pa.field(name, kind, False) for name, kind in nested.items())])
