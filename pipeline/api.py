"""The Python API: graphs, engines and problems as paths, bundled names or values enter; finished chains and a `Result` leave.

No signal is handled, no argument of the process is read, nothing is printed and no logging is set up: the command line does
that. `solve` and `solve_async` carry out the same session as `pipeline run` and, with `output`, leave the same run folder.

    solve           waits for all chains; may be called in any thread, also in one whose event loop runs, such as a notebook's
    solve_async     gives chains as they finish, on asyncio or trio (with open engines: on asyncio); how far the run may be ahead of its
                    reader is bounded
    load_graph      the compiled plan of a graph, to look at or to solve with
"""

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from pipeline.data.in_memory import Frame, ProblemList, is_frame, rows_of
from pipeline.data.obtain import problem_files
from pipeline.data.part import Part, row_sample, shard_of
from pipeline.data.problems import Problem, Problems, open_problems
from pipeline.engine import Engine
from pipeline.engines.replay.recording import bindings
from pipeline.errors import Unfinished, UsageError
from pipeline.graph.loader import load_graph as load_spec
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.spec import EngineSpec
from pipeline.graph.yaml_file import setting
from pipeline.remote.folder import written_folder
from pipeline.remote.inputs import fetch_problems
from pipeline.remote.url import is_url
from pipeline.runtime.admission.admission import AdmissionName
from pipeline.runtime.rows import RowSink
from pipeline.runtime.schedule import ScheduleName
from pipeline.session.background import Background, TaskRun, ThreadRun
from pipeline.session.claim import claimed
from pipeline.session.execute import SessionResult
from pipeline.session.loop import on_asyncio, time_is_virtual
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.preflight import Preflight, compiled, notices, preflight
from pipeline.session.ready import Ready, take_up
from pipeline.session.run import nothing_to_do, solve_on
from pipeline.session.run import solve as open_and_solve
from pipeline.session.stop import Stop
from pipeline.session.stream import ChainStream
from pipeline.trace.columns import table_of
from pipeline.trace.events import CallRow, ChainRow, StepRow
from pipeline.trace.folder import PROBLEMS
from pipeline.trace.read import read_rows, read_table
from pipeline.trace.run_file import RunFile

if TYPE_CHECKING:
    import pandas
    import pyarrow

Graph: TypeAlias = str | Path | Mapping[str, Any] | Plan
"""A graph file, the name of a bundled graph, the content of a graph file as a mapping, or a plan of `load_graph`."""
Engines: TypeAlias = str | Path | Mapping[str, Mapping[str, Any] | EngineSpec | Engine]
"""An engines file, the name of a bundled one, or `replay:RUN`; or by role the fields of an engine as a mapping, a spec, or an
engine that the caller has opened and will close."""
Input: TypeAlias = str | Path | Iterable[Mapping[str, Any] | Problem] | Frame
"""A file of problems, by path or URL; or mappings with `problem` and, where known, `answer`, `problem_id`, `options`, `grader`; or a data
frame with such columns, of pandas, polars or Arrow."""
TABLES: dict[str, type[Struct]] = {"chains": ChainRow, "steps": StepRow, "calls": CallRow}
"""The tables of a result and the types of their rows."""
UNREAD = 256
"""While this many finished chains are unread, `solve_async` starts no further chain."""


class OpenSpec(EngineSpec, frozen=True, kw_only=True, tag="open"):
    """The spec that stands in a plan for an engine that the caller of the Python API has opened."""

    model: str = ""
    """A label for the trace."""


