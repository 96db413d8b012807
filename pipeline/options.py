"""The options of a run, each spelled once: its type, what it says in help, and what a change of it means for a run that is resumed.

The options of commands (`cli.options`), the keywords of `pipeline.solve`, `run.json` and the checks of resume and replay derive from the
fields of `RunOptions`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from pipeline.data.problems import MAX_ROWS, Frame, Problem, RowSet, row_sample, shard_of
from pipeline.engine import Engine
from pipeline.errors import InputError, UsageError, boundary
from pipeline.grading.plugins import FunctionGrader, Same, grader_names
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import stage_kinds
from pipeline.graph.spec import EngineSpec, OpenSpec
from pipeline.stages.base import StageKind
from pipeline.stages.function_judge import JudgeFunction
from pipeline.store.run_file import RunFile

Graph: TypeAlias = str | Path | Mapping[str, Any] | Plan
"""A graph file, the name of a bundled graph, the content of a graph file as a mapping, or a plan of `load_graph`."""
Engines: TypeAlias = str | Path | Mapping[str, Mapping[str, Any] | EngineSpec | Engine]
"""An engines file, the name of a bundled one, or `replay:RUN`; or by role the fields of an engine as a mapping, a spec, or an
engine that the caller has opened and will close."""
Input: TypeAlias = str | Path | Sequence[Path] | Iterable[str | Mapping[str, Any] | Problem] | Frame
"""Problems: a file, folder or pattern by path or URL, `hf://OWNER/NAME`, or several paths; or the texts of problems; or mappings with
`problem` and, where known, `answer`, `problem_id`, `options`, `grader`; or a table with such columns, of pandas, polars or Arrow."""

ScheduleName = Literal["pipelined", "lockstep", "sequential"]
AdmissionName = Literal["cache", "batch"]
Drift = Literal["allowed", "refused"]
"""What a change of an option means for a run that is resumed: it may be allowed, or it would be another run."""


class About(Struct, frozen=True, kw_only=True):
    """An option, but for its type."""

    help: str
    group: str
    """The heading under which commands list it."""
    metavar: str = ""
    drift: Drift | None = None
    """None: a change makes no difference to chains that are there already."""
    recorded: bool = True
    """`run.json` holds it, so that a resumed run has it again."""
    bounds: tuple[float, float] | None = None
    """The least and the greatest value."""


def about(help_: str, group: str, metavar: str = "", **more: Any) -> Meta:
    """The annotation of an option; `more` are further fields of `About`."""
    known = About(help=help_, group=group, metavar=metavar, **more)
    low, high = known.bounds or (None, None)
    return Meta(extra={"about": known}, ge=low, le=high)


COLUMN_HELP = "Read problem, answer, problem_id, options or grader from a column, or a path in one: problem=body.messages."
SHARD_HELP = "Only one shard of the problems, 0/COUNT to COUNT-1/COUNT; see `merge`."
BATCH_HELP = "Maximum number of chains (attempts at a problem) in progress at once."
REPLICAS_HELP = "Replicas of the engines, each with its GPUs or CPU cores of this machine and up to --batch-size chains in flight."
SCHEDULE_HELP = "pipelined: each chain advances by itself; lockstep: all take each step together; sequential: one chain at a time."
ADMISSION_HELP = (
    "cache: chains, or their calls, wait while they exceed the engines' KV caches; batch: only the batch size limits how many are"
    " in flight."
)
SHARE_HELP = "Exit with code 3 only if more than this share of the chains failed, 0 to 1."
CLUSTER_HELP = "Place the replicas on a Ray cluster: ray (RAY_ADDRESS, this machine's, or a new one) or ray://HOST:PORT."
BASELINE_HELP = "Then solve the problems with the target alone as well, on the same engines, and compare."

Columns: TypeAlias = Annotated[dict[str, str], about(COLUMN_HELP, "Input", "FIELD=COLUMN", drift="refused")]
Limit: TypeAlias = Annotated[
    int, about("Solve only the first N problems; `resume` may solve more.", "Input", "N", drift="allowed", bounds=(1, MAX_ROWS))
]
Random: TypeAlias = Annotated[str, about("Only N problems at random; SEED is independent of --seed.", "Input", "N[:SEED]", drift="refused")]
ShardName: TypeAlias = Annotated[str, about(SHARD_HELP, "Input", "INDEX/COUNT", drift="refused")]
Samples: TypeAlias = Annotated[int, about("Samples per problem.", "Prompting", "K", drift="refused", bounds=(1, 10_000))]
Seed: TypeAlias = Annotated[int, about("Random seed.", "Prompting", "N", drift="refused")]
BatchSize: TypeAlias = Annotated[int, about(BATCH_HELP, "Scheduling", "N", drift="allowed", bounds=(1, 1_000_000))]
Schedule: TypeAlias = Annotated[ScheduleName, about(SCHEDULE_HELP, "Scheduling", "NAME", drift="allowed")]
AdmissionKind: TypeAlias = Annotated[AdmissionName, about(ADMISSION_HELP, "Scheduling", "NAME", drift="allowed")]
Output: TypeAlias = Annotated[Path, about("Run folder, or its s3:// or gs:// URL.", "Output", "DIR", recorded=False)]
Baseline: TypeAlias = Annotated[bool, about(BASELINE_HELP, "Output")]
FailedShare: TypeAlias = Annotated[float, about(SHARE_HELP, "Output", "SHARE", bounds=(0, 1))]
Resume: TypeAlias = Annotated[bool, about("Resume the run in --output, if there is one.", "Resume", recorded=False)]
RetryFailed: TypeAlias = Annotated[bool, about("Also solve the chains again that failed.", "Resume", recorded=False)]
AllowDrift: TypeAlias = Annotated[tuple[str, ...], about("Allow a change of {may_drift}.", "Resume", "NAME", recorded=False)]
Cluster: TypeAlias = Annotated[str, about(CLUSTER_HELP, "Replicas", "ray[://HOST:PORT]")]
Replicas: TypeAlias = Annotated[int, about(REPLICAS_HELP, "Replicas", "N", bounds=(1, 10_000))]


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of a run, as the command line or the Python API gives them."""

    graph: Path
    """A graph file, or the name of a bundled graph."""
    input: tuple[str, ...]
    """Files of problems, folders of such files, patterns such as `data/*.jsonl`, URLs, names of data sets, or `-`; see `problem_files`."""
    engines: Path | None = None
    """An engines file, the name of a bundled one, or `replay:RUN`; None: the engines that the graph names."""
    planned_engines: dict[str, dict[str, Any]] = {}
    """By role the fields of engines that were chosen for the models which the user named; they go before `engines`."""
    settings: tuple[str, ...] = ()
    """`NAME=VALUE` for params, `engines.ROLE.NAME=VALUE` for engines."""
    columns: Columns = {}
    limit: Limit | None = None
    random: Random | None = None
    shard: ShardName | None = None
    samples: Samples = 1
    seed: Seed = 0
    batch_size: BatchSize = 64
    schedule: Schedule = "pipelined"
    admission: AdmissionKind = "cache"
    output: Output | None = None
    baseline: Baseline = False
    fail_on_error: FailedShare = 0.0
    resume: Resume = False
    retry_failed: RetryFailed = False
    allow_drift: AllowDrift = ()
    cluster: Cluster | None = None
    replicas: Replicas = 1
    in_memory: tuple[str, ...] = ()
    """Which of `graph` and `engines` are in no file, because a caller of the Python API gave them as values."""
    judges: tuple[str, ...] = ()
    """The judges of the graph that only the process which started the run knows."""
    graders: tuple[str, ...] = ()
    """The graders of the problems that only the process which started the run knows."""
    served: bool = False
    """The problems are requests to a server; `input` only names them."""

    @property
    def bound_engines(self) -> Path | dict[str, dict[str, Any]] | None:
        """The engines in place of those that the graph names."""
        return self.planned_engines or self.engines

    @property
    def max_live(self) -> int:
        """The greatest number of chains that live at once on one set of engines."""
        return 1 if self.schedule == "sequential" else self.batch_size

    @property
    def part(self) -> RowSet:
        """Which rows of the input are asked for; raises `UsageError`."""
        if self.random is not None and self.limit is not None:
            raise UsageError(f"--random {self.random} and --limit {self.limit}: give only one of them")
        sample = None if self.random is None else row_sample(self.random)
        return RowSet(limit=self.limit, sample=sample, shard=None if self.shard is None else shard_of(self.shard))


