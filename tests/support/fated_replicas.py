"""Runs on replicas of the test's own event loop, which fail as they are told, and what must hold of every such run."""

import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.cluster.fleet import Launcher, solve_on_replicas
from pipeline.cluster.messages import Orders, ReplicaLink, ReplicaReport
from pipeline.cluster.replica_worker import ReplicaWorker
from pipeline.errors import ReplicaLost
from pipeline.session.loop import Stop
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import RunSettings
from pipeline.session.run import SessionResult, run
from pipeline.store.events import counted
from pipeline.system.tasks import background_tasks
from tests.support.faulty_engine import FaultySpec
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said

BRIEF = ("engines.*.text.steps_mean=3", "engines.*.text.step_tokens_mean=20")
"""Thoughts of few steps, so that a test is quick."""
How = Literal["drain", "abort"]
Ending = Literal["dies", "hangs"]
"""`dies`: its link says so, and all that it did since its last report is gone; `hangs`: it never reports again."""


class Fate(Struct, frozen=True, kw_only=True):
    """What becomes of a replica from one start on."""

    at_s: float | None = None
    """When it ends, in seconds after its start; None: it does not."""
    ending: Ending = "dies"
    refused: bool = False
    """It cannot be started."""
    late_s: float = 0.0
    """How long it takes to start."""
    engines: dict[str, dict[str, Any]] = {}
    """Fields of its engines that are other than those of the run, by role."""
    rates: float = 1.0
    """The rates of its devices, as a share of those of the run."""
    forge: Callable[[ReplicaReport], ReplicaReport] | None = None
    """Changes its reports."""


WELL = Fate()
Fates = Callable[[int, int], Fate]
"""The fate of a replica by its number and how often it was started before."""


def always(**fates: Fate) -> Fates:
    """The same fate at every start, `r0` for replica 0; the others are well."""
    return lambda number, start: fates.get(f"r{number}", WELL)


def at_first(**fates: Fate) -> Fates:
    """A fate at the first start alone."""
    return lambda number, start: fates.get(f"r{number}", WELL) if start == 0 else WELL


class FatedLink:
    """The link to a replica of this event loop that has a fate. What passes it is copied as between processes."""

    address = devices = ""

    def __init__(self, replica: ReplicaWorker, node: str, fate: Fate) -> None:
        self.node, self._replica, self._fate = node, replica, fate
        self._end = float("inf") if fate.at_s is None else anyio.current_time() + fate.at_s

    async def exchange(self, orders: Orders) -> ReplicaReport:
        with anyio.CancelScope(deadline=self._end):
            report = await self._replica.exchange(pickle.loads(pickle.dumps(orders)))
            if self._fate.forge is not None:
                report = self._fate.forge(report)
            return msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=ReplicaReport)
        if self._fate.ending == "hangs":
            await anyio.sleep_forever()
        raise ReplicaLost("it died as it was told to")


class FatedFleet:
    """Launches replicas by their fates, and keeps when each was started."""

    def __init__(self, fates: Fates) -> None:
        self.starts: dict[int, list[float]] = {}
        """When each replica was asked to start, in seconds of the virtual clock."""
        self.replicas: list[ReplicaWorker] = []
        self._fates = fates

    def launcher(self, settings: RunSettings) -> Launcher:
        """The `Launcher` for a run of these settings."""

        @asynccontextmanager
        async def launch(number: int) -> AsyncIterator[ReplicaLink]:
            starts = self.starts.setdefault(number, [])
            fate = self._fates(number, len(starts))
            starts.append(anyio.current_time())
            if fate.refused:
                raise ReplicaLost("there is no room for it")
            await anyio.sleep(fate.late_s)
            async with background_tasks() as tasks:
                self.replicas.append(replica := ReplicaWorker(_changed(settings, fate)))
                tasks.start_soon(replica.serve)
                yield FatedLink(replica, f"node-{number}", fate)

        return launch


def _changed(settings: RunSettings, fate: Fate) -> RunSettings:
    """The settings with other engines."""
    engines: dict[str, Any] = {}
    for role, spec in settings.plan.engines.items():
        device = spec.device  # type: ignore[attr-defined]
        rates = {name: fate.rates * getattr(device, name) for name in ("flops_per_s", "bytes_per_s")}
        slower = structs.replace(device, **rates, overhead_s=device.overhead_s / fate.rates)
        changed = {"device": slower} | fate.engines.get(role, {})
        made = FaultySpec if "faults" in changed else type(spec)
        engines[role] = made(**{name: getattr(spec, name) for name in spec.__struct_fields__} | changed)
    return structs.replace(settings, plan=structs.replace(settings.plan, engines=engines))


