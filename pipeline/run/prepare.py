"""What a run starts from, before an engine starts: options enter; the run checked, its folder held, what earlier sessions left in it leave.

The folder is held before anything else about the run is checked, so that two processes never start a run in one folder.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, field, structs

from pipeline.data.files import Record
from pipeline.data.inputs import problem_files, said_anywhere
from pipeline.data.problems import Problem
from pipeline.data.reading import InputReading, read_files, read_problems
from pipeline.engines.models import bundled_name
from pipeline.engines.registry import notices
from pipeline.engines.sim.replay import bindings
from pipeline.errors import InputError, UsageError
from pipeline.files import storable
from pipeline.grading.plugins import grader_names, graders_of_this_process
from pipeline.graph.files import ARITH, REPLAY, find_file, replayed
from pipeline.graph.load import load_graph, source_of
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import registered_alone, stage_kinds
from pipeline.graph.rules import virtual_time
from pipeline.graph.spec import OpenSpec
from pipeline.options import ABOUT, MAY_DRIFT, RowSet, RunOptions
from pipeline.remote.inputs import fetch_problems
from pipeline.store.folder import FILE, hold_default, hold_output
from pipeline.store.kept_problems import Problems, keep_problems
from pipeline.store.resume import ResumeState, read_resume_state
from pipeline.store.run_file import RunFile, host, versions
from pipeline.store.store import KEPT, new_folder_id, shards_of, table_files

RUNS = Path("runs")
"""Where run folders are made that the user does not name."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A run whose options, plan and input have been checked, and what earlier sessions left in its folder, which this process holds."""

    options: RunOptions
    plan: Plan
    problems: Problems
    folder: Path | None = None
    """None: it writes nothing to disk."""
    record: RunFile
    """The content of `run.json` before this session."""
    on_replicas: bool = False
    """Replicas solve, here or on a cluster, and not engines of this process, as they do where the rows are there already."""
    resume_state: ResumeState = field(default_factory=ResumeState)
    """What earlier sessions left; empty for a new run."""
    changes: tuple[str, ...] = ()
    """How a resumed run differs from its earlier sessions, as clauses such as `batch_size is 8, was 4`."""
    nothing_to_do: bool = False
    """The run is to be resumed and is finished already."""
    starts_unix_ns: int | None = None
    """When the session starts on a simulated clock, ns UTC; None: now."""

    @property
    def told(self) -> tuple[str, ...]:
        """Notices for the user about the engines, the input, and what differs from earlier sessions."""
        return (*notices(self.plan.engines), *self.problems.remarks, *self.changes)

    def begins_unix_ns(self) -> int:
        """When a session that begins now does: after the one before, whose simulated hours may end after the real time."""
        return max(self.starts_unix_ns or time.time_ns(), (self.record.ended_unix_ns or 0) + 1)


