"""How far runs are, from their folders alone: a folder enters; its counts, rates of several looks at it, and of a folder of runs a line for
each leave. They may continue meanwhile, in any process."""

import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from pipeline.analysis.facts import answers, engine_facts, made_up
from pipeline.store.folder import FILE, is_held
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

WINDOW_S = 30.0
"""Seconds that rates are over."""
LEAST_ENDED = 8.0
"""Chains that must have ended in the window by which the end of the run is estimated; where fewer did, it is longer than `WINDOW_S`."""
APART_S = 0.5
"""Seconds between two counts that are kept, at least."""
ENDS = """
SELECT count(*) FILTER (finished), count(*) FILTER (stop_reason = 'error'), count(counted), count(*) FILTER (counted) FROM chains
"""
"""How many chains are done, failed, graded and right, by their rows."""


def state_of(folder: Path, run: RunFile) -> str:
    """`running`, `finished`, `interrupted`, `failed` or `killed`, by `run.json` and by whether a process is at work there."""
    if is_held(folder):
        return "running"
    return "killed" if run.status == "running" else run.status


class RunState(Struct, frozen=True, kw_only=True):
    """A run folder in one line; rows are in it within two seconds."""

    folder: str
    graph: str
    models: str
    state: str
    """See `state_of`."""
    chains: int
    """Chains that are over, failed ones included."""
    failed: int
    of: int | None
    """All chains of the run, those that have not begun included; null for a server's as long as they are not known."""
    graded: int
    accuracy: float | None
    """Share of right chains, 0 to 1; null without graded ones, and of simulated answers none of which is right."""
    answers: str | None
    """`simulated` or `recorded` where models do not give the answers; see `facts.answers`."""
    problems_per_s: float | None
    """Chains with an answer a second for each sample of a problem, over all sessions; null where `wall_time_s` is."""
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
        return made_up(self.answers, self.accuracy)


def run_folders(folder: Path, depth: int) -> list[Path]:
    """The run folders in `folder`, at most `depth` levels down, latest first. What is in a run folder is not looked at."""
    found: dict[Path, float] = {}
    for place, below, _ in os.walk(folder, followlinks=True):
        inner = [Path(place, name) for name in below]
        for card in (run / FILE for run in inner):
            with suppress(OSError):
                found[card.parent] = card.stat().st_mtime
        deeper = len(Path(place).relative_to(folder).parts) + 1 < depth
        below[:] = [run.name for run in inner if deeper and run not in found]
    return sorted(found, key=lambda run: (-found[run], run))


def run_state(folder: Path, name: str = "") -> RunState:
    """The run in `folder`, called `name` or as its folder. Raises `InputError` where there is none, or it cannot be read."""
    run = RunFile.read(folder)
    totals, made = run.totals, answers(engine_facts(run).values())
    done, failed, graded, correct = totals.chains_done, totals.chains_failed, totals.graded, totals.correct
    state, seconds = state_of(folder, run), run.wall_time_s
    unsure = state in ("running", "killed")
    if unsure:  # `run.json` has the totals and the time of sessions that ended by themselves
        with Query(folder) as db:
            [(done, failed, graded, correct)], seconds = db.stream(ENDS), None
    return RunState(
        folder=name or folder.resolve().name,
        graph=run.plan.name,
        models=", ".join(dict.fromkeys(run.plan.models.values())),
        state=state,
        chains=done + failed,
        failed=failed,
        of=None if run.options.served and unsure else max(run.input.chains, done + failed),
        graded=graded,
        accuracy=None if not graded or made_up(made, correct) else correct / graded,
        answers=made,
        problems_per_s=done / run.input.samples / seconds if seconds else None,
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


def duration(seconds: float | None) -> str:
    """A time as `1:02:03` or `2:03`, in hours, minutes and seconds; `-` where it is not known."""
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class RecentRates:
    """Growing counts over time, of which as many are kept as the rates of the last `WINDOW_S` seconds need."""

    def __init__(self, slowest: str) -> None:
        """`slowest`: the count that must grow by `LEAST_ENDED` in the window."""
        self._slowest = slowest
        self._kept: deque[tuple[float, dict[str, float]]] = deque()

    def look(self, now: float, counts: Mapping[str, float]) -> None:
        """Take down the `counts` at the time `now`, in seconds of any clock."""
        kept = self._kept
        if len(kept) > 1 and now - kept[-2][0] < APART_S:
            kept.pop()
        kept.append((now, dict(counts)))
        while len(kept) > 2 and now - kept[1][0] >= WINDOW_S and counts[self._slowest] - kept[1][1][self._slowest] >= LEAST_ENDED:
            kept.popleft()

    def per_s(self, name: str) -> float | None:
        """By how much this count grew a second; None before the second look at it."""
        if len(self._kept) < 2:
            return None
        (then, before), (now, after) = self._kept[0], self._kept[-1]
        return (after[name] - before[name]) / (now - then) if now > then else None
