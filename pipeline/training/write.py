"""Writes training data: run folders and what is wanted of them enter, a file of rows leaves, whole or not at all."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.bundled import bundled_files
from pipeline.data.problems import Problem
from pipeline.engine import Tokenizer
from pipeline.engines.models import resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import RunFolderError, UsageError, boundary, did_you_mean
from pipeline.export.answers_file import Form, form_of, write_batches
from pipeline.grading.grader import Grader
from pipeline.graph.loader import load_prompts
from pipeline.graph.prompts import Prompts
from pipeline.store.columns import schema_of
from pipeline.training.examples import Origin, PreferenceRow, PreferenceTokensRow, SelectionRow, SftRow, SftTokensRow
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.labels import Labels, Source
from pipeline.training.preference import check_fallback, preference_rows
from pipeline.training.retrace import LEARNER, RetracedChain, Retracer
from pipeline.training.selection import Selections, check_source, default_source
from pipeline.training.sft import Completion, Replies
from pipeline.training.split import problem_hash, split_of

Format: TypeAlias = Literal["sft", "selection", "preference"]
FORMATS: tuple[Format, ...] = get_args(Format)
ROWS: dict[tuple[Format, bool], type[Origin]] = {
    ("sft", False): SftRow,
    ("sft", True): SftTokensRow,
    ("selection", False): SelectionRow,
    ("selection", True): SelectionRow,
    ("preference", False): PreferenceRow,
    ("preference", True): PreferenceTokensRow,
}
"""The row of each format, as text and as token ids."""
NOTHING: dict[Format, str] = {"sft": "no chain ended", "selection": "nothing was verified", "preference": "no draft was rejected"}
"""Why runs that could give rows of a format give none, as a clause."""
AT_ONCE = 256
"""Rows that are written together."""
_MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False)]))
_TEMPLATE = pa.struct([pa.field("chat_template", pa.string(), False)])
_NESTED: dict[type[Origin], dict[str, pa.DataType]] = {
    SftRow: {"prompt": _MESSAGES, "completion": _MESSAGES},
    PreferenceRow: {"prompt": _MESSAGES, "chosen": _MESSAGES, "rejected": _MESSAGES, "chat_template_kwargs": _TEMPLATE},
}
"""The columns of rows that hold messages, after those of `Origin`."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What training data is wanted of some runs."""

    format: Format
    tokens: bool = False
    """Token ids in place of text; a selection has both."""
    completion: Completion = "thought"
    """Of `sft`: what is to be learnt."""
    engine: str | None = None
    """Of `sft`: the role of the model that learns; None: the only role, or else `draft`."""
    model: str | None = None
    """Of `sft`: a model that was not in the run and learns, by folder, hub name or `bundled:NAME`."""
    labels: Source | None = None
    """Of `selection`: what says which options are right; None: see `default_source`."""
    correct: bool = False
    """Only chains whose answer is right."""
    validation: float = 0.1
    """The share of the problems in the split `validation`, 0 to 1."""


class Written(Struct, frozen=True):
    """What was written."""

    rows: Mapping[str, int]
    """By split."""
    problems: int
    left_out: Mapping[str, int]
    """Chains or verifications that gave no row, by the reason, as a clause."""


def write_training_data(path: Path, runs: Sequence[Path], wanted: Wanted, held_out: HeldOutProblems, form: Form | None = None) -> Written:
    """Write the rows of all `runs` to the file `path` in this format, or else that of its name, `.parquet` or `.jsonl`.

    Raises `UsageError` for runs that cannot give what is `wanted` or whose problems are in `held_out`, `InputError` for folders that cannot
    be read, `RunFolderError` where the file cannot be written; then no file is left.
    """
    if form_of(path, form) == "csv":
        raise UsageError(f"{path}: CSV cannot hold lists; expected a name that ends in .jsonl, .jsonl.gz or .parquet")
    data = _Data(runs, wanted, held_out)
    schema = _schema(ROWS[wanted.format, wanted.tokens])
    with boundary(RunFolderError, str(path), foreign=OSError), Grader() as grader:
        write_batches(path, schema, _batches(data.rows(grader), schema, f"{', '.join(map(str, runs))}", data), form)
    return Written(dict(data.count), len(data.problems), {why: count for why, count in data.left_out.items() if count})


