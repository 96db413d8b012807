"""What a run starts from, before an engine starts: options enter; the run checked, its folder held, what earlier sessions left in it leave.

The folder is held before anything else about the run is checked, so that two processes never start a run in one folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from pipeline.data.many_files import files_of, open_files
from pipeline.data.problems import Fingerprint, Problems
from pipeline.data.rows import Flaw
from pipeline.engines.registry import virtual_time
from pipeline.engines.replay.recording import bindings
from pipeline.errors import InputError
from pipeline.files import is_draft
from pipeline.grading.plugins import graders_of_this_process, takes_problem
from pipeline.graph.compiler import compile_graph
from pipeline.graph.loader import load_graph
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, registered_alone, stage_specs
from pipeline.graph.spec import GraphSpec
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.resume_state import ResumeState
from pipeline.session.checks import Thoughts, check_drift, check_replay, check_replicas, earlier_thoughts, resolved, start_order
from pipeline.session.notices import strange_problems, with_thoughts
from pipeline.session.options import RunOptions, check_functions, check_resume, recorded_options
from pipeline.session.resume import forget_mismatched, read_resume_state
from pipeline.store.check import check_chains
from pipeline.store.folder import BEFORE_A_RUN, LOCK, hold, hold_default, hold_output
from pipeline.store.kept_problems import kept_problems
from pipeline.store.run_file import FILE, RunFile, RunInput, Session, host, versions
from pipeline.store.run_store import RunStore, new_folder_id
from pipeline.text import storable

RUNS = Path("runs")
"""Where run folders are made that the user does not name."""


class RunSettings(Struct, frozen=True, kw_only=True):
    """The part of a run that each process that solves its chains has to know."""

    plan: Plan
    options: RunOptions
    run_id: str
    virtual_time: bool


class Prepared(Struct, frozen=True, kw_only=True):
    """A run whose options, plan and input have been checked, and what earlier sessions left in its folder, which this process holds."""

    options: RunOptions
    plan: Plan
    problems: Problems
    fingerprint: Fingerprint
    virtual_time: bool
    earlier_thoughts: Thoughts = {}
    """Lengths of thoughts by which chains are put in order."""
    folder: Path | None = None
    """None for a run that writes nothing to disk."""
    old: RunFile | None = None
    """The `run.json` of the run to resume; None for a new run."""
    record: RunFile
    """The content of `run.json`, with the earlier sessions and, once it has begun, with this one."""
    resume_state: ResumeState = field(default_factory=ResumeState)
    """What earlier sessions left; empty for a new run."""
    rewritten_bytes: int = 0
    """Bytes of write-ahead files that were made parts, and of parts without the rows of chains that begin anew."""
    remarks: tuple[str, ...] = ()
    """Notices for the user about the input, and what was found in the folder."""
    nothing_to_do: bool = False
    """The run is to be resumed and is finished already; then its folder is not held."""

    @property
    def chains(self) -> int:
        """The number of chains of the run."""
        return self.fingerprint.rows * self.options.samples

    @property
    def settings(self) -> RunSettings:
        """The part that each replica of the run has to know."""
        return RunSettings(plan=self.plan, options=self.options, run_id=self.record.run_id, virtual_time=self.virtual_time)

    @property
    def session(self) -> Session:
        """The session that is carried out, once it has begun."""
        return self.record.sessions[-1]

    def feed(self) -> InputFeed:
        """The chains of the run in their order."""
        order = start_order(self.options.order, self.options.samples, self.resume_state.is_over, self.earlier_thoughts)
        return InputFeed(self.problems.unchanged(), order, threads=not self.virtual_time)

    def problem_rows(self) -> dict[int, Mapping[str, Any]]:
        """The whole rows of the problems by their numbers, if a grader of this process wants them."""
        if not any(map(takes_problem, (*self.problems.graders, self.problems.grader))):
            return {}
        return {item.row: record for item, record in self.problems.with_records() if not isinstance(record, Flaw)}

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Let a new run be in its folder, as `starting`, while the body opens its engines; where it never begins it is gone again."""
        folder = self.folder
        if folder is None or self.old is not None:
            yield
            return
        structs.replace(self.record, status="starting").write(folder)
        try:
            yield
        finally:
            if RunFile.read_known(folder).status == "starting":
                (folder / FILE).unlink(missing_ok=True)