def options_of(folder: Path, name: str, problems: Path, **options: Any) -> RunOptions:
    """A run of the graph `speccot` with short thoughts."""
    graph = ROOT / f"graphs/{options.pop('graph', 'speccot')}.yaml"
    chosen: dict[str, Any] = {"engines": SIM, "settings": BRIEF, "batch_size": 2} | options
    return RunOptions(graph=graph, input=problems, output=folder / name, **chosen)


def on_replicas(
    options: RunOptions, fates: Fates | FatedFleet | None = None, observer: Observer | None = None, attend: Any = None
) -> SessionResult:
    """A run on replicas with these fates; None: all are well."""
    fleet = fates if isinstance(fates, FatedFleet) else FatedFleet(fates or always())

    async def carry(ready: Any, observer: Observer, attend: Any = None) -> SessionResult:
        return await solve_on_replicas(fleet.launcher(ready.settings), ready, observer, attend=attend)

    return run(options, observer, attend=attend, carry_out=carry)


def stopping(how: How, at_s: float) -> Callable[..., Coroutine[Any, Any, None]]:
    """A task beside a run that stops it."""

    async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await anyio.sleep(at_s)
        getattr(stop, how)()

    return attend


def check_whole(result: SessionResult, calm: SessionResult) -> None:
    """Fails unless a finished run has said what `calm` did, each row is there once, and `run.json` counts what is there."""
    assert result.exit_code == calm.exit_code, result.error
    assert said(result) == said(calm)
    folder = result.folder
    assert folder is not None
    check_hangs_together(folder, len(said(calm)))
    check_totals(result)


def check_totals(result: SessionResult) -> None:
    """Fails unless `run.json` counts the rows of the tables."""
    chains, steps, calls, totals = rows(result, "chains"), rows(result, "steps"), rows(result, "calls"), result.run.totals
    ended = Counter(
        "error" if row["stop_reason"] == "error" else "cancelled" if row["stop_reason"] == "cancelled" else "" for row in chains
    )
    assert (totals.chains_done, totals.chains_failed, totals.chains_cancelled) == (ended[""], ended["error"], ended["cancelled"])
    verdicts = [counted(row["correct"], row["stop_reason"], row["reference_answer"]) for row in chains]
    assert (totals.graded, totals.correct) == (sum(each is not None for each in verdicts), sum(map(bool, verdicts)))
    assert totals.steps == len(steps)
    assert totals.decisions == dict(Counter(row["decision"] for row in steps))
    tokens = Counter[str]()
    for row in calls:
        tokens[row["engine"]] += row["output_tokens"]
    assert {role: count for role, count in totals.output_tokens.items() if count} == {role: n for role, n in tokens.items() if n}
    errors = Counter((row["error_type"], row["error_stage"] or "no stage") for row in chains if row["stop_reason"] == "error")
    assert {(kind, stage): n for kind, stages in totals.errors.items() for stage, n in stages.items()} == dict(errors)
    check_replicas(result)


def check_replicas(result: SessionResult) -> None:
    """Fails unless each row says where it was made, and the replicas of `run.json` have as many chains as rows that name them."""
    session = result.run.sessions[-1]
    fresh = [row for row in rows(result, "chains") if row["end_unix_ns"] >= session.started_unix_ns]
    by_replica = Counter(row["replica"] for row in fresh if row["replica"] is not None)
    assert by_replica == Counter({number: each.chains for number, each in enumerate(session.replicas) if each.chains})
    for table in ("chains", "calls"):
        for row in rows(result, table):
            assert row["node"] == (None if row["replica"] is None else f"node-{row['replica']}")


def places(result: SessionResult) -> dict[str, list[int]]:
    """The replicas that each chain was at, in the order of its calls."""
    found: dict[str, list[int]] = {}
    for row in sorted(rows(result, "calls"), key=lambda row: row["call_index"]):
        at = found.setdefault(row["chain_id"], [])
        if not at or at[-1] != row["replica"]:
            at.append(row["replica"])
    return found
