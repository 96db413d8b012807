"""The Python API: graphs, engines and problems as paths, bundled names or values enter; finished chains and a `Result` leave.

No signal is handled, no argument of the process is read, nothing is printed and no logging is set up: the command line does
that. `solve` and `solve_async` carry out the same session as `pipeline run` and, with `output`, leave the same run folder.

    solve           waits for all chains; may be called in any thread, also in one whose event loop runs, such as a notebook's
    solve_async     gives chains as they finish, on asyncio; how far the run may be ahead of its reader is bounded
    load_graph      the compiled plan of a graph, to look at or to solve with
    RunKeywords     what they take by keyword
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import anyio
import anyio.to_thread
import msgspec
from anyio.from_thread import start_blocking_portal
from msgspec import Struct, structs

from pipeline.data.inputs import rows_in_memory
from pipeline.data.problems import Frame, Problem
from pipeline.engine import Engine
from pipeline.errors import MissingExtra, Unfinished, UsageError, nearest
from pipeline.grading.plugins import Same, name_of
from pipeline.graph.files import setting
from pipeline.graph.load import with_preset
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import register
from pipeline.graph.spec import EngineSpec
from pipeline.options import (
    AdmissionKind,
    Baseline,
    BatchSize,
    Columns,
    FailedShare,
    Limit,
    Random,
    Replicas,
    Resume,
    RetryFailed,
    RunOptions,
    Samples,
    Schedule,
    Seed,
    ShardName,
)
from pipeline.remote.folder import written_folder
from pipeline.remote.url import is_url
from pipeline.run.loop import loop_options
from pipeline.run.prepare import Prepared, load_plan, prepare
from pipeline.run.run import Observer, SessionResult, solver_of
from pipeline.run.run import solve as solve_run
from pipeline.run.stream import ChainStream, MemoryRows, in_thread, progress_shown
from pipeline.stages.base import StageKind
from pipeline.stages.build import flaw_in_contract
from pipeline.stages.function_judge import JudgeFunction, judge
from pipeline.store.folder import PROBLEMS
from pipeline.store.rows import TABLES, CallRow, ChainRow, StepRow, table_of
from pipeline.store.run_file import RunFile
from pipeline.store.store import read_rows, read_table
from pipeline.study.systems import System, run_baseline

if TYPE_CHECKING:
    import pandas
    import pyarrow

Graph: TypeAlias = str | Path | Mapping[str, Any] | Plan
"""A graph file, the name of a bundled graph, the content of a graph file as a mapping, or a plan of `load_graph`."""
Engines: TypeAlias = str | Path | Mapping[str, Mapping[str, Any] | EngineSpec | Engine]
"""An engines file, the name of a bundled one, or `replay:RUN`; or by role the fields of an engine as a mapping, a spec, or an
engine that the caller has opened and will close."""
Input: TypeAlias = str | Path | Sequence[Path] | Iterable[str | Mapping[str, Any] | Problem] | Frame
"""Problems: a file, folder or pattern by path or URL, `hf://OWNER/NAME`, or several paths; or the texts of problems; or mappings with
`problem` and, where known, `answer`, `problem_id`, `options`, `grader`; or a table with such columns, of pandas, polars or Arrow."""
UNREAD = 256
"""While this many finished chains are unread, `solve_async` starts no further chain."""


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
    graders: Sequence[Same]
    """Functions that grade answers, by the names that `pipeline.grader` gave them, else by their own. Problems name them in their column
    `grader`; a single one grades all problems that name none."""
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
    replicas: Replicas
    """Those of this machine: processes, which know no judge that is a function here."""


class Result(Struct, frozen=True, kw_only=True):
    """The outcome of `solve`. Iterating over it gives the chains in the order of the input."""

    chains: tuple[ChainRow, ...]
    """One row a chain: its answer, or what went wrong (`error_type`)."""
    run: RunFile
    """The options of the run, its totals, times and engines: the content of `run.json`."""
    folder: Path | None
    """The run folder, where `output` was given."""
    notices: tuple[str, ...] = ()
    """Notices for the user: which foreign code ran, which engines shared a GPU, what an engine could not do, and what was found in the
    folder of a resumed run."""
    baseline: "Result | None" = None
    """The outcome with the target alone, of a run with `baseline=True`."""
    steps: tuple[StepRow, ...] = ()
    """The committed steps, of a run without a run folder that was given `trace=True`; else empty."""
    calls: tuple[CallRow, ...] = ()
    """The calls to engines, of a run without a run folder that was given `trace=True`; else empty."""

    def __iter__(self) -> Iterator[ChainRow]:
        return iter(self.chains)

    def __len__(self) -> int:
        return len(self.chains)

    def __repr__(self) -> str:
        """One line, however many chains there are."""
        totals, right = self.run.totals, "" if self.accuracy is None else f", {self.accuracy:.1%} of {self.run.totals.graded:,} right"
        return f"<Result of {self.run.plan.name}: {totals.chains_done:,} done, {totals.chains_failed:,} failed{right}>"

    @property
    def accuracy(self) -> float | None:
        """Right chains over graded ones, 0 to 1, failed chains counted as wrong; None where none was graded."""
        totals = self.run.totals
        return totals.correct / totals.graded if totals.graded else None

    def to_arrow(self, table: str = "chains") -> "pyarrow.Table":
        """The rows of `chains`, `steps` or `calls`, with the units of their columns as field metadata.

        Raises `UsageError` for another name, and for steps and calls that were not kept.
        """
        if table not in TABLES:
            raise UsageError(f"there is no table {table!r}; a result has {', '.join(reversed(TABLES))}")
        if self.folder is not None:
            return read_table(self.folder, table)
        rows: Sequence[Struct] = getattr(self, table)
        if not rows and table != "chains" and self.chains:
            raise UsageError(f"the {table} of this run were not kept; give trace=True, or a run folder with output=")
        return table_of(TABLES[table], rows)

    def to_pandas(self, table: str = "chains") -> "pandas.DataFrame":
        """The table `to_arrow` gives, as a data frame; raises `MissingExtra`, which holds this `result`, without pandas."""
        found = self.to_arrow(table)
        try:
            import_module("pandas")
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas", self) from error
        return found.to_pandas()


def load_graph(graph: Graph, engines: Engines | None = None, **bound: Unpack[GraphKeywords]) -> Plan:
    """The compiled plan of `graph`, bound to `engines` or to those that the graph names. Raises `GraphError`."""
    return _compiled(graph, engines, _known(bound, GraphKeywords))[0]


def _compiled(graph: Graph, engines: Engines | None, given: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any], Sequence[str]]:
    """The plan of `graph` by the keywords that were `given`; by role the engines that were chosen for its `models`, and notices about them.
    Raises `GraphError` and `UsageError`."""
    if isinstance(graph, Plan):
        bound = {"engines": engines} | {name: given.get(name) for name in GraphKeywords.__annotations__}
        if found := [name for name, value in bound.items() if value]:
            raise UsageError(f"{found[0]}: the plan is already compiled; pass this to load_graph")
        return graph, {}, ()
    source, (settings, _) = Path(graph) if isinstance(graph, str) else graph, _settings(graph, given)
    for each in given.get("judges", ()):
        register(each if isinstance(each, StageKind) else judge(each))
    if not (models := given.get("models")):
        bound_engines = _roles(engines) if isinstance(engines, Mapping) else None if engines is None else Path(engines)
        return load_plan(source, bound_engines, settings), {}, ()
    if engines is not None:
        raise UsageError("models: engines are given; leave out one of the two, or set the model of one: engines.ROLE.model")
    place, most = import_module("pipeline.engines.placement").place, given.get("batch_size", 64)
    placed, notices = place([source], models, settings=settings, batch_size=most, replicas=given.get("replicas", 1))
    return load_plan(source, placed, settings), placed, notices


def solve(graph: Graph, problems: Input, *, trace: bool = False, progress: bool = False, **options: Unpack[RunKeywords]) -> Result:
    """Solve `problems` with `graph` and wait for all chains.

    options: those of `RunKeywords`. Open engines are called from an event loop of the run's own; where they belong to another one, give the
        specs from which the run opens its own. `max_in_flight` and the other fields that every engine has are set for them by `set`.
    trace: keep the rows of steps and calls in memory too, where there is no run folder.
    progress: show a bar, in a terminal or a notebook.

    With `baseline=True` the problems are then solved with the target alone, which is `Result.baseline`.

    Raises `UsageError` before an engine starts where an argument is wrong, `RunError` where no chain could start, and
    `Unfinished`, which holds what was finished, if the run had to stop.
    """
    with _called(graph, problems, options) as call:
        result = _solved(call, trace, progress)
        if call.baseline is None:
            return result
        alone = call.baseline.options if call.run.folder is None else call.baseline.next_to(call.run.folder)
        with prepare(alone, call.baseline.plan, call.run.problems, on_disk=False) as run:
            compared = _solved(structs.replace(call, run=run, baseline=None, said=call.baseline.notices), trace, progress)
    return structs.replace(result, baseline=compared)


async def solve_async(graph: Graph, problems: Input, **options: Unpack[RunKeywords]) -> AsyncIterator[ChainRow]:
    """Solve `problems` with `graph`; gives each chain as soon as it is finished and graded. The arguments are those of `solve`.

    The run has a thread and an event loop to itself, in which open engines are called too; asyncio runs the caller's. While `UNREAD`
    chains wait to be read no further chain is started, except on simulated time. To end the run early, leave the loop or cancel the task
    that reads: live chains end as cancelled then, engines that the run opened are closed, and a run folder can be resumed.
    Leaving the loop by `break` does so when the iterator is collected; `contextlib.aclosing` around it, at once. Raises as `solve` does
    before the first chain, and at the end the `RunError` that kept the run from its own. Of a resumed run only new chains are given.
    """
    if options.get("baseline"):
        raise UsageError("baseline: solve_async gives the chains of one run; use solve")
    if options.get("replicas", 1) != 1:
        raise UsageError("replicas: solve_async gives the chains of one process; use solve")
    with ExitStack() as stack:
        call = await anyio.to_thread.run_sync(stack.enter_context, _called(graph, problems, options))
        if call.run.nothing_to_do:
            return
        virtual = call.run.record.virtual_time  # its clock would jump while the run waits for the reader
        chains = ChainStream(asyncio.get_running_loop(), math.inf if virtual else UNREAD)
        async with in_thread(partial(_streamed, call, chains, stack.pop_all()), virtual=virtual) as ended:
            while (row := await chains.next()) is not None:
                yield row
            result = await ended
    if result.error is not None:
        raise result.error


class _SolveCall(Struct, frozen=True, kw_only=True):
    """A checked call of `solve` or `solve_async`."""

    run: Prepared
    engines: Mapping[str, Any] | None
    """Engines that the caller has opened, by role; None where the run opens its own."""
    baseline: System | None
    """The run of the target alone that follows."""
    said: Sequence[str]
    """Notices about the engines that were chosen, or that the target alone gets."""

    async def carry_out(self, observer: Observer) -> SessionResult:
        """Carry out the session in the running event loop."""
        solver = solver_of(self.run) if self.engines is None else partial(solve_run, engines=self.engines)
        return await solver(self.run, observer)


async def _streamed(call: _SolveCall, chains: ChainStream, held: ExitStack) -> SessionResult:
    """Carry out the session, whose chains go to their reader; the run folder, which is `held`, is let go at its end: the reader may be gone
    before that."""
    with held:
        try:
            return await call.carry_out(Observer(sink=chains))
        finally:
            chains.finish()


def _solved(call: _SolveCall, trace: bool, progress: bool) -> Result:
    """Solve and wait; raises `Unfinished`."""
    run, kept, told = call.run, MemoryRows(trace=trace and call.run.folder is None), [*call.said, *call.run.told]
    record, error = run.record, None
    if not run.nothing_to_do:
        observer = Observer(sink=kept, tell=told.append, watch=progress_shown if progress else Observer().watch)
        virtual = record.virtual_time and not run.on_replicas
        with start_blocking_portal("asyncio", loop_options(virtual)) as portal:
            ended = portal.call(call.carry_out, observer)
        record, error = ended.run, ended.error
    # Where there is a run folder it has all chains, those of earlier sessions included.
    chains = kept.chains if run.folder is None else read_rows(run.folder, ChainRow, "chains")
    result = Result(
        chains=tuple(sorted(chains, key=lambda row: (row.input_row, row.sample_index))),
        run=record,
        folder=run.folder,
        notices=tuple(told),
        steps=tuple(kept.steps),
        calls=tuple(kept.calls),
    )
    if error is not None:
        raise Unfinished(error, result) from error
    return result


def _known(options: Mapping[str, Any], keywords: type) -> dict[str, Any]:
    """The `options` that were given; raises `UsageError` for one that is none of the `keywords`."""
    for name in options:
        if name not in (known := keywords.__annotations__):
            near = nearest(name, known)
            raise UsageError(f"{name}: there is no such option; {f'did you mean `{near}`?' if near else 'see help(pipeline.solve)'}")
    return dict(options)


@contextmanager
def _called(graph: Graph, problems: Input, options: RunKeywords) -> Iterator[_SolveCall]:
    """Hold the run folder until the end, and make all checks before an engine starts; raises `UsageError`."""
    given = _known(options, RunKeywords)
    engines, output, paths = given.get("engines"), given.get("output"), _paths(problems)
    opened = _opened(engines)
    if given.get("replicas", 1) != 1:
        if opened is not None:
            raise UsageError("replicas: the engines are already open; give specs, of which each replica opens its own")
        if output is None:
            raise UsageError("replicas: their rows are written into a run folder; name one with output")
    plan, placed, said = _compiled(graph, engines, given)
    sources = {"graph": graph, "engines": graph if isinstance(graph, Plan) else engines}  # a plan has its engines
    files = {name: value for name, value in sources.items() if isinstance(value, str | Path | None)}
    held = written_folder(output, new=not given.get("resume")) if isinstance(output, str) and is_url(output) else nullcontext(output)
    with held as folder:
        values: dict[str, Any] = {"graph": plan.name, "engines": None, "planned_engines": placed, "output": folder, **files}
        values["in_memory"] = [name for name in sources if name not in files]
        values["input"] = paths or [str(Path(folder, PROBLEMS)) if folder else "problems"]
        chosen = _chosen(graph, given, values)
        rows = None if paths else rows_in_memory(problems, chosen.limit)
        baseline = run_baseline(chosen) if chosen.baseline else None
        with prepare(chosen, plan, rows, virtual=None if opened is None else False, on_disk=False) as run:
            yield _SolveCall(run=run, engines=opened, baseline=baseline, said=said)


def _chosen(graph: Graph, given: Mapping[str, Any], values: Mapping[str, Any]) -> RunOptions:
    """The options for the keywords that were `given`, some replaced by `values`; raises `UsageError`."""
    (settings, samples), random = _settings(graph, given), given.get("random")
    graders = [name_of(each) for each in given.get("graders", ())]
    meant = {
        "settings": settings,
        "columns": given.get("columns") or {},
        "samples": samples,
        "random": None if random is None else str(random),
        "grader": graders[0] if len(graders) == 1 else None,
    }
    try:
        return msgspec.convert({**given, **meant, **values}, RunOptions, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise UsageError(f"{where.rstrip('`')}: {what[0].lower()}{what[1:]}") from error


def _paths(problems: Input) -> list[str]:
    """The paths and URLs of `problems`; none where these are the problems themselves."""
    if isinstance(problems, str | Path):
        return [str(problems)]
    listed = problems if isinstance(problems, list | tuple) else ()
    return [str(each) for each in listed] if all(isinstance(each, Path) for each in listed) else []


def _settings(graph: Any, bound: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """The preset and the values of `set` in the form of `--set`, and the samples of each problem; raises `UsageError` for a value that no
    file could hold."""
    found = list[str]()
    for name, value in (bound.get("set") or {}).items():
        try:
            found.append(setting(name, value))
        except TypeError as error:
            raise UsageError(f"set[{name!r}]: {error}; expected a number, a text, a boolean or None") from error
    return with_preset(bound.get("preset"), [Path(graph) if isinstance(graph, str) else graph], found, bound.get("samples"))


def _opened(engines: Engines | None) -> dict[str, Any] | None:
    """The engines where the caller has opened them, None where they are specs; raises `UsageError` where only some are open."""
    if not isinstance(engines, Mapping):
        return None
    opened = {role: engine for role, engine in engines.items() if not isinstance(engine, Mapping | EngineSpec)}
    if opened and len(opened) < len(engines):
        what = f"{', '.join(opened)} are already open but the others are specs"
        raise UsageError(f"engines: {what}; give engines that are open, or specs, for all roles")
    return opened or None


def _roles(engines: Mapping[str, Any]) -> dict[str, Any]:
    """`engines` in the form of an engines file."""
    found = {role: msgspec.to_builtins(engine) if isinstance(engine, EngineSpec) else engine for role, engine in engines.items()}
    for role, engine in found.items():
        if not isinstance(engine, Mapping):
            if (flaw := flaw_in_contract(Engine, engine)) is not None:
                raise UsageError(f"engines: {role!r} {flaw}")
            found[role] = {"backend": "open", "model": str(getattr(engine, "model", ""))}
    return found