def load_plan(graph: Path, engines: Path | Mapping[str, Any] | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file on an engines file, on what one would hold, or on `replay:RUN`; raises `UsageError`."""
    bound = engines if isinstance(engines, Mapping) else bindings(engines)
    return compiled(load_graph(graph, stage_specs(), engine_specs(), engines=bound, settings=settings), str(graph))


def compiled(spec: GraphSpec, where: str) -> Plan:
    """The plan of a graph, whose file is `where`, with all that its engines take from recorded runs and files; raises `UsageError`."""
    return with_thoughts(resolved(compile_graph(spec, where)))


@contextmanager
def prepared(
    options: RunOptions,
    plan: Plan,
    problems: Problems | None = None,
    *,
    virtual: bool | None = None,
    command: Sequence[str] = (),
    on_disk: bool = True,
    said: Sequence[str] = (),
    grader: str | None = None,
) -> Iterator[Prepared]:
    """Hold the folder of `options` until the end, or a new one called after the plan and the time, and prepare the run in it.

    problems: by default those of the input, or where that is gone, what the run that is to be resumed has kept of it.
    virtual: whether time is virtual, where open engines decide that; None: the plan decides.
    on_disk: a run that has no `output` gets a folder.
    said: notices about the input; grader: how problems are graded that do not say it.

    Raises `UsageError` for whatever is wrong, and where another process is at work in the folder.
    """
    check_resume(options)
    with _held(options, plan.name, on_disk=on_disk) as (folder, old):
        found = _problems_of(options, folder, old) if problems is None else problems
        found.origin, found.grader = (*said, *found.origin), grader
        yield prepare(options, plan, found, folder, old, virtual=virtual, command=command)


def prepare(
    options: RunOptions,
    plan: Plan,
    problems: Problems,
    folder: Path | None,
    old: RunFile | None = None,
    *,
    virtual: bool | None = None,
    command: Sequence[str] = (),
    fingerprint: Fingerprint | None = None,
    earlier: Thoughts | None = None,
) -> Prepared:
    """Prepare a run in a `folder` that this process holds; `fingerprint` and `earlier` thoughts where they are known already."""
    if options.cluster is not None:
        check_replicas(options)
    if folder is not None and old is not None:
        check_functions(folder, old.options)
    fingerprint = problems.check() if fingerprint is None else fingerprint
    options = structs.replace(
        options,
        judges=tuple(sorted({node.spec.kind for node in plan.stages()} & registered_alone())),
        graders=tuple(sorted(problems.graders & graders_of_this_process())),
    )
    check_replay(plan, options, fingerprint)
    virtual = virtual_time(plan.engines, str(options.graph)) if virtual is None else virtual
    run_id = plan.name if folder is None else folder.name
    record = _new_record(options, plan, fingerprint, run_id, virtual=virtual, command=command)
    found = Prepared(
        options=options,
        plan=plan,
        problems=problems,
        fingerprint=fingerprint,
        virtual_time=virtual,
        earlier_thoughts=earlier_thoughts(options.order) if earlier is None else earlier,
        folder=folder,
        old=old,
        record=record,
        remarks=(*problems.remarks, *strange_problems(plan, problems)),
    )
    return found if folder is None or old is None else _taken_up(found, folder, old)


def _taken_up(run: Prepared, folder: Path, old: RunFile) -> Prepared:
    """The run with what earlier sessions left in its folder; write-ahead files are made parts first."""
    run = structs.replace(run, record=structs.replace(run.record, folder_id=old.folder_id))
    check_drift(folder, old, run.record, run.options.allow_drift)
    check_chains(folder)
    if is_over(old, run.options):
        return structs.replace(run, nothing_to_do=True)
    rewritten = RunStore(folder).recover()
    if run.options.retry_failed:
        rewritten += forget_mismatched(folder, old)
    state = read_resume_state(folder, run.options.samples, run.options.retry_failed)
    sessions = _ended_sessions(old, state.last_call_unix_ns)
    return structs.replace(
        run,
        record=structs.replace(run.record, sessions=sessions, mode_changes=old.mode_changes),
        resume_state=state,
        rewritten_bytes=rewritten,
    )


@contextmanager
def _held(options: RunOptions, name: str, *, on_disk: bool) -> Iterator[tuple[Path | None, RunFile | None]]:
    """The folder of a run, and the `run.json` of the run in it that is to be resumed. One that is over is not held."""
    folder = options.output
    if folder is None:
        if not on_disk:
            yield None, None
            return
        with hold_default(RUNS, name) as made:
            yield made, None
        return
    there = options.resume and (folder / FILE).is_file()
    if there and (old := _old_run(folder)) is not None and is_over(old, options):
        yield folder, old
        return
    _remove_drafts(folder)
    with hold_output(folder, FILE, resume=options.resume):
        yield folder, _old_run(folder) if (folder / FILE).is_file() else None


def _remove_drafts(folder: Path) -> None:
    """Remove the drafts in `folder` where a process was killed before its run had begun, so that one can begin there.

    Raises `UsageError` where another process is at work in it.
    """

    def drafts() -> list[Path]:
        found = list(folder.iterdir()) if (folder / LOCK).is_file() else []
        left = [path for path in found if is_draft(path)]
        return left if {path.name for path in found} - {path.name for path in left} <= BEFORE_A_RUN else []

    with suppress(OSError):
        if drafts():
            with hold(folder):
                for draft in drafts():
                    draft.unlink(missing_ok=True)


def _old_run(folder: Path) -> RunFile | None:
    """The `run.json` of the run to resume in `folder`; None where the process was killed while its engines were being opened, so that there
    is nothing to resume from. Raises `InputError`."""
    old = RunFile.read(folder)
    return None if old.status == "starting" else old


def is_over(old: RunFile, options: RunOptions) -> bool:
    """True if the run `old` is finished, with every chain of its input, and `options` ask for no more."""
    if old.status != "finished" or old.input.part != options.part or (options.retry_failed and old.totals.chains_failed):
        return False
    return old.totals.chains >= old.input.rows * old.samples


def _problems_of(options: RunOptions, folder: Path | None, old: RunFile | None) -> Problems:
    try:
        files = [file for path in options.inputs for file in files_of(path)]
        here = all(file.exists() for file in files)
    except InputError:
        here = False
    if not here and old is not None and folder is not None and options.part == old.input.part:
        kept = kept_problems(folder, old.input)
        if kept is not None:
            return kept
    return open_files(options.inputs, options.columns, options.part)


def _new_record(
    options: RunOptions, plan: Plan, fingerprint: Fingerprint, run_id: str, *, virtual: bool, command: Sequence[str]
) -> RunFile:
    """The `run.json` of a new run, before its first session."""
    part, recorded = options.part, recorded_options(options)
    return RunFile(
        folder_id=new_folder_id(),
        run_id=run_id,
        status="running",
        graph_file=storable(str(options.graph)),
        plan=plan,
        schedule=options.schedule,
        admission=options.admission,
        order=recorded["order"],
        batch_size=options.batch_size,
        samples=options.samples,
        seed=options.seed,
        input=RunInput(
            file=storable(options.input_names[0]),
            columns=options.columns,
            limit=options.limit,
            sample=part.sample,
            shard=part.shard,
            **structs.asdict(fingerprint),
        ),
        virtual_time=virtual,
        depends_on_timing=plan.speculate == "auto",
        versions=versions(),
        host=host(),
        command=[storable(argument) for argument in command],
        started_unix_ns=0,
        options=recorded,
    )


def _ended_sessions(old: RunFile, last_ns: int | None) -> tuple[Session, ...]:
    """The sessions of `old`; a session that was killed gets the end of the last call in the trace as its own."""
    *before, last = old.sessions
    if last.status == "running":
        ended = max(last.started_unix_ns, last_ns or 0)
        last = structs.replace(last, status="killed", ended_unix_ns=ended, wall_time_s=(ended - last.started_unix_ns) / 1e9)
    return (*before, last)
