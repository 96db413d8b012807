"""A signal ends a run, which says what is left of it and goes on to the answers of an unbroken one."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.headline.lines import headline
from pipeline.analysis.summary import summarize
from pipeline.cli.signals import restored_handlers, stop_on_signal
from pipeline.options import RunOptions
from pipeline.run.observer import Observer
from pipeline.run.prepare import resume_options
from pipeline.run.run import SessionResult, run
from pipeline.run.stream import MemoryRows
from pipeline.store.rows import ChainRow
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, write_problems


class Signals(MemoryRows):
    """Sends this process a signal as each of the next chains ends, after four have."""

    def __init__(self, count: int) -> None:
        super().__init__(trace=False)
        self.ended, self.count = 0, count

    def chain(self, row: ChainRow) -> None:
        self.ended += 1
        if 4 < self.ended <= 4 + self.count:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("count", [0, 1, 2], ids=["whole", "drained", "aborted"])
def test_a_run_that_is_interrupted_says_what_is_left_and_goes_on(tmp_path: Path, count: int) -> None:
    given: dict[str, Any] = {
        "graph": ROOT / "graphs/speccot.yaml",
        "engines": SIM,
        "input": (str(write_problems(tmp_path, 24)),),
        "batch_size": 4,
    }
    options = RunOptions(**given, settings=("engines.*.text.steps_mean=3",), output=tmp_path / "run")
    with restored_handlers():
        result = run(options, Observer(sink=Signals(count)), attend=stop_on_signal)
    whole = run(RunOptions(**given, settings=options.settings, output=tmp_path / "whole"))
    if count:
        check_interrupted(result, total=sum(row["output_tokens"] for row in rows(whole, "calls")))
        result = run(resume_options(tmp_path / "run"))
    assert (result.exit_code, said(result)) == (0, said(whole))


def check_interrupted(result: SessionResult, total: int) -> None:
    assert (result.exit_code, result.run.status) == (130, "interrupted")
    assert 4 < result.done < 24
    assert result.folder is not None
    found = summarize(result.folder)
    assert found.left is not None
    assert (found.left.chains, found.left.begun) == (24 - result.done, found.cancelled)
    assert found.left.tokens is not None
    assert found.left.tokens + found.output_tokens == pytest.approx(total, rel=0.3)
    shown = headline(found)
    assert shown.head.startswith("interrupted: ")
    assert [row.figure for row in shown.rows if row.name == "left"] == [f"{24 - result.done}"]
