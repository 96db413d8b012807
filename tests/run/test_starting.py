"""A run is in its folder while its engines are opened, and is gone again where it never begins."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.analysis.headline.baseline import summary_of
from pipeline.analysis.headline.lines import headline
from pipeline.analysis.progress import run_progress, state_of
from pipeline.engines.startup import Listener
from pipeline.errors import RunError
from pipeline.graph.spec import EngineSpec
from pipeline.options import RunOptions
from pipeline.run.observer import Observer
from pipeline.run.prepare import Prepared, resume_options
from pipeline.run.run import run
from pipeline.store.folder import FILE, PROBLEMS
from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems


def options(folder: Path) -> RunOptions:
    return RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=(str(write_problems(folder)),), output=folder / "runs/run")


@pytest.mark.slow
def test_a_run_can_be_seen_and_resumed_before_its_engines_are_open(tmp_path: Path) -> None:
    given, seen = options(tmp_path), []
    folder, killed = tmp_path / "runs/run", tmp_path / "killed"

    @contextmanager
    def starting(specs: Mapping[str, EngineSpec]) -> Iterator[Listener]:
        seen.append(state_of(folder, RunFile.read(folder)))
        seen.append(run_progress(folder).state)
        assert "starting" in pipeline("show", tmp_path / "runs").stdout
        killed.mkdir()
        for name in (FILE, PROBLEMS):
            shutil.copy(folder / name, killed)
        yield Listener()

    ready: list[Prepared] = []
    assert run(given, Observer(starting=starting, ready=ready.append)).exit_code == 0
    assert (seen, ready[0].folder, RunFile.read(folder).status) == (["starting"] * 2, folder, "finished")
    assert state_of(killed, RunFile.read(killed)) == "killed"
    assert headline(summary_of(killed)).head == "killed: 0 of 12 solved"
    resumed = run(resume_options(killed))
    assert (resumed.exit_code, resumed.done, len(resumed.run.sessions)) == (0, 12, 1)


def test_nothing_is_left_of_a_run_whose_engines_do_not_open(tmp_path: Path) -> None:
    @contextmanager
    def starting(specs: Mapping[str, EngineSpec]) -> Iterator[Listener]:
        assert RunFile.read(tmp_path / "runs/run").status == "starting"
        raise RunError("engine 'target' could not start")
        yield Listener()

    with pytest.raises(RunError, match="could not start"):
        run(options(tmp_path), Observer(starting=starting))
    assert not (tmp_path / "runs").exists()
