"""A run folder in numbers, counted by hand; folders that are cut short, resumed, empty or none at all."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.summary import summarize
from pipeline.errors import InputError
from pipeline.store.rows import StepRow
from pipeline.store.store import RunStore
from tests.support import traces
from tests.support.rows import blank
from tests.support.run_files import write_run_json
from tests.support.traces import SCORE, write


def chain(row: int, start: int, end: int, stop_reason: str, **more: Any) -> Any:
    return traces.chain(f"p{row}#0", start, end, problem_id=f"p{row}", input_row=row, stop_reason=stop_reason, **more)


def test_verifications_that_prefer_other_tokens_are_counted(tmp_path: Path) -> None:
    steps = [blank(StepRow, decision="fallback", score_mass=mass, score_probs=(1.0,), **SCORE) for mass in [1.0] * 9 + [0.3]]
    assert summarize(write(tmp_path, steps=steps, chains=[chain(1, 0, 5, "thought_closed")])).doubtful_share == 0.1


def test_a_run_without_rows(tmp_path: Path) -> None:
    found = summarize(write(tmp_path))
    assert (found.run, found.status, found.graph, found.models) == (tmp_path.name, "finished", "target", {"target": "large"})
    assert (found.schedule, found.batch_size, found.planned, found.samples) == ("pipelined", 8, 1, 1)
    assert (found.chains, found.steps, found.engines, found.stages, found.errors) == (0, 0, {}, {}, {})
    assert [found.accuracy, found.problems_per_s, found.acceptance_rate, found.draft_share] == [None] * 4


def test_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="expected a run folder"):
            summarize(path)


def test_a_run_that_goes_on_is_read_to_its_last_row(tmp_path: Path) -> None:
    store = RunStore(write_run_json(tmp_path, sessions=[]))
    for length, total in ((2, 2), (1, 3)):
        store.append("steps", [blank(StepRow, step_tokens=length, decision="accepted")])
        assert summarize(tmp_path).thought_tokens == total
    store.close()
    assert summarize(tmp_path).thought_tokens == 3