class Result(Struct, frozen=True, kw_only=True):
    """The outcome of `solve`. Iterating over it gives the chains in the order of the input."""

    chains: tuple[ChainRow, ...]
    """One row a chain: its answer, or what went wrong (`error_type`)."""
    run: RunFile
    """The options of the run, its totals, times and engines: the content of `run.json`."""
    folder: Path | None
    """The run folder, where `output` was given."""
    notices: tuple[str, ...] = ()
    """Sentences that a person should read: which foreign code ran, where replayed engines had their times from, what was found in the
    run folder that a run went on in, which engine cannot be interrupted, and that every draft was rejected."""
    steps: tuple[StepRow, ...] = ()
    """The committed steps, of a run without a run folder that was given `trace=True`; else empty."""
    calls: tuple[CallRow, ...] = ()
    """The calls to engines, of a run without a run folder that was given `trace=True`; else empty."""

    def __iter__(self) -> Iterator[ChainRow]:
        return iter(self.chains)

    def __len__(self) -> int:
        return len(self.chains)

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
            raise UsageError(f"there is no table {table!r}; a result has {', '.join(TABLES)}")
        if self.folder is not None:
            return read_table(self.folder, TABLES[table], table)
        rows: Sequence[Struct] = getattr(self, table)
        if not rows and table != "chains" and self.chains:
            raise UsageError(f"the {table} of this run were not kept; give trace=True, or a run folder with output=")
        return table_of(TABLES[table], rows)

    def to_pandas(self, table: str = "chains") -> "pandas.DataFrame":
        """The table `to_arrow` gives, as a data frame; needs pandas."""
        return self.to_arrow(table).to_pandas()


def load_graph(graph: Graph, engines: Engines | None = None, params: Mapping[str, Any] | None = None) -> Plan:
    """The compiled plan of `graph`, bound to `engines` or to those that the graph names.

    `params` replaces values of the graph's params by name, and engine fields as `engines.ROLE.NAME`. Raises `GraphError`.
    """
    if isinstance(graph, Plan):
        if engines is not None or params:
            raise UsageError("a plan is compiled already: give its engines and params to load_graph")
        return graph
    source = Path(graph) if isinstance(graph, str) else graph
    bound = bindings(Path(engines)) if isinstance(engines, str | Path) else engines and _roles(engines)
    backends = engine_specs() | {"open": OpenSpec}
    spec = load_spec(source, stage_specs(), backends, engines=bound, settings=_settings(params))
    return compiled(spec, str(source) if isinstance(source, Path) else "graph")


def solve(
    graph: Graph,
    problems: Input,
    *,
    engines: Engines | None = None,
    params: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    schedule: ScheduleName = "pipelined",
    admission: AdmissionName = "cache",
    order: str = "input",
    samples: int = 1,
    limit: int | None = None,
    sample: int | str | None = None,
    shard: str | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    modes: str | Path | None = None,
    calibration: str | Path | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    trace: bool = False,
) -> Result:
    """Solve `problems` with `graph` and wait for all chains.

    engines: the engines of the graph's roles; by default those that the graph names. Open engines are called from an event
        loop of the run's own; where they belong to a running event loop, use `solve_async` there. `max_in_flight` and the
        other fields that every engine has are set for them by `params`.
    params: values for the graph's params, and engine fields as `engines.ROLE.NAME`.
    batch_size: chains that live at once. schedule: `pipelined`, `lockstep` or `sequential`.
    admission: `cache` lets the youngest chains pause where not all contexts fit into the engines' caches; `batch` lets none.
    order: which chains begin first: `input`, `longest` (of the longest problems), or `longest:RUN` (of the problems whose thoughts
        were longest in the run folder RUN); with the latter two all problems are held in memory at once.
    samples: attempts at every problem. seed: every random number derives from it. shard: one of 8 parts, `"0/8"`; see `pipeline merge`.
    limit: only the first problems. sample: only so many, drawn at random, the same ones whatever `seed` is; `"N:SEED"` draws others.
    columns: the names of columns in `problems` by ours: `{"problem": "question"}`.
    modes: a finished run with `speculate: auto`, in whose modes the steps of this one are written (`pipeline run --modes`).
    calibration: with `speculate: auto`, a file that `pipeline calibrate` wrote, with whose costs the controller begins.
    output: the run folder to write, or its URL, as `pipeline run --output` does; without it nothing is written to disk. resume: go on with
        the run in that folder, if there is one.
    trace: keep the rows of steps and calls in memory too, where there is no run folder.

    Raises `UsageError` before an engine starts where an argument is wrong, `RunError` where no chain could start, and
    `Unfinished`, which holds what was finished, where the run could not go on.
    """
    options = _options(
        batch_size, schedule, admission, order, samples, limit, sample, shard, seed, columns, modes, calibration, output, resume
    )
    kept = _MemorySink(trace=trace)
    with _prepared(graph, problems, engines, params, options) as job:
        if job.ready is None:
            return _result(nothing_to_do(job.checked.claim).run, job.checked, None)
        run = ThreadRun(partial(job.carry_out, job.ready, kept), virtual=job.checked.virtual_time)
        try:
            ended = run.result()
        finally:
            run.close()
    result = _result(ended.run, job.checked, kept, (*job.ready.remarks, *ended.notices))
    if ended.error is not None:
        raise Unfinished(ended.error, result) from ended.error
    return result