def load_plan(graph: Path | Mapping[str, Any], engines: Path | Mapping[str, Any] | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file on an engines file or on `replay:RUN`, or of what such files hold. Raises `UsageError`."""
    return load_graph(graph, engines=bindings(engines), settings=settings)


@contextmanager
def prepare(
    options: RunOptions,
    plan: Plan,
    problems: Problems | Iterable[Record] | None = None,
    *,
    virtual: bool | None = None,
    command: Sequence[str] = (),
    on_disk: bool = True,
    starts_unix_ns: int | None = None,
) -> Iterator[Prepared]:
    """Hold the folder of `options` until the end, or a new one called after the plan and the time, and prepare the run in it.

    problems: those of a new run, or their rows; by default those of the files of its input. A resumed run has its own.
    virtual: whether time is virtual, where open engines decide that; None: the plan decides.
    on_disk: a run that has no `output` gets a folder.

    Raises `UsageError` for whatever is wrong, and where another process is at work in the folder.
    """
    known = recorded(options)
    virtual = virtual_time(plan.engines, plan.name) if virtual is None else virtual
    held: AbstractContextManager[Path | None] = hold_default(RUNS, plan.name) if on_disk else nullcontext()
    if options.output is not None:
        held = hold_output(options.output, resume=options.resume)
    with held as folder, TemporaryDirectory(prefix="problems-") if folder is None else nullcontext(folder) as place:
        old = RunFile.read(folder) if folder is not None and (folder / FILE).exists() else None
        kept = keep_input(options, Path(place), problems) if old is None else _kept(Path(place), old, known)
        counts = kept.counts(options.samples)
        if old is None:
            check_toys(plan, options, kept)
        begun = (Path(place) / "calls").exists()  # as in one process
        on_replicas = bool(shards_of(Path(place))) or ((options.cluster is not None or options.replicas > 1) and not begun)
        if on_replicas:
            check_replicas(options, plan, kept)
        run = Prepared(
            options=options,
            plan=plan,
            problems=kept,
            folder=folder,
            record=RunFile(
                folder_id=new_folder_id(),
                run_id=plan.name if folder is None else folder.name,
                status="running",
                options=known,
                source=source_of(plan),
                input=counts,
                virtual_time=virtual,
                versions=versions(),
                host=host(),
                command=[storable(argument) for argument in command],
            ),
            on_replicas=on_replicas,
            starts_unix_ns=starts_unix_ns,
        )
        yield run if old is None else _resumed(run, old)


def recorded(options: RunOptions) -> RunOptions:
    """The options as `run.json` holds them: with absolute paths, so that the run can be resumed from any working folder.

    Raises `UsageError` where options about resuming do not fit together, or there is no such file.
    """
    if options.resume and options.output is None:
        raise UsageError("--resume: name the run folder with --output")
    graph, engines = options.graph, options.engines
    if "graph" not in options.in_memory:
        graph = find_file(graph, "graph").absolute()
    if engines is not None:
        run = replayed(engines)
        engines = Path(f"{REPLAY}{run}") if run else find_file(engines, "engines file").absolute()
    names = options.input if options.served else map(said_anywhere, options.input)
    return structs.replace(options, graph=graph, engines=engines, input=tuple(names), output=None, resume=False, retry_failed=False)


def _resumed(run: Prepared, old: RunFile) -> Prepared:
    """The run with what earlier sessions left in its folder, whose record is `old`."""
    folder, now = run.folder, run.record.input
    assert folder is not None
    most = max(now.samples, old.input.samples)  # of a problem that a limit leaves out now as well
    record = structs.replace(run.record, folder_id=old.folder_id, input=structs.replace(now, samples=most))
    differences = list(drift(old, record))
    if refused := [clause for name, clause in differences if name not in MAY_DRIFT]:
        raise UsageError(f"{folder}: cannot be resumed: {'; '.join(refused)}; start a new run")
    if is_over(old, run.options.part, run.options.retry_failed):
        return structs.replace(run, record=structs.replace(old, options=record.options), nothing_to_do=True)
    state = read_resume_state(folder, old, most, run.options.retry_failed)
    *before, last = old.sessions
    if last.status == "running":  # it was killed: it ended with the last call in the trace
        last = structs.replace(last, status="killed", ended_unix_ns=max(last.started_unix_ns, state.last_call_unix_ns or 0))
    record, changes = structs.replace(record, sessions=(*before, last)), tuple(clause for _, clause in differences)
    return structs.replace(run, record=record, resume_state=state, changes=changes)


def is_over(old: RunFile, part: RowSet, retry_failed: bool) -> bool:
    """True if the run `old` is finished, with every chain of its input, and neither more rows nor failed chains are asked for."""
    finished = old.status == "finished" and old.totals.chains >= old.input.chains and old.options.part == part
    return finished and not (retry_failed and old.totals.chains_failed)


def _kept(folder: Path, old: RunFile, known: RunOptions) -> Problems:
    """The problems in the folder of the run `old`, up to the limit of the options as they are recorded. Raises `UsageError` where they name
    others, the run is a server's, or it needs functions that this process does not know."""
    if known.input != old.options.input:
        given, then = (", ".join(names) for names in (known.input, old.options.input))
        raise UsageError(f"{folder}: cannot be resumed: --input is {given}, was {then}; start a new run")
    if not table_files(folder, KEPT):
        raise InputError(str(folder), "lacks its problems.parquet; put it back from a copy, or start a new run")
    if old.options.served:
        raise UsageError(f"{folder}: is the run of a server, which cannot be resumed")
    kept = Problems(folder, known.input[0], old.input.sha256, known.limit)
    unknown = [f"the judge {name!r}" for name in sorted(_kinds(old.plan) - stage_kinds().keys())]
    unknown += [f"the grader {name!r}" for name in sorted(kept.graders.difference(grader_names()))]
    if unknown:
        raise _only_from_python(folder, f"{' and '.join(unknown)}, not known here; continue in Python, where they are defined, with")
    return kept


def keep_input(options: RunOptions, folder: Path, problems: Problems | Iterable[Record] | None = None) -> Problems:
    """The problems of a new run, put into its folder."""
    columns, part, told = options.columns, options.part, list[str]()
    if isinstance(problems, Problems):
        return problems.copied(folder, part)
    with problem_files(options.input if problems is None else (), fetch_problems, told.append) as files:
        if problems is not None:
            reading = InputReading("problems", problems, columns, part, grader=options.grader)
        else:
            reading = read_files(files, columns, part, names=options.input, grader=options.grader)
        return keep_problems(folder, reading, part.limit, told)


def check_toys(plan: Plan, options: RunOptions, problems: Problems) -> None:
    """Raise `UsageError` where the engines are the graph's own, their models the bundled ones, and a problem may be none of
    `datasets/arith`."""
    chosen = options.bound_engines is not None or "engines" in options.in_memory
    if chosen or not all(bundled_name(str(getattr(spec, "model", ""))) for spec in plan.engines.values()):
        return
    known = {item.problem for path in ARITH.glob("*.parquet") for item in read_problems(path) if isinstance(item, Problem)}
    foreign = (item.row for item in problems if isinstance(item, Problem) and item.problem not in known)
    where = "serve" if options.served else next((f"{options.input[0]}, row {row}" for row in foreign), None)
    if where is not None:
        what = f"{where}: the bundled toy models solve only the problems of `arith`"
        raise UsageError(f"{what}; pass --model ROLE=NAME for each role, or --engines tiny to have the toys try")


def check_replicas(options: RunOptions, plan: Plan, problems: Problems) -> None:
    """Raise `UsageError` if a run needs this process, or on a cluster engines of this machine."""
    other = "--replicas" if options.cluster is None else "--cluster"
    if options.schedule == "lockstep":
        raise UsageError(f"--schedule lockstep cannot be combined with {other}: it synchronises all chains in one process; use pipelined")
    alone = [f"the judge {name!r}" for name in _kinds(plan) & registered_alone()]
    if alone := alone + [f"the grader {name!r}" for name in problems.graders & graders_of_this_process()]:
        what = f"{alone[0]} is known to this process alone, and replicas are others"
        raise UsageError(f"{other}: {what}; make it a plugin (guides/custom-judge in the documentation)")
    if options.cluster is not None and any(fields.get("backend") in ("vllm", "torch") for fields in options.planned_engines.values()):
        what = "chooses engines for the GPUs of this machine, but replicas run on others"
        raise UsageError(f"--model: {what}; write an engines file, and pass it with --engines")


def _kinds(plan: Plan) -> set[str]:
    return {node.spec.kind for node in plan.stages()}


def resume_options(folder: Path) -> RunOptions:
    """The options to resume the run in `folder` as it was started. Raises `InputError` where there is no such run."""
    old = RunFile.read(folder)
    if any(isinstance(spec, OpenSpec) for spec in old.plan.engines.values()):
        raise _only_from_python(folder, "engines that are in no file; continue with")
    return structs.replace(old.options, output=folder, resume=True)


def _only_from_python(folder: Path, what: str) -> InputError:
    return InputError(str(folder), f"was started from Python with {what} pipeline.solve(..., output={str(folder)!r}, resume=True)")


def drift(old: RunFile, new: RunFile) -> Iterator[tuple[str, str]]:
    """Differences between two runs, as clauses, each with the name of what differs."""
    before, now = old.plan, new.plan
    if (before.block, before.prompts) != (now.block, now.prompts):  # a bundled graph may have got a param since, of no effect
        changes = [*_changes("param ", before.params, now.params)]
        yield from (("graph", clause) for clause in changes or ["the graph has changed"])
    for role in sorted(before.engines.keys() | now.engines.keys()):
        for clause in _changes(f"engines.{role}.", old.engines.get(role, {}), new.engines.get(role, {})):
            # Of another model recorded token ids would mean another text.
            yield "model" if clause.startswith(f"engines.{role}.model ") else "engines", clause
    if old.input.sha256 != new.input.sha256:
        yield "input", "the problems have changed"
    for name, known in ABOUT.items():
        if known.drift is not None:
            for clause in _changes("", {name: getattr(old.options, name)}, {name: getattr(new.options, name)}):
                yield name, clause


def _changes(article: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{article}{name} is {new.get(name)}, was {old.get(name)}"
