"""All checks of a run before an engine starts: options enter, a frozen `Preflight` leaves.

Files are read and nothing is written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.headline.adapters import unused_adapters, used_adapters
from pipeline.data.problems import Fingerprint, Problems
from pipeline.engines.registry import cautions, virtual_time
from pipeline.engines.replay.recording import bindings
from pipeline.grading.plugins import graders_of_this_process
from pipeline.graph.compiler import compile_graph
from pipeline.graph.loader import load_graph
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import broken_plugins, engine_specs, registered_alone, stage_specs
from pipeline.graph.spec import GraphSpec
from pipeline.session.checks.call_time import time_notices
from pipeline.session.checks.order import Thoughts, earlier_thoughts
from pipeline.session.checks.replay import announcements, check_replay, resolved
from pipeline.session.checks.replicas import check_replicas
from pipeline.session.checks.thought_room import room_notices, with_thoughts
from pipeline.session.claim import Claim
from pipeline.session.options import RunOptions, check_functions, recorded_options
from pipeline.session.resume import check_drift
from pipeline.store.checking.inventory import check_files
from pipeline.store.run_file import RunFile, RunInput, host, versions
from pipeline.text import storable


class RunSettings(Struct, frozen=True, kw_only=True):
    """What has to be known of a checked run wherever its chains are solved."""

    plan: Plan
    options: RunOptions
    run_id: str
    virtual_time: bool


class Preflight(Struct, frozen=True, kw_only=True):
    """A run whose options, plan and input have been checked, and may start."""

    options: RunOptions
    plan: Plan
    problems: Problems
    fingerprint: Fingerprint
    virtual_time: bool
    earlier_thoughts: Thoughts = {}
    """Lengths of thoughts by which chains are put in order."""
    claim: Claim
    """The run folder, and the run in it that is to be resumed."""

    @property
    def folder(self) -> Path | None:
        """The run folder; None for a run that writes nothing to disk."""
        return self.claim.folder

    @property
    def old(self) -> RunFile | None:
        """The `run.json` of the run to resume; None for a new run."""
        return self.claim.old

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self.folder.name if self.folder is not None else self.plan.name

    @property
    def settings(self) -> RunSettings:
        """What has to be known wherever its chains are solved."""
        return RunSettings(plan=self.plan, options=self.options, run_id=self.run_id, virtual_time=self.virtual_time)

    @property
    def chains(self) -> int:
        """The number of chains: one for each row and sample."""
        return self.fingerprint.rows * self.options.samples


def load_plan(graph: Path, engines: Path | Mapping[str, Any] | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file on an engines file, on what one would hold, or on `replay:RUN`; raises `UsageError`."""
    bound = engines if isinstance(engines, Mapping) else bindings(engines)
    return compiled(load_graph(graph, stage_specs(), engine_specs(), engines=bound, settings=settings), str(graph))


def compiled(spec: GraphSpec, where: str) -> Plan:
    """The plan of a graph, whose file is `where`, with all that its engines take from recorded runs and files; raises `UsageError`."""
    return with_thoughts(resolved(compile_graph(spec, where)))


def preflight(options: RunOptions, plan: Plan, problems: Problems, claim: Claim, *, virtual: bool | None = None) -> Preflight:
    """Check a run of `plan` over `problems` in the folder of `claim`; raises `UsageError` for whatever is wrong with it.

    `virtual`: whether time is virtual, where open engines decide that; None: the plan decides.
    """
    if virtual is None:
        virtual = virtual_time(plan.engines, str(options.graph))
    if options.cluster is not None:
        check_replicas(options)
    if claim.old is not None and claim.folder is not None:
        check_functions(claim.folder, claim.old.options)
    fingerprint = problems.check()
    options = structs.replace(
        options,
        judges=tuple(sorted({node.spec.kind for node in plan.stages()} & registered_alone())),
        graders=tuple(sorted(problems.graders & graders_of_this_process())),
    )
    check_replay(plan, options, fingerprint)
    found = Preflight(
        options=options,
        plan=plan,
        problems=problems,
        fingerprint=fingerprint,
        virtual_time=virtual,
        earlier_thoughts=earlier_thoughts(options.order),
        claim=claim,
    )
    if claim.old is not None and claim.folder is not None:
        check_drift(claim.folder, claim.old, new_record(found), options.allow_drift)
        if claim.nothing_to_do:
            check_files(claim.folder)  # those of a run in progress are checked when it is resumed
    return found


def new_record(run: Preflight, command: Sequence[str] = ()) -> RunFile:
    """The `run.json` of a new run, before its first session. `command`: the arguments of the process that started it."""
    options = run.options
    return RunFile(
        run_id=run.run_id,
        status="running",
        graph_file=storable(str(options.graph)),
        plan=run.plan,
        schedule=options.schedule,
        admission=options.admission,
        order=recorded_options(options)["order"],
        batch_size=options.batch_size,
        samples=options.samples,
        seed=options.seed,
        input=_input(run),
        virtual_time=run.virtual_time,
        depends_on_timing=run.plan.speculate == "auto",
        versions=versions(),
        host=host(),
        command=[storable(argument) for argument in command],
        started_unix_ns=0,
        options=recorded_options(options),
    )


def _input(run: Preflight) -> RunInput:
    part, asked = run.options.part, run.options
    return RunInput(
        file=storable(asked.input_names[0]),
        columns=asked.columns,
        limit=asked.limit,
        sample=part.sample,
        shard=part.shard,
        **structs.asdict(run.fingerprint),
    )


def notices(plan: Plan) -> list[str]:
    """Notices for the user before the run: which foreign code runs, which plugins cannot be loaded, where replayed engines have their
    times from, which limits cut simulated thoughts, which adapters are used or are there for nothing, which calls cannot end in time."""
    return [
        *(f"warning: {each}" for each in broken_plugins()),
        *cautions(plan.engines),
        *announcements(plan),
        *room_notices(plan),
        *used_adapters(plan),
        *unused_adapters(plan),
        *time_notices(plan),
    ]
