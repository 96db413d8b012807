"""How far a run is, from its folder alone: the folder enters, counts leave. The run may continue meanwhile, in any process."""

from pathlib import Path

from msgspec import Struct

from pipeline.analysis.resources import answers, engine_facts
from pipeline.store.events import UNFINISHED, counted
from pipeline.store.folder import is_held
from pipeline.store.read import count_rows, read_batches
from pipeline.store.run_file import RunFile

ACTIVE = ("starting", "running")
"""States of a run on which a process is at work."""
COLUMNS = ("stop_reason", "correct", "reference_answer")


class RunProgress(Struct, frozen=True, kw_only=True):
    """What a run folder holds at one moment. Rows are in it within two seconds."""

    run: str
    state: str
    """See `state_of`."""
    chains: int
    """All chains of the run, those that have not begun included."""
    done: int
    failed: int
    graded: int
    """Chains that count as right or wrong, see `events.counted`."""
    correct: int
    answers: str | None = None
    """`simulated` or `recorded` where models do not give the answers; see `resources.answers`."""
    steps: int
    calls: int

    @property
    def over(self) -> int:
        """Chains that are done or failed."""
        return self.done + self.failed

    @property
    def accuracy(self) -> float | None:
        """Right answers over graded chains, 0 to 1; None where none is graded."""
        return self.correct / self.graded if self.graded else None


def run_progress(folder: Path) -> RunProgress:
    """How far the run in `folder` is; raises `InputError` where there is none, or it cannot be read."""
    run = RunFile.read(folder)
    done = failed = graded = correct = 0
    for batch in read_batches(folder, "chains", COLUMNS):
        for reason, right, reference in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            done += reason not in UNFINISHED
            failed += reason == "error"
            verdict = counted(right, reason, reference)
            graded += verdict is not None
            correct += bool(verdict)
    return RunProgress(
        run=folder.resolve().name,
        state=state_of(folder, run),
        chains=run.input.rows * run.samples,
        done=done,
        failed=failed,
        graded=graded,
        correct=correct,
        answers=answers(engine_facts(run).values()),
        steps=count_rows(folder, "steps"),
        calls=count_rows(folder, "calls"),
    )


def state_of(folder: Path, run: RunFile) -> str:
    """`starting`, `running`, `finished`, `interrupted`, `failed` or `killed`, by `run.json` and by whether a process is at work there."""
    if is_held(folder):
        return "starting" if run.status == "starting" else "running"
    return "killed" if run.status in ACTIVE else run.status