async def solve_async(
    graph: Graph,
    problems: Input,
    *,
    engines: Engines | None = None,
    params: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    schedule: ScheduleName = "pipelined",
    admission: AdmissionName = "cache",
    order: str = "input",
    samples: int = 1,
    limit: int | None = None,
    sample: int | str | None = None,
    shard: str | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    modes: str | Path | None = None,
    calibration: str | Path | None = None,
    output: str | Path | None = None,
    resume: bool = False,
) -> AsyncIterator[ChainRow]:
    """Solve `problems` with `graph`; gives each chain as soon as it is finished and graded. The arguments are those of `solve`.

    While `UNREAD` chains wait to be read no further chain is started. To end the run early, leave the loop or cancel the task
    that reads: live chains end as cancelled then, engines that the run opened are closed, and a run folder can be resumed.
    Leaving the loop by `break` does so when the iterator is collected; `contextlib.aclosing` around it, at once. Open engines
    are called in the running event loop; others run in a thread of their own. Raises as `solve` does before
    the first chain, and at the end the `RunError` that kept the run from its own. Of a resumed run only new chains are given.
    """
    options = _options(
        batch_size, schedule, admission, order, samples, limit, sample, shard, seed, columns, modes, calibration, output, resume
    )
    opened = _opened(engines) is not None
    if opened and not on_asyncio():
        raise UsageError("engines: open engines are called in the running event loop, which has to be asyncio's; elsewhere give specs")
    virtual = opened and time_is_virtual()
    prepared = _prepared(graph, problems, engines, params, options, virtual=virtual)
    with ExitStack() as stack:
        prepare = partial(stack.enter_context, prepared)
        job = prepare() if virtual else await anyio.to_thread.run_sync(prepare)
        if job.ready is None:
            return
        # Where the reader is on the same virtual clock, the clock would jump while the run waits for the reader.
        chains = ChainStream(math.inf if virtual else UNREAD, inline=job.checked.virtual_time)
        run = _started(job, job.ready, chains, stack.pop_all())
        try:
            while (row := await chains.next()) is not None:
                yield row
            ended = await run.ended()
        finally:
            chains.close()
            run.stop()
            with anyio.CancelScope(shield=True):
                await run.aclose()
    if ended.error is not None:
        raise ended.error


class _Job(Struct, frozen=True, kw_only=True):
    """A checked call of `solve` or `solve_async`."""

    checked: Preflight
    ready: Ready | None
    """What the run starts from; None for one that is to be resumed and is finished."""
    engines: Mapping[str, Any] | None
    """Engines that the caller has opened, by role; None where the run opens its own."""

    async def carry_out(self, ready: Ready, sink: RowSink, stop: Stop) -> SessionResult:
        """Carry out the session in the running event loop."""
        checked, observer = self.checked, Observer(sink=sink)
        if checked.folder is not None and checked.old is None and isinstance(checked.problems, ProblemList):
            checked.problems.save(checked.folder / PROBLEMS)
        if self.engines is None:
            return await open_and_solve(ready, observer, stop)
        return await solve_on(self.engines, ready, observer, stop)


