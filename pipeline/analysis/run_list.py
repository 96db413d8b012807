"""The runs in a folder, each in one line: folders enter, `RunState`s leave. Runs may continue meanwhile."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from pipeline.analysis.progress import ACTIVE, chains_of, run_progress, state_of
from pipeline.analysis.resources import answers, engine_facts
from pipeline.store.folder import FILE
from pipeline.store.run_file import RunFile


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
    of: int | None
    """All chains of the run; null for a server's as long as they are not known."""
    graded: int
    accuracy: float | None
    """Share of right chains, 0 to 1; null without graded ones, and of simulated answers none of which is right."""
    answers: str | None
    """`simulated` or `recorded` where models do not give the answers; see `resources.answers`."""
    problems_per_s: float | None
    """Chains a second for each sample of a problem, over all sessions; null where `wall_time_s` is."""
    virtual_time: bool
    """Whether its clock was simulated."""
    started_unix_ns: int
    """When its first session began; 0 where that is not known."""
    wall_time_s: float | None
    """Seconds of all sessions; null while one goes on, and where the last one was killed."""
    bytes: int
    """Size of the folder."""

    @property
    def made_up(self) -> bool:
        """Whether right and wrong say nothing: answers are simulated and none is right."""
        return self.answers == "simulated" and self.accuracy is None


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
                if (card := Path(entry.path, FILE)).exists():
                    yield Path(entry.path), card.stat().st_mtime
                elif depth > 1:
                    yield from _run_files(Path(entry.path), depth - 1)


def run_state(folder: Path, name: str) -> RunState:
    """The run in `folder`, called `name`. Raises `InputError` where there is none, or it cannot be read."""
    run = RunFile.read(folder)
    totals, made = run.totals, answers(engine_facts(run).values())
    done, failed, graded, correct = totals.chains_done, totals.chains_failed, totals.graded, totals.correct
    state, seconds = state_of(folder, run), run.wall_time_s
    if state in (*ACTIVE, "killed"):  # `run.json` has the totals and the time of sessions that ended by themselves
        now, seconds = run_progress(folder), None
        done, failed, graded, correct = now.done, now.failed, now.graded, now.correct
    return RunState(
        folder=name,
        graph=run.plan.name,
        models=", ".join(dict.fromkeys(run.plan.models.values())),
        state=state,
        chains=done + failed,
        failed=failed,
        of=chains_of(run, state, done + failed),
        graded=graded,
        accuracy=correct / graded if graded and (correct or made != "simulated") else None,
        answers=made,
        problems_per_s=(done + failed) / run.input.samples / seconds if seconds else None,
        virtual_time=run.virtual_time,
        started_unix_ns=run.started_unix_ns,
        wall_time_s=seconds,
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
