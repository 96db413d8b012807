"""What a run starts from, before an engine starts: options enter; the run checked, its folder held, what earlier sessions left in it leave.

The folder is held before anything else about the run is checked, so that two processes never start a run in one folder.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, field, structs

from pipeline.data.files import Record
from pipeline.data.inputs import problem_files, said_anywhere
from pipeline.data.problems import Problem
from pipeline.data.reading import InputReading, read_files, read_problems
from pipeline.engines.models import bundled_name
from pipeline.engines.registry import virtual_time
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.replay import bindings
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import InputError, UsageError
from pipeline.grading.plugins import GRADER_KINDS, grader_names, graders_of_this_process
from pipeline.graph.files import ARITH, REPLAY, find_file, replayed
from pipeline.graph.load import load_graph, source_of
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import registered_alone, stage_kinds
from pipeline.graph.spec import OpenSpec
from pipeline.options import ABOUT, MAY_DRIFT, RunOptions
from pipeline.remote.inputs import fetch_problems
from pipeline.store.folder import FILE, hold_default, hold_output
from pipeline.store.kept_problems import Problems, keep_problems, solved_problems
from pipeline.store.resume import ResumeState, read_resume_state
from pipeline.store.run_file import RunFile, host, versions
from pipeline.store.store import KEPT, has_table, new_folder_id, shards_of
from pipeline.text import storable

RUNS = Path("runs")
"""Where run folders are made that the user does not name."""
CHOSEN_HERE = ("vllm", "torch")
"""Backends whose engines were chosen for the GPUs of this machine."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A run whose options, plan and input have been checked, and what earlier sessions left in its folder, which this process holds."""

    options: RunOptions
    plan: Plan
    problems: Problems
    virtual_time: bool
    folder: Path | None = None
    """None for a run that writes nothing to disk."""
    record: RunFile
    """The content of `run.json` before this session."""
    resume_state: ResumeState = field(default_factory=ResumeState)
    """What earlier sessions left; empty for a new run."""
    changes: tuple[str, ...] = ()
    """How a resumed run differs from its earlier sessions, as clauses such as `batch_size is 8, was 4`."""
    nothing_to_do: bool = False
    """The run is to be resumed and is finished already; then its folder is not held."""
    starts_unix_ns: int | None = None
    """When the session starts on a simulated clock, ns UTC; None: now."""

    def begins_unix_ns(self) -> int:
        """When a session that begins now does: after the one before, whose simulated hours may end after the real time."""
        return max(self.starts_unix_ns or time.time_ns(), (self.record.ended_unix_ns or 0) + 1)

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Let a new run be in its folder, as `starting`, while the body opens its engines; where it never begins it is gone again."""
        folder = self.folder
        if folder is None or self.record.sessions:
            yield
            return
        structs.replace(self.record, status="starting").write(folder)
        try:
            yield
        finally:
            if RunFile.read(folder).status == "starting":
                (folder / FILE).unlink(missing_ok=True)


def load_plan(graph: Path | Mapping[str, Any], engines: Path | Mapping[str, Any] | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file on an engines file or on `replay:RUN`, or of what such files hold. Raises `UsageError`, also where
    its simulated engines do not fit together."""
    plan = load_graph(graph, engines=engines if isinstance(engines, Mapping) else bindings(engines), settings=settings)
    devices_of({role: engine for role, engine in plan.engines.items() if isinstance(engine, SimSpec)})
    return plan


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
    check_resume(options)
    virtual = virtual_time(plan.engines, str(options.graph)) if virtual is None else virtual
    with _held(options, plan.name, on_disk) as folder:
        there = RunFile.read(folder) if folder is not None and (folder / FILE).exists() else None
        # Where the process was killed while its engines were being opened there is nothing to resume from but the problems.
        old = None if there is None or there.status == "starting" else there
        known = recorded(options)
        with TemporaryDirectory(prefix="problems-") if folder is None else nullcontext(folder) as place:
            kept = _read(options, Path(place), problems) if there is None else _problems_in(Path(place), there, known)
            if old is None:
                check_toys(plan, options, kept)
            else:
                check_resumable(Path(place), old)
            if on_replicas(options):
                check_replicas(options, plan, kept)
            record = _new_record(known, plan, kept, plan.name if folder is None else folder.name, virtual=virtual, command=command)
            run = Prepared(
                options=options,
                plan=plan,
                problems=kept,
                virtual_time=virtual,
                folder=folder,
                record=record,
                starts_unix_ns=starts_unix_ns,
            )
            yield run if old is None else _resumed(run, old)