def _started(job: _Job, ready: Ready, chains: ChainStream, held: ExitStack) -> Background:
    """Start the run in the background; at its end `chains` is told that no more will come.

    `held` holds the run folder, which is let go when the run has ended: the iterator may be gone before that, as in an event loop that is
    being closed, where it cannot wait.
    """

    async def main(stop: Stop) -> SessionResult:
        with held:
            try:
                return await job.carry_out(ready, chains, stop)
            finally:
                chains.finish()

    return ThreadRun(main, virtual=job.checked.virtual_time) if job.engines is None else TaskRun(main)


def _options(
    batch_size: int,
    schedule: str,
    admission: str,
    order: str,
    samples: int,
    limit: int | None,
    sample: int | str | None,
    shard: str | None,
    seed: int,
    columns: Mapping[str, str] | None,
    modes: str | Path | None,
    calibration: str | Path | None,
    output: str | Path | None,
    resume: bool,
) -> dict[str, Any]:
    """The fields of `RunOptions` other than graph, engines and problems; raises `UsageError`."""
    if resume and output is None:
        raise UsageError("resume: name the run folder with output")
    return {
        "batch_size": batch_size,
        "schedule": schedule,
        "admission": admission,
        "order": order,
        "samples": samples,
        "limit": limit,
        "sample": None if sample is None else str(sample),
        "shard": shard,
        "seed": seed,
        "columns": dict(columns or {}),
        "modes": None if modes is None else str(modes),
        "calibration": None if calibration is None else Path(calibration),
        "output": output if output is None or (isinstance(output, str) and is_url(output)) else Path(output),
        "resume": resume,
    }


@contextmanager
def _prepared(
    graph: Graph,
    problems: Input,
    engines: Engines | None,
    params: Mapping[str, Any] | None,
    options: dict[str, Any],
    *,
    virtual: bool = False,
) -> Iterator[_Job]:
    """Hold the run folder until the end, and make all checks before an engine starts; raises `UsageError`.

    `virtual`: whether open engines are on virtual time.
    """
    opened, plan = _opened(engines), load_graph(graph, engines, params)
    said: list[str] = []
    with ExitStack() as stack:
        if isinstance(options["output"], str):
            folder = written_folder(options["output"], lambda sentence: None, new=not options["resume"])
            options = options | {"output": stack.enter_context(folder)}
        url = problems if isinstance(problems, str) and is_url(problems) else ""
        if url:
            [problems] = stack.enter_context(problem_files([url], fetch_problems, said.append))
        valid, found = _valid(graph, problems, engines, params, options, plan, url)
        found.origin = (*said, *found.origin)
        with claimed(valid, plan.name, on_disk=False) as claim:
            checked = preflight(valid, plan, found, claim, virtual=None if opened is None else virtual)
            yield _Job(checked=checked, ready=None if claim.nothing_to_do else take_up(checked), engines=opened)


def _valid(
    graph: Graph,
    problems: Input,
    engines: Engines | None,
    params: Mapping[str, Any] | None,
    options: dict[str, Any],
    plan: Plan,
    url: str,
) -> tuple[RunOptions, Problems]:
    """The options of a run and its problems, which came from `url` if that is not empty; raises `UsageError`."""
    values = {"graph": not isinstance(graph, str | Path), "engines": not isinstance(engines, str | Path | None) or isinstance(graph, Plan)}
    found = _problems(problems, options)
    given = options | {
        "graph": plan.name if values["graph"] else str(graph),
        "input": str(found.path if options["output"] is None or not isinstance(found, ProblemList) else options["output"] / PROBLEMS),
        "input_urls": (url,) if url and not url.startswith("file:") else (),
        "engines": None if values["engines"] or engines is None else str(engines),
        "settings": _settings(params),
        "output": None if options["output"] is None else str(options["output"]),
        "in_memory": tuple(name for name, value in values.items() if value),
    }
    try:
        return msgspec.convert(given, RunOptions, dec_hook=lambda kind, value: kind(value)), found
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise UsageError(f"{where.rstrip('`')}: {what[0].lower()}{what[1:]}") from error


