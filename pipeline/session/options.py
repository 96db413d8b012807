"""The options of a run, their form in `run.json`, and whether they fit a run that is to be resumed."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
from msgspec import Meta, Struct, structs

from pipeline.bundled import find_file
from pipeline.data.in_memory import Frame
from pipeline.data.part import MOST_ROWS, Part, row_sample, shard_of
from pipeline.data.problems import Problem
from pipeline.engine import Engine
from pipeline.engines.replay.recording import PREFIX, replayed
from pipeline.errors import InputError, UsageError, boundary
from pipeline.grading.plugins import FunctionGrader, Same, grader_names
from pipeline.graph.loader import anywhere
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import stage_kinds
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.admission.admission import AdmissionName
from pipeline.runtime.schedule import ScheduleName
from pipeline.session.checks.order import LONGEST, earlier_run
from pipeline.session.resume import MAY_DRIFT
from pipeline.stages.base import StageKind
from pipeline.stages.function_judge import JudgeFunction
from pipeline.store.run_file import RunFile
from pipeline.text import storable

Graph: TypeAlias = str | Path | Mapping[str, Any] | Plan
"""A graph file, the name of a bundled graph, the content of a graph file as a mapping, or a plan of `load_graph`."""
Engines: TypeAlias = str | Path | Mapping[str, Mapping[str, Any] | EngineSpec | Engine]
"""An engines file, the name of a bundled one, or `replay:RUN`; or by role the fields of an engine as a mapping, a spec, or an
engine that the caller has opened and will close."""
Input: TypeAlias = str | Path | Sequence[Path] | Iterable[str | Mapping[str, Any] | Problem] | Frame
"""Problems: a file, folder or pattern by path or URL, `hf://OWNER/NAME`, or several paths; or the texts of problems; or mappings with
`problem` and, where known, `answer`, `problem_id`, `options`, `grader`; or a table with such columns, of pandas, polars or Arrow."""


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of a run, as the command line or the Python API gives them."""

    graph: Path
    """A graph file, or the name of a bundled graph."""
    input: Path
    """The file of problems, a folder of such files, or a pattern such as `data/*.jsonl`."""
    more_inputs: tuple[Path, ...] = ()
    """Further ones, whose problems follow."""
    input_urls: tuple[str, ...] = ()
    """Where the inputs came from: the URL of each that was downloaded, empty for the others; nothing where none was."""
    engines: Path | None = None
    """An engines file, the name of a bundled one, or `replay:RUN`; None: the engines that the graph names."""
    planned_engines: dict[str, dict[str, Any]] = {}
    """By role the fields of engines that were chosen for the models which the user named; they go before `engines`."""
    settings: tuple[str, ...] = ()
    """`NAME=VALUE` for params, `engines.ROLE.NAME=VALUE` for engines."""
    columns: dict[str, str] = {}
    """The column of the file for each field, where the user mapped any."""
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 64
    """Chains that live at once."""
    schedule: ScheduleName = "pipelined"
    admission: AdmissionName = "cache"
    """`cache`: chains pause where the contexts of all live ones do not fit into the engines' caches, and without a loop calls wait where
    those in flight fill them; `batch`: none ever does."""
    order: str = "input"
    """Which chains begin first: `input`: those of the first problems; `longest`: those of the longest problems; `longest:RUN`: those of
    the problems whose thoughts were longest in the run folder RUN."""
    samples: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Attempts at every problem."""
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] | None = None
    """Only the first `limit` rows of the input."""
    random: str | None = None
    """Only N rows of the input, drawn at random: `N`, or `N:SEED` for other rows than those of seed 0."""
    shard: str | None = None
    """Only the problems of this shard, `INDEX/COUNT`: one of `COUNT` runs that `pipeline runs merge` makes one run."""
    seed: int = 0
    """Every random number of the run derives from it."""
    cluster: str | None = None
    """Solve on the replicas of a cluster: `ray`, or `ray://HOST:PORT`; None: on engines of this process."""
    replicas: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many sets of engines the cluster starts, each with up to `batch_size` chains."""
    output: Path | None = None
    """The run folder; by default `runs/GRAPH-TIME`."""
    keep_input: bool = True
    """Keep the problems in the run folder, with all columns of the input: reports, exports and later sessions need the file no more."""
    resume: bool = False
    """Go on with the run in `output`, if there is one."""
    retry_failed: bool = False
    """On resume: solve failed chains again too."""
    fail_on_error: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The run counts as failed (exit code 3) only if a larger share of its chains failed."""
    allow_drift: tuple[str, ...] = ()
    """On resume: those of `MAY_DRIFT` that may differ from the earlier sessions."""
    baseline: bool = False
    """Solve the problems with the target alone as well, in a folder next to this run's."""
    in_memory: tuple[str, ...] = ()
    """Which of `graph` and `engines` are in no file, because a caller of the Python API gave them as values."""
    judges: tuple[str, ...] = ()
    """The judges of the graph that only the process which started the run knows."""
    graders: tuple[str, ...] = ()
    """The graders of the problems that only the process which started the run knows."""

    @property
    def bound_engines(self) -> Path | dict[str, dict[str, Any]] | None:
        """The engines in place of those that the graph names."""
        return self.planned_engines or self.engines

    @property
    def most_live(self) -> int:
        """How many chains live at once on one set of engines, at most."""
        return 1 if self.schedule == "sequential" else self.batch_size

    @property
    def inputs(self) -> tuple[Path, ...]:
        """All paths of problems."""
        return (self.input, *self.more_inputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        """How the inputs are called in `run.json`: by URLs, or the paths that were given."""
        urls = self.input_urls or ("",) * len(self.inputs)
        return tuple(url or str(path) for url, path in zip(urls, self.inputs, strict=True))

    @property
    def part(self) -> Part:
        """Which rows of the input are asked for; raises `UsageError`."""
        if self.random is not None and self.limit is not None:
            raise UsageError(f"--random {self.random} and --limit {self.limit}: give only one of them")
        sample = None if self.random is None else row_sample(self.random)
        return Part(limit=self.limit, sample=sample, shard=None if self.shard is None else shard_of(self.shard))


def recorded_options(options: RunOptions) -> dict[str, Any]:
    """The options as `run.json` holds them: with absolute paths, so that the run can be resumed from any working folder."""
    urls = options.input_urls or ("",) * len(options.inputs)
    first, *more = (url or str(path.absolute()) for url, path in zip(urls, options.inputs, strict=True))
    files = {"graph": str(options.graph), "input": first}
    if "graph" not in options.in_memory:
        files["graph"] = str(find_file(options.graph, "graph").absolute())
    if (run := replayed(options.engines)) is not None:
        files["engines"] = f"{PREFIX}{run}"
    elif options.engines is not None:
        files["engines"] = str(find_file(options.engines, "engines file").absolute())
    if (run := earlier_run(options.order)) is not None:
        files["order"] = f"{LONGEST}:{run.absolute()}"
    recorded: dict[str, Any] = {name: storable(path) for name, path in files.items()}
    recorded["more_inputs"] = tuple(map(storable, more))
    recorded["settings"] = tuple(anywhere(setting, Path(files["graph"])) for setting in options.settings)
    own = dict.fromkeys(("output", "resume", "retry_failed", "allow_drift"))
    return {name: value for name, value in (structs.asdict(options) | recorded).items() if name not in own and value is not None}


def resume_options(
    folder: Path, *, retry_failed: bool = False, input_file: Path | None = None, fail_on_error: float | None = None
) -> RunOptions:
    """The options to resume the run in `folder` as it was started, over its input, which may have moved to `input_file`.

    Without `fail_on_error` the share is the one that it was started with.

    Raises `InputError` where there is no such run.
    """
    kept = RunFile.read(folder).options
    with boundary(InputError, f"{folder / 'run.json'}: $.options", foreign=msgspec.ValidationError):
        options = msgspec.convert(kept, RunOptions, dec_hook=lambda kind, value: kind(value))
    if options.in_memory:
        what = f"was started from Python with {' and '.join(options.in_memory)} that are in no file"
        raise InputError(str(folder), f"{what}; continue with pipeline.solve(..., output={str(folder)!r}, resume=True)")
    check_functions(folder, kept)
    if input_file is not None:
        options = structs.replace(options, input=input_file, more_inputs=(), input_urls=())
    share = options.fail_on_error if fail_on_error is None else fail_on_error
    return structs.replace(options, output=folder, resume=True, retry_failed=retry_failed, fail_on_error=share)


def check_functions(folder: Path, recorded: Mapping[str, Any]) -> None:
    """Raise `InputError` where the run in `folder` with these `recorded` options needs a function that this process does not know."""
    unknown = [f"the judge {name!r}" for name in recorded.get("judges", ()) if name not in stage_kinds()]
    unknown += [f"the grader {name!r}" for name in recorded.get("graders", ()) if name not in grader_names()]
    if unknown:
        what = f"was started from Python with {' and '.join(unknown)}, not known here; continue in Python, where they are defined, with"
        raise InputError(str(folder), f"{what} pipeline.solve(..., output={str(folder)!r}, resume=True)")


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
    """Functions that the graph names as kinds of stages: what `@pipeline.judge` made, or plain functions, by their own names."""


class RunKeywords(GraphKeywords, total=False):
    """What `solve` and `solve_async` take by keyword: the options of `pipeline run`, by the same words and with the same defaults."""

    engines: Engines | None
    """The engines of the graph's roles; by default those that the graph names."""
    columns: Mapping[str, str] | None
    """The names of columns in the problems by field: `{"problem": "question"}`."""
    batch_size: int
    """Maximum number of chains in flight; default 64."""
    schedule: ScheduleName
    """`pipelined` (the default), `lockstep` or `sequential`."""
    admission: AdmissionName
    """`cache` (the default): the youngest chains pause while not all contexts fit into the engines' caches; `batch`: none does."""
    order: str
    """Which chains begin first: `input` (the default), `longest` (those of the longest problems), or `longest:RUN` (of the problems whose
    thoughts were longest in the run folder RUN); with the latter two all problems are held in memory at once."""
    samples: int | None
    """Samples of every problem; by default those of the preset, else 1."""
    limit: int | None
    """Only the first problems."""
    random: int | str | None
    """Only N problems drawn at random, the same ones for every `seed`; `"N:SEED"` draws others."""
    shard: str | None
    """One of 8 parts of the problems, `"0/8"`; see `pipeline runs merge`."""
    seed: int
    """Every random number derives from it; default 0."""
    graders: Sequence[Same | FunctionGrader]
    """Functions that grade answers: what `@pipeline.grader` made, or plain functions, by their own names. Problems name them in their
    column `grader`; a single one grades all problems that name none."""
    fail_on_error: float
    """The share of chains that may fail before `pipeline resume` counts the run as failed, and `Result.too_many_failed` is true; default
    0."""
    output: str | Path | None
    """The run folder to write, or its URL; without it nothing is written to disk."""
    keep_input: bool
    """Keep a copy of the problems in the run folder; default True."""
    resume: bool
    """Resume the run in `output`, if there is one."""
    retry_failed: bool
    """On resume: solve failed chains again."""
    allow_drift: Sequence[str]
    """On resume: what may differ from the run so far, such as `engines` and `batch_size`."""