def _resumed(run: Prepared, old: RunFile) -> Prepared:
    """The run with what earlier sessions left in its folder, whose record is `old`."""
    folder, now = run.folder, run.record.input
    assert folder is not None
    most = max(now.samples, old.input.samples)  # of a problem that a limit leaves out now as well
    record = structs.replace(run.record, folder_id=old.folder_id, input=structs.replace(now, samples=most))
    changes = allowed_changes(folder, old, record)
    if is_over(old, run.options):
        return structs.replace(run, record=old, nothing_to_do=True)
    state = read_resume_state(folder, old, most, run.options.retry_failed)
    *before, last = old.sessions
    if last.status == "running":  # it was killed: it ended with the last call in the trace
        last = structs.replace(last, status="killed", ended_unix_ns=max(last.started_unix_ns, state.last_call_unix_ns or 0))
    return structs.replace(run, record=structs.replace(record, sessions=(*before, last)), resume_state=state, changes=changes)


@contextmanager
def _held(options: RunOptions, name: str, on_disk: bool) -> Iterator[Path | None]:
    """The folder of a run, held until the end."""
    folder = options.output
    if folder is None:
        with hold_default(RUNS, name) if on_disk else nullcontext() as made:
            yield made
        return
    # Nothing is written into the folder of a run that is over: it may be read-only.
    over = options.resume and (folder / FILE).exists() and is_over(RunFile.read(folder), options)
    with nullcontext() if over else hold_output(folder, FILE, resume=options.resume):
        yield folder


def is_over(old: RunFile, options: RunOptions) -> bool:
    """True if the run `old` is finished, with every chain of its input, and `options` ask for no more."""
    if (options.retry_failed and old.totals.chains_failed) or old.status != "finished" or old.options.part != options.part:
        return False
    return old.totals.chains >= old.input.chains


def _problems_in(folder: Path, there: RunFile, known: RunOptions) -> Problems:
    """The problems in the folder of a run that has begun there, up to the limit of the options as they are recorded."""
    if known.input != there.options.input:
        given, then = (", ".join(names) for names in (known.input, there.options.input))
        raise UsageError(f"{folder}: cannot be resumed: --input is {given}, was {then}; start a new run")
    if not has_table(folder, KEPT):
        raise InputError(str(folder), "lacks its problems.parquet; put it back from a copy, or start a new run")
    return Problems(folder, known.input[0], there.input.sha256, known.limit)


def _read(options: RunOptions, folder: Path, problems: Problems | Iterable[Record] | None) -> Problems:
    """The problems of a new run, put into its folder."""
    columns, part, told = options.columns, options.part, list[str]()
    if isinstance(problems, Problems):
        return problems.copied(folder, part)
    if problems is not None:
        return keep_problems(folder, InputReading("problems", problems, columns, part, grader=options.grader), part.limit)
    with problem_files(options.input, fetch_problems, told.append) as files:
        return keep_problems(folder, read_files(files, columns, part, names=options.input, grader=options.grader), part.limit, told)


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


def on_replicas(options: RunOptions) -> bool:
    """True if replicas solve, here or on a cluster, and not engines of this process, as they do where the rows are there already."""
    if options.output is not None and shards_of(options.output):
        return True
    begun = options.output is not None and (options.output / "calls").exists()
    return (options.cluster is not None or options.replicas > 1) and not begun


def check_replicas(options: RunOptions, plan: Plan, problems: Problems) -> None:
    """Raise `UsageError` if a run needs this process, or on a cluster engines of this machine."""
    other = "--replicas" if options.cluster is None else "--cluster"
    if options.schedule == "lockstep":
        raise UsageError(f"--schedule lockstep cannot be combined with {other}: it synchronises all chains in one process; use pipelined")
    alone = [f"the judge {name!r}" for name in _kinds(plan) & registered_alone()]
    if alone := alone + [f"the grader {name!r}" for name in problems.graders & graders_of_this_process()]:
        what = f"{alone[0]} is known to this process alone, and replicas are others"
        raise UsageError(f"{other}: {what}; make it a plugin (guides/custom-judge in the documentation)")
    if options.cluster is not None and any(fields.get("backend") in CHOSEN_HERE for fields in options.planned_engines.values()):
        what = "chooses engines for the GPUs of this machine, but replicas run on others"
        raise UsageError(f"--model: {what}; write an engines file, and pass it with --engines")


