"""What a run starts from, before an engine starts: options enter; the run checked, its folder held, what earlier sessions left in it leave.

The folder is held before anything else about the run is checked, so that two processes never start a run in one folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from pipeline.data.files import Flaw
from pipeline.data.reading import InputReading, read_files
from pipeline.engines.registry import virtual_time
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.replay import bindings
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import InputError, UsageError
from pipeline.grading.plugins import graders_of_this_process, takes_problem
from pipeline.graph.load import load_graph, source_of
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import registered_alone
from pipeline.options import (
    ABOUT,
    MAY_DRIFT,
    RunOptions,
    check_functions,
    check_replicas,
    check_resume,
    check_served,
    recorded_options,
)
from pipeline.run.toys import check_toys
from pipeline.runtime.admission.feed import Arrivals, Feed, InputFeed, SampleCounts
from pipeline.store.folder import FILE, hold_default, hold_output
from pipeline.store.kept_problems import TABLE as KEPT
from pipeline.store.kept_problems import Fingerprint, Problems, keep_problems
from pipeline.store.parts import has_table
from pipeline.store.resume import forget_mismatched, read_resume_state
from pipeline.store.resume_state import ResumeState
from pipeline.store.run_file import RunFile, RunInput, Session, host, versions
from pipeline.store.run_store import RunStore, new_folder_id
from pipeline.text import storable

RUNS = Path("runs")
"""Where run folders are made that the user does not name."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A run whose options, plan and input have been checked, and what earlier sessions left in its folder, which this process holds."""

    options: RunOptions
    plan: Plan
    problems: Problems
    fingerprint: Fingerprint
    virtual_time: bool
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
    starts_unix_ns: int | None = None
    """When the session starts on a simulated clock, ns UTC; None: now."""
    arrivals: Arrivals | None = None
    """The chains of a run whose problems are requests that come while it goes on; None: they are those of `problems`."""

    @property
    def chains(self) -> int:
        """The number of chains of the run."""
        return self.record.chains

    @property
    def session(self) -> Session:
        """The session that is carried out, once it has begun."""
        return self.record.sessions[-1]

    def feed(self) -> Feed:
        """The chains of the run in their order."""
        if self.arrivals is not None:
            return self.arrivals
        samples = SampleCounts(self.options.samples, self.record.samples)
        return InputFeed(iter(self.problems), samples, self.resume_state.is_over, threads=not self.virtual_time)

    def problem_rows(self) -> dict[int, Mapping[str, Any]]:
        """The whole rows of the problems by their numbers, if a grader of this process wants them."""
        if not any(map(takes_problem, self.problems.graders)):
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
            if RunFile.read(folder).status == "starting":
                (folder / FILE).unlink(missing_ok=True)


