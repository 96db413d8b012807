"""The runs in a folder, each in one line: folders enter, `RunState`s leave. Runs may continue meanwhile."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from pipeline.analysis.progress import ACTIVE, run_progress, state_of
from pipeline.store.run_file import FILE, RunFile


class RunState(Struct, frozen=True, kw_only=True):
    """A run folder in one line."""

    folder: str
    graph: str
    models: str
    state: str
    """See `state_of`."""
    chains: int
    """Chains that are over, failed ones included."""
    failed: int
    of: int
    """All chains of the run."""
    graded: int
    accuracy: float | None
    """Share of right chains, 0 to 1; null without graded ones, and where models are simulated."""
    problems_per_s: float | None
    """Chains a second, over all sessions; null while it goes on."""
    virtual_time: bool
    """Whether its clock was simulated."""
    started_unix_ns: int
    """When its first session began; 0 where that is not known."""
    wall_time_s: float | None
    """As in `run.json`."""
    bytes: int
    """Size of the folder."""


def run_folders(folder: Path, depth: int) -> list[Path]:
    """The run folders in `folder`, at most `depth` levels down, latest first. What is in a run folder is not looked at."""
    found = dict(_run_files(folder, depth))
    return sorted(found, key=lambda run: found[run], reverse=True)


def _run_files(folder: Path, depth: int) -> Iterator[tuple[Path, float]]:
    """The run folders, and when the `run.json` of each was written."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            with suppress(OSError):
                if not entry.is_dir():
                    continue
                if (card := Path(entry.path, FILE)).is_file():
                    yield Path(entry.path), card.stat().st_mtime
                elif depth > 1:
                    yield from _run_files(Path(entry.path), depth - 1)


def run_state(folder: Path, name: str) -> RunState:
    """The run in `folder`, called `name`. Raises `InputError` where there is none, or it cannot be read."""
    run = RunFile.read(folder)
    simulated = any(spec.backend == "sim" for spec in run.plan.engines.values())
    totals, seconds = run.totals, run.wall_time_s or 0.0
    done, failed, graded, correct = totals.chains_done, totals.chains_failed, totals.graded, totals.correct
    if (state := state_of(folder, run)) in (*ACTIVE, "killed"):
        now = run_progress(folder)  # `run.json` has the totals of sessions that ended by themselves
        done, failed, graded, correct = now.done, now.failed, now.graded, now.correct
    return RunState(
        folder=name,
        graph=run.plan.name,
        models=", ".join(dict.fromkeys(Path(getattr(spec, "model", role)).name for role, spec in run.plan.engines.items())),
        state=state,
        chains=done + failed,
        failed=failed,
        of=run.chains,
        graded=graded,
        accuracy=correct / graded if graded and not simulated else None,
        problems_per_s=(done + failed) / seconds if seconds and state not in ACTIVE else None,
        virtual_time=run.virtual_time,
        started_unix_ns=run.started_unix_ns,
        wall_time_s=run.wall_time_s,
        bytes=size_of(folder),
    )


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, from which a run may take files meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(Path(place, name)).st_size
    return size
