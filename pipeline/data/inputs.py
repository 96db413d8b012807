"""What a user names or holds as an input: names of data sets, addresses of the hub, URLs and stdin enter, and files leave; values in memory
enter, and rows leave."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from pipeline.data.files import Record, records_of
from pipeline.data.prepare import HUB, RECIPES, hub_data, prepare
from pipeline.data.problems import DEFAULT, Problem
from pipeline.errors import InputError, PipelineError, UsageError, boundary
from pipeline.graph.files import ARITH
from pipeline.graph.prompts import Message

STDIN = "-"
Fetch = Callable[[str, Path], Path]
"""Gives the path of what a URL names, which is in an empty folder where it had to be downloaded."""
Tell = Callable[[str], None]
"""Receives a notice for the user."""


def said_anywhere(text: str) -> str:
    """An input as it is called from any working folder: a path is absolute, other names stay."""
    is_name = text == STDIN or "://" in text or (text in RECIPES and not Path(text).exists())
    return text if is_name else str(Path(text).absolute())


@contextmanager
def problem_files(inputs: Sequence[str], fetch: Fetch, tell: Tell) -> Iterator[list[Path]]:
    """The paths that these inputs name; what is no file is written to one that is there until the block ends.

    `fetch` downloads URLs, and `tell` gets which revision of a data set was taken. Raises `InputError` for what cannot be read,
    `MissingExtra` for the hub without the package that reads it, and what `fetch` raises.
    """
    if list(inputs).count(STDIN) > 1:
        raise InputError("stdin", "can be read only once; name it once")
    with TemporaryDirectory(prefix="problems-") as folder:
        yield [_file(each, Path(folder, str(place)), fetch, tell) for place, each in enumerate(inputs)]


def _file(text: str, folder: Path, fetch: Fetch, tell: Tell) -> Path:
    """The path of one input; what is no file is written into `folder`, which no other input has."""
    folder.mkdir()
    if text == STDIN:
        return _stdin(folder)
    if text.startswith("hf://"):
        path, data = folder / "hub.parquet", hub_data(text)
        tell(f"{text}: split `{data.split}`")
        data.to_parquet(path)
        return path
    if "://" in text:
        return fetch(text, folder)
    return _recipe(text, folder, tell) if text in RECIPES and not Path(text).exists() else Path(text)


def _recipe(name: str, folder: Path, tell: Tell) -> Path:
    """The problems of a data set: the bundled ones, those that `prepare` wrote, or else downloaded."""
    there = ARITH / "test.parquet" if name == "arith" else Path("data") / f"{name}.parquet"
    if there.exists():
        return there
    try:
        prepared = prepare(name, HUB, folder / f"{name}.parquet")
    except PipelineError as error:
        remedy = f"with the published file, `pipeline prepare {name} --from FILE` writes data/{name}.parquet, which this name means then"
        raise InputError(name, f"{error}; {remedy}") from error
    if prepared.mismatch:
        tell(prepared.mismatch)
    return Path(prepared.output)


def _stdin(folder: Path) -> Path:
    """All of stdin in a file named by its format, which its first bytes tell."""
    head = sys.stdin.buffer.read(1 << 16)
    suffix = ".parquet" if head.startswith(b"PAR1") else ".jsonl" if head.lstrip()[:1] in (b"{", b"[") else ".csv"
    path = folder / f"stdin{suffix}"
    with boundary(InputError, f"stdin: cannot be stored in {folder}", foreign=OSError), path.open("wb") as file:
        file.write(head)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def rows_in_memory(problems: Any, limit: int | None) -> Iterable[Record]:
    """The rows of problems that a caller holds: texts, mappings, `Problem`s or a table. Of an iterator only `limit` are taken, as it may
    never end. Raises `UsageError` for anything else."""
    if hasattr(problems, "__arrow_c_stream__"):
        return (record for batch in pa.RecordBatchReader.from_stream(problems) for record in records_of(batch))
    if isinstance(problems, Mapping | str) or not isinstance(problems, Iterable):
        raise UsageError(f"problems: expected a path, texts, mappings or a table, got `{type(problems).__name__}`")
    return (_record(row, each) for row, each in enumerate(problems if isinstance(problems, Sequence) else islice(problems, limit), 1))


def _record(row: int, problem: Any) -> Mapping[str, Any]:
    """The row of a problem; raises `InputError` for a value that is none."""
    if isinstance(problem, str):
        return {"problem": problem}
    if isinstance(problem, Problem):
        if problem.settings != DEFAULT:
            raise InputError(f"problems, item {row}", "has settings of its own; give it as a mapping with custom_id, method, url and body")
        chat = [{"role": each.role, "content": each.content} for each in (*problem.history, Message("user", problem.problem))]
        fields = {"problem_id": problem.problem_id, "answer": problem.answer, "options": list(problem.options), "grader": problem.grader}
        return fields | {"problem": chat if problem.history else problem.problem}
    if not isinstance(problem, Mapping):
        raise InputError(f"problems, item {row}", f"expected a text or a mapping with the key `problem`, got `{type(problem).__name__}`")
    return {str(name): _plain(value) for name, value in problem.items()}


def _plain(value: Any) -> Any:
    """The builtin value of a number or array of numpy, pandas or torch."""
    return list(value) if isinstance(value, tuple) else value.tolist() if hasattr(value, "tolist") else value