def load_plan(graph: Path, engines: Path | Mapping[str, Any] | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file on an engines file, on what one would hold, or on `replay:RUN`; raises `UsageError`."""
    bound = engines if isinstance(engines, Mapping) else bindings(engines)
    return checked(load_graph(graph, engines=bound, settings=settings))


def checked(plan: Plan) -> Plan:
    """`plan`, whose simulated engines fit together; raises `GraphError` where they do not."""
    devices_of({role: engine for role, engine in plan.engines.items() if isinstance(engine, SimSpec)})
    return plan


@contextmanager
def prepared(
    options: RunOptions,
    plan: Plan,
    problems: Problems | InputReading | None = None,
    *,
    virtual: bool | None = None,
    command: Sequence[str] = (),
    on_disk: bool = True,
    said: Sequence[str] = (),
) -> Iterator[Prepared]:
    """Hold the folder of `options` until the end, or a new one called after the plan and the time, and prepare the run in it.

    problems: those of a new run, or how they are read; by default the files of its input. A resumed run has its own.
    virtual: whether time is virtual, where open engines decide that; None: the plan decides.
    on_disk: a run that has no `output` gets a folder.
    said: notices about the input.

    Raises `UsageError` for whatever is wrong, and where another process is at work in the folder.
    """
    check_resume(options)
    with _held(options, plan.name, on_disk=on_disk) as (folder, old), ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="problems-"))) if folder is None else folder
        run = prepare(options, plan, _kept(options, place, problems), folder, old, virtual=virtual, command=command)
        yield structs.replace(run, remarks=(*said, *run.remarks))


def prepare(
    options: RunOptions,
    plan: Plan,
    problems: Problems,
    folder: Path | None,
    old: RunFile | None = None,
    *,
    virtual: bool | None = None,
    command: Sequence[str] = (),
) -> Prepared:
    """Prepare a run in a `folder` that this process holds."""
    if folder is not None and old is not None:
        check_served(folder, old)
        check_functions(folder, old.options)
    if old is None:
        check_toys(plan, options, problems)
    options = structs.replace(
        options,
        judges=tuple(sorted({node.spec.kind for node in plan.stages()} & registered_alone())),
        graders=tuple(sorted(problems.graders & graders_of_this_process())),
    )
    if options.on_replicas:
        check_replicas(options)
    virtual = virtual_time(plan.engines, str(options.graph), plan.reward_roles) if virtual is None else virtual
    run_id = plan.name if folder is None else folder.name
    record = _new_record(options, plan, problems.fingerprint, run_id, virtual=virtual, command=command)
    found = Prepared(
        options=options,
        plan=plan,
        problems=problems,
        fingerprint=problems.fingerprint,
        virtual_time=virtual,
        folder=folder,
        old=old,
        record=record,
        remarks=problems.remarks,
    )
    return found if folder is None or old is None else _taken_up(found, folder, old)


def _taken_up(run: Prepared, folder: Path, old: RunFile) -> Prepared:
    """The run with what earlier sessions left in its folder; write-ahead files are made parts first."""
    most = max(run.record.samples, old.samples)  # of a problem that a limit leaves out now as well
    run = structs.replace(run, record=structs.replace(run.record, folder_id=old.folder_id, samples=most))
    check_drift(folder, old, run.record, run.options.allow_drift)
    if is_over(old, run.options):
        return structs.replace(run, nothing_to_do=True)
    rewritten = RunStore(folder).recover()
    if run.options.retry_failed:
        rewritten += forget_mismatched(folder, old)
    state = read_resume_state(folder, most, run.options.retry_failed, [each.started_unix_ns for each in old.sessions])
    sessions = _ended_sessions(old, state.last_call_unix_ns)
    return structs.replace(
        run,
        record=structs.replace(run.record, sessions=sessions),
        resume_state=state,
        rewritten_bytes=rewritten,
    )


@contextmanager
def _held(options: RunOptions, name: str, *, on_disk: bool) -> Iterator[tuple[Path | None, RunFile | None]]:
    """The folder of a run, held until the end, and the `run.json` of the run in it that is to be resumed."""
    if options.output is None:
        with hold_default(RUNS, name) if on_disk else nullcontext() as made:
            yield made, None
        return
    if options.resume and (old := _old_run(options.output)) is not None and is_over(old, options):
        yield options.output, old  # nothing is written: the folder may be read-only
        return
    with hold_output(options.output, FILE, resume=options.resume):
        yield options.output, _old_run(options.output)


def _old_run(folder: Path) -> RunFile | None:
    """The `run.json` of the run to resume in `folder`; None where there is none, or the process was killed while its engines were being
    opened, so that there is nothing to resume from. Raises `InputError`."""
    old = RunFile.read(folder) if (folder / FILE).exists() else None
    return None if old is None or old.status == "starting" else old


def is_over(old: RunFile, options: RunOptions) -> bool:
    """True if the run `old` is finished, with every chain of its input, and `options` ask for no more."""
    more = options.retry_failed and old.totals.chains_failed
    if more or old.status != "finished" or old.input.part != options.part:
        return False
    return old.totals.chains >= old.chains


def _kept(options: RunOptions, folder: Path, problems: Problems | InputReading | None) -> Problems:
    """The problems in the folder of a run; those of a new one are put there."""
    if options.resume and (folder / FILE).exists():
        old = RunFile.read(folder)
        given, then = recorded_options(options)["input"], old.options.get("input")
        if given != then:
            raise UsageError(f"{folder}: cannot be resumed: --input is {given}, was {then}; start a new run")
        if not has_table(folder, KEPT):
            raise InputError(str(folder), "lacks its problems.parquet; put it back from a copy, or start a new run")
        return Problems(folder, old.input.file, old.input.sha256, options.limit)
    if isinstance(problems, Problems):
        return problems.copied(folder, options.part)
    files = problems or read_files(options.inputs, options.columns, options.part, names=options.input_names)
    return keep_problems(folder, files, options.limit)


def _new_record(
    options: RunOptions,
    plan: Plan,
    fingerprint: Fingerprint,
    run_id: str,
    *,
    virtual: bool,
    command: Sequence[str],
) -> RunFile:
    """The `run.json` of a new run, before its first session."""
    part, recorded = options.part, recorded_options(options)
    return RunFile(
        folder_id=new_folder_id(),
        run_id=run_id,
        status="running",
        graph_file=storable(str(options.graph)),
        source=source_of(plan),
        schedule=options.schedule,
        admission=options.admission,
        batch_size=options.batch_size,
        samples=max(options.samples, fingerprint.own_most),
        seed=options.seed,
        input=RunInput(
            file=storable(options.input_names[0]),
            columns=options.columns,
            limit=options.limit,
            sample=part.sample,
            shard=part.shard,
            served=options.served,
            sha256=fingerprint.sha256,
            rows=fingerprint.rows,
            bad_rows=fingerprint.bad_rows,
            chains=fingerprint.chains(options.samples),
        ),
        virtual_time=virtual,
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


def check_drift(folder: Path, old: RunFile, new: RunFile, allowed: Sequence[str]) -> None:
    """Raise `UsageError` that names everything in which `new` differs from `old`, except differences of the `allowed` names."""
    as_read = msgspec.json.decode(new.encode(), type=RunFile)
    found = {name: list(differences) for name, differences in drift(old, as_read).items()}
    refused = [each for name, differences in found.items() if name not in allowed for each in differences]
    if not refused:
        return
    may = [name for name, differences in found.items() if differences and name in MAY_DRIFT and name not in allowed]
    remedy = f"add {' '.join(f'--allow-drift {name}' for name in may)}, or start a new run" if may else "start a new run"
    raise UsageError(f"{folder}: cannot be resumed: {'; '.join(refused)}; {remedy}")


def drift(old: RunFile, new: RunFile) -> dict[str, Iterator[str]]:
    """Differences between two runs, as clauses, by the name under which they may be allowed or are refused."""
    same_params = old.plan.params == new.plan.params
    same_graph = (old.plan.block, old.plan.prompts) == (new.plan.block, new.plan.prompts)
    own = (name for name, known in ABOUT.items() if known.drift is not None)
    return {
        # A bundled graph may have got a param since; where stages and prompts are the same that makes no difference.
        "params": iter(()) if same_graph else _changes("param ", old.plan.params, new.plan.params),
        "graph": iter(["the graph has changed"] if same_params and not same_graph else []),
        "model": _model_changes(old.engines, new.engines),
        "engines": _engine_changes(old.engines, new.engines),
        "input": _changes("input ", _input(old), _input(new)),
        **{name: _changes("", *({name: side.options.get(name)} for side in (old, new))) for name in own},
    }


def _input(run: RunFile) -> dict[str, Any]:
    return {"sha256": run.input.sha256, "columns": run.input.columns, "sample": run.input.sample}


def _model_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Changed models, which are always refused: recorded token ids would mean another text."""
    for role in old.keys() & new.keys():
        yield from _changes(f"engines.{role}.", *({"model": side[role].get("model")} for side in (old, new)))


def _engine_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for role in sorted(old.keys() | new.keys()):
        sides = ({name: value for name, value in side.get(role, {}).items() if name != "model"} for side in (old, new))
        yield from _changes(f"engines.{role}.", *sides)


def _changes(article: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{article}{name} is {new.get(name)}, was {old.get(name)}"