class _Data:
    """The rows of some runs, and what is counted on the way."""

    def __init__(self, runs: Sequence[Path], wanted: Wanted, held_out: HeldOutProblems) -> None:
        self._wanted, self._held_out = wanted, held_out
        self.count: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.problems: set[int] = set()
        self.nothing = NOTHING[wanted.format]
        learner = None if wanted.model is None else HFTokenizer(resolve("learner", wanted.model))
        self._retracers = [self._checked(run, learner) for run in runs]

    def _checked(self, run: Path, learner: Tokenizer | None) -> Retracer:
        """What retraces a run, which can give what is wanted. Raises as `write_training_data` does."""
        retracer, wanted = Retracer(run, learner), self._wanted
        if wanted.format == "preference":
            check_fallback(retracer)
        elif wanted.format == "selection":
            check_source(retracer, wanted.labels or default_source(retracer))
        else:
            _learner(retracer, wanted)
        asked = ((item.problem_id, item.problem) for item in retracer.problems() if isinstance(item, Problem))
        self._held_out.check(str(run), asked)
        return retracer

    def rows(self, grader: Grader) -> Iterator[Origin]:
        """The rows of all runs, in the order of their inputs."""
        for retracer in self._retracers:
            yield from self._of_run(retracer, grader)
            self.left_out["chains whose recorded calls do not lead to their recorded steps"] += retracer.lost
            self.left_out["chains that failed or were not finished"] += retracer.unfinished

    def _of_run(self, retracer: Retracer, grader: Grader) -> Iterator[Origin]:
        rows = _Rows(retracer, self._wanted, grader)
        for chain in retracer.chains():
            if self._wanted.correct and not chain.correct:
                self.left_out["chains without a right answer"] += 1
                continue
            problem = chain.chain.problem.problem
            split = split_of(problem, self._wanted.validation)
            for row in rows.of(chain, {**rows.origin, "split": split, **_origin(chain)}):
                self.count[split] += 1
                self.problems.add(hash(problem))
                yield row
        self.left_out.update(rows.left_out())


class _Rows:
    """The rows of one run in the wanted format."""

    def __init__(self, retracer: Retracer, wanted: Wanted, grader: Grader) -> None:
        self._retracer, self._wanted, record = retracer, wanted, retracer.record
        self.origin: dict[str, str | None] = {"run_id": record.run_id, "graph": record.graph, "input_sha256": record.input.sha256}
        self.origin["prompts"] = _prompts_name(record.plan.prompts)
        self._cut = 0
        self._selections: Selections | None = None
        if wanted.format == "selection":
            source = wanted.labels or default_source(retracer)
            self._selections = Selections(retracer, Labels(retracer.run, source, grader))
        elif wanted.format == "sft":
            key, model = _learner(retracer, wanted)
            self.origin["model"] = model
            self._replies = Replies(key, retracer.builders[key], wanted.completion)

    def of(self, chain: RetracedChain, origin: dict[str, Any]) -> Iterable[Origin]:
        """The rows of one chain."""
        if self._selections is not None:
            return self._selections.rows(chain, origin)
        if self._wanted.format == "preference":
            return preference_rows(self._retracer, chain, origin, tokens=self._wanted.tokens)
        if not self._replies.is_whole(chain):
            self._cut += 1
            return ()
        make = self._replies.tokens if self._wanted.tokens else self._replies.messages
        return (make(chain, origin),)

    def left_out(self) -> Counter[str]:
        """What gave no row, by the reason."""
        unlabelled = 0 if self._selections is None else self._selections.unlabelled
        return Counter({"chains whose text was cut": self._cut, "verifications without a known right option": unlabelled})


def _learner(retracer: Retracer, wanted: Wanted) -> tuple[str, str]:
    """The key of the model that is to learn from a run, and its name; raises `UsageError`."""
    if wanted.model is not None:
        return LEARNER, wanted.model
    roles = list(retracer.plan.engines)
    role = wanted.engine or (roles[0] if len(roles) == 1 else "draft")
    if role not in roles:
        said = did_you_mean(role, roles)
        raise UsageError(f"--engine {role}: {retracer.run} has no such engine; {said}, or name a model with --model")
    return role, retracer.record.model(role)


def _origin(chain: RetracedChain) -> dict[str, Any]:
    problem = chain.chain.problem
    common = {"problem_id": problem.problem_id, "problem_hash": problem_hash(problem.problem)}
    return {**common, "chain_id": chain.chain.chain_id, "correct": chain.correct}


def _prompts_name(prompts: Prompts) -> str | None:
    """The bundled prompts file with these texts; None where there is none."""
    return next((name for name, path in bundled_files("prompts file").items() if load_prompts(path) == prompts), None)


def _schema(row: type[Origin]) -> pa.Schema:
    """The Arrow schema of a row; messages are lists of structs."""
    nested = _NESTED.get(row)
    if nested is None:
        return schema_of(row)
    return pa.schema([*schema_of(Origin), *(pa.field(name, kind, False) for name, kind in nested.items())])


def _batches(rows: Iterable[Origin], schema: pa.Schema, where: str, data: _Data) -> Iterator[pa.RecordBatch]:
    """`rows` in batches; raises `UsageError` where there are none, so that nothing is written."""
    waiting: list[dict[str, Any]] = []
    written = False
    for row in rows:
        waiting.append(msgspec.to_builtins(row))
        if len(waiting) == AT_ONCE:
            yield pa.RecordBatch.from_pylist(waiting, schema)
            waiting, written = [], True
    if waiting or written:
        yield pa.RecordBatch.from_pylist(waiting, schema)
        return
    why = ", ".join(f"{count:,} {reason}" for reason, count in data.left_out.items() if count)
    raise UsageError(f"{where}: gives no rows; left out: {why}" if why else f"{where}: gives no rows: {data.nothing}")