def _known() -> dict[str, About]:
    found: dict[str, About] = {}
    for name, kind in get_type_hints(RunOptions, include_extras=True).items():
        for part in (kind, *getattr(kind, "__args__", ())):
            for meta in getattr(part, "__metadata__", ()):
                found[name] = meta.extra["about"]
    may_drift = ", ".join(name for name, known in found.items() if known.drift == "allowed")
    return {name: structs.replace(known, help=known.help.replace("{may_drift}", f"engines, {may_drift}")) for name, known in found.items()}


ABOUT = _known()
"""The options that commands have, by their fields."""
MAY_DRIFT = ("engines", *(name for name, known in ABOUT.items() if known.drift == "allowed"))
"""What may differ from the earlier sessions if the user allows it; with other params, input or seed it would be another run."""


def resume_options(folder: Path, *, retry_failed: bool = False, fail_on_error: float | None = None) -> RunOptions:
    """The options to resume the run in `folder` as it was started.

    Without `fail_on_error` the share is the one that it was started with.

    Raises `InputError` where there is no such run.
    """
    record = RunFile.read(folder)
    kept = record.options
    with boundary(InputError, f"{folder / 'run.json'}: $.options", foreign=msgspec.ValidationError):
        options = msgspec.convert(kept, RunOptions, dec_hook=lambda kind, value: kind(value))
    if any(isinstance(spec, OpenSpec) for spec in record.plan.engines.values()):
        what = "was started from Python with engines that are in no file; continue with"
        raise InputError(str(folder), f"{what} pipeline.solve(..., output={str(folder)!r}, resume=True)")
    check_served(folder, record)
    check_functions(folder, kept)
    share = options.fail_on_error if fail_on_error is None else fail_on_error
    return structs.replace(options, output=folder, resume=True, retry_failed=retry_failed, fail_on_error=share)