def _kinds(plan: Plan) -> set[str]:
    return {node.spec.kind for node in plan.stages()}


def recorded(options: RunOptions) -> RunOptions:
    """The options as `run.json` holds them: with absolute paths, so that the run can be resumed from any working folder."""
    graph, engines = options.graph, options.engines
    if "graph" not in options.in_memory:
        graph = find_file(graph, "graph").absolute()
    if engines is not None:
        run = replayed(engines)
        engines = Path(f"{REPLAY}{run}") if run else find_file(engines, "engines file").absolute()
    return structs.replace(
        options,
        graph=Path(storable(str(graph))),
        engines=None if engines is None else Path(storable(str(engines))),
        input=tuple(storable(each if options.served else said_anywhere(each)) for each in options.input),
        output=None,
        resume=False,
        retry_failed=False,
    )


def _new_record(options: RunOptions, plan: Plan, problems: Problems, run_id: str, *, virtual: bool, command: Sequence[str]) -> RunFile:
    """The `run.json` of a new run, before its first session, with `options` as they are recorded."""
    return RunFile(
        folder_id=new_folder_id(),
        run_id=run_id,
        status="running",
        options=options,
        source=source_of(plan),
        input=problems.counts(options.samples),
        virtual_time=virtual,
        versions=versions(),
        host=host(),
        command=[storable(argument) for argument in command],
    )


def resume_options(folder: Path, *, retry_failed: bool = False, fail_on_error: float | None = None) -> RunOptions:
    """The options to resume the run in `folder` as it was started; `fail_on_error` replaces the recorded share.

    Raises `InputError` where there is no such run.
    """
    old = RunFile.read(folder)
    if any(isinstance(spec, OpenSpec) for spec in old.plan.engines.values()):
        raise _only_from_python(folder, "engines that are in no file; continue with")
    check_resumable(folder, old)
    share = old.options.fail_on_error if fail_on_error is None else fail_on_error
    return structs.replace(old.options, output=folder, resume=True, retry_failed=retry_failed, fail_on_error=share)


def check_resumable(folder: Path, old: RunFile) -> None:
    """Raise `UsageError` where the run `old` in `folder` is a server's, which has no more problems, or needs functions that this process
    does not know."""
    if old.options.served:
        raise UsageError(f"{folder}: is the run of a server, which cannot be resumed")
    unknown = [f"the judge {name!r}" for name in sorted(_kinds(old.plan) - stage_kinds().keys())]
    graders = solved_problems(folder, old).graders.difference(GRADER_KINDS, grader_names())
    if unknown := unknown + [f"the grader {name!r}" for name in sorted(graders)]:
        raise _only_from_python(folder, f"{' and '.join(unknown)}, not known here; continue in Python, where they are defined, with")


def _only_from_python(folder: Path, what: str) -> InputError:
    return InputError(str(folder), f"was started from Python with {what} pipeline.solve(..., output={str(folder)!r}, resume=True)")


def check_resume(options: RunOptions) -> None:
    """Raise `UsageError` where options about resuming do not fit together."""
    if options.resume and options.output is None:
        raise UsageError("--resume: name the run folder with --output")
    if options.retry_failed and not options.resume:
        raise UsageError("--retry-failed: only when a run is resumed; add --resume")


def allowed_changes(folder: Path, old: RunFile, new: RunFile) -> tuple[str, ...]:
    """What a resumed run changes, as clauses; raises `UsageError` that names everything that it may not change."""
    found = list(drift(old, new))
    if refused := [clause for name, clause in found if name not in MAY_DRIFT]:
        raise UsageError(f"{folder}: cannot be resumed: {'; '.join(refused)}; start a new run")
    return tuple(clause for _, clause in found)


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