def _problems(problems: Input, options: Mapping[str, Any]) -> Problems:
    limit, sample, shard = (options[name] for name in ("limit", "sample", "shard"))
    part = Part(
        limit=limit if isinstance(limit, int) else None,
        sample=None if sample is None else row_sample(sample),
        shard=None if shard is None else shard_of(shard),
    )
    if isinstance(problems, str | Path):
        return open_problems(Path(problems), options["columns"], part)
    rows: Any = rows_of(problems) if is_frame(problems) else problems
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise UsageError(f"problems: expected a path, an iterable of mappings or a data frame, got `{type(problems).__name__}`")
    # Of an iterable that never ends the limit takes what it needs; what is no limit is refused later, by name.
    return ProblemList(islice(rows, limit) if isinstance(limit, int) and limit > 0 else rows, options["columns"], part)


def _settings(params: Mapping[str, Any] | None) -> tuple[str, ...]:
    """`params` in the form of `--set`; raises `UsageError` for a value that no file could hold."""
    found = []
    for name, value in (params or {}).items():
        try:
            found.append(setting(name, value))
        except TypeError as error:
            raise UsageError(f"params[{name!r}]: {error}; expected a number, a text, a boolean or None") from error
    return tuple(found)


def _opened(engines: Engines | None) -> dict[str, Any] | None:
    """The engines where the caller has opened them, None where they are specs; raises `UsageError` where only some are open."""
    if not isinstance(engines, Mapping):
        return None
    opened = {role: engine for role, engine in engines.items() if not isinstance(engine, Mapping | EngineSpec)}
    if opened and len(opened) < len(engines):
        what = f"{', '.join(opened)} are open already and the others are specs"
        raise UsageError(f"engines: {what}; give engines that are open, or specs, for all roles")
    return opened or None


def _roles(engines: Mapping[str, Any]) -> dict[str, Any]:
    """`engines` in the form of an engines file."""
    return {role: _role(role, engine) for role, engine in engines.items()}


def _role(role: str, engine: Any) -> Any:
    if isinstance(engine, Mapping):
        return engine
    if isinstance(engine, EngineSpec):
        return msgspec.to_builtins(engine)
    if not hasattr(engine, "generate"):
        raise UsageError(f"engines: {role!r} is a `{type(engine).__name__}`; expected a mapping, a spec or an open engine")
    return {"backend": "open", "model": str(getattr(engine, "model", ""))}


class _MemorySink:
    """A `RowSink` that keeps rows in memory: chains, and with `trace` steps and calls too."""

    def __init__(self, *, trace: bool) -> None:
        self._trace = trace
        self.chains: list[ChainRow] = []
        self.steps: list[StepRow] = []
        self.calls: list[CallRow] = []

    def call(self, row: CallRow) -> None:
        if self._trace:
            self.calls.append(row)

    def step(self, row: StepRow) -> None:
        if self._trace:
            self.steps.append(row)

    def chain(self, row: ChainRow) -> None:
        self.chains.append(row)

    async def room(self) -> None:
        return


def _result(run: RunFile, checked: Preflight, kept: _MemorySink | None, remarks: Sequence[str] = ()) -> Result:
    """The result of a run; where there is a run folder, with all chains in it, those of earlier sessions included."""
    if checked.folder is not None:
        kept = _MemorySink(trace=False)
        kept.chains = read_rows(checked.folder, ChainRow, "chains")
    assert kept is not None, "a run without a folder has one session"
    return Result(
        chains=tuple(sorted(kept.chains, key=lambda row: (row.input_row, row.sample_index))),
        run=run,
        folder=checked.folder,
        notices=(*notices(checked.plan), *remarks),
        steps=tuple(kept.steps),
        calls=tuple(kept.calls),
    )