def check_functions(folder: Path, recorded: Mapping[str, Any]) -> None:
    """Raise `InputError` where the run in `folder` with these `recorded` options needs a function that this process does not know."""
    unknown = [f"the judge {name!r}" for name in recorded.get("judges", ()) if name not in stage_kinds()]
    unknown += [f"the grader {name!r}" for name in recorded.get("graders", ()) if name not in grader_names()]
    if unknown:
        what = f"was started from Python with {' and '.join(unknown)}, not known here; continue in Python, where they are defined, with"
        raise InputError(str(folder), f"{what} pipeline.solve(..., output={str(folder)!r}, resume=True)")


def check_served(folder: Path, old: RunFile) -> None:
    """Raise `UsageError` where the `old` run is a server's, which has no more problems."""
    if old.input.served:
        raise UsageError(f"{folder}: is the run of a server, which cannot be resumed")


def check_resume(options: RunOptions) -> None:
    """Raise `UsageError` where options about resuming do not fit together."""
    if unknown := [name for name in options.allow_drift if name not in MAY_DRIFT]:
        raise UsageError(f"--allow-drift {unknown[0]}: not allowed; choose from {', '.join(MAY_DRIFT)}")
    if options.resume and options.output is None:
        raise UsageError("--resume: name the run folder with --output")
    if (options.retry_failed or options.allow_drift) and not options.resume:
        raise UsageError(f"--{'retry-failed' if options.retry_failed else 'allow-drift'}: only when a run is resumed; add --resume")


class GraphKeywords(TypedDict, total=False):
    """Keyword arguments of `load_graph`: what a graph is compiled with in addition to its engines."""

    set: Mapping[str, Any] | None
    """Values for the graph's params by name, and for fields as `engines.ROLE.NAME` and `stages.STAGE.NAME`."""
    preset: str | Path | None
    """Settings of a paper, by name or as a file; `set` overrides them."""
    models: Mapping[str, str | Path] | None
    """The model of each role: a Hugging Face name, a folder, `bundled:NAME`, or the URL of a server. Engines are chosen that fit on this
    machine; with `engines` only the models in them are replaced."""
    judges: Sequence[JudgeFunction | StageKind]
    """Functions that the graph names as kinds of stages: what `pipeline.judge` made, or plain functions, by their own names."""


class RunKeywords(GraphKeywords, total=False):
    """What `solve` and `solve_async` take by keyword: the options of `pipeline run`, by the same words and with the same defaults."""

    engines: Engines | None
    """The engines of the graph's roles; by default those that the graph names."""
    graders: Sequence[Same | FunctionGrader]
    """Functions that grade answers: what `@pipeline.grader` made, or plain functions, by their own names. Problems name them in their
    column `grader`; a single one grades all problems that name none."""
    output: str | Path | None
    """The run folder to write, or its URL; without it nothing is written to disk."""
    columns: Columns | None
    limit: Limit | None
    random: int | Random | None
    shard: ShardName | None
    samples: Samples | None
    seed: Seed
    batch_size: BatchSize
    schedule: Schedule
    admission: AdmissionKind
    baseline: Baseline
    fail_on_error: FailedShare
    resume: Resume
    retry_failed: RetryFailed
    allow_drift: Sequence[str]
    replicas: Replicas
    """Those of this machine: processes, which know no judge that is a function here."""
