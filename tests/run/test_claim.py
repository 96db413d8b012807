"""One run, one folder: whoever comes second gets another name, or is refused before an engine starts."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import pipeline
from pipeline.errors import UsageError
from pipeline.options import RunOptions
from pipeline.run.observer import Observer, Work
from pipeline.run.prepare import Prepared
from pipeline.run.run import run
from pipeline.store.folder import LOCK
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, write_problems

TARGET = ROOT / "graphs/target.yaml"


def beside(second: Callable[[], object]) -> Observer:
    """Carries out `second` while the run that is observed goes on; what it raised is raised."""

    @contextmanager
    def watch(ready: Prepared, work: Work) -> Iterator[None]:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(second).result()
        yield

    return Observer(watch=watch)


def test_a_second_run_in_the_same_second_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = RunOptions(graph=TARGET, engines=SIM, input=(str(write_problems(tmp_path)),))
    assert run(options, beside(lambda: run(options))).exit_code == 0
    folders = [*(tmp_path / "runs").iterdir()]
    assert len(folders) == 2
    for folder in folders:
        assert len({row["chain_id"] for row in rows(folder, "chains")}) == len(rows(folder, "chains")) == 12


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_in_the_same_folder_is_refused_before_its_engines_start(tmp_path: Path, resume: bool) -> None:
    problems = write_problems(tmp_path)
    options = RunOptions(graph=TARGET, engines=SIM, input=(str(problems),), output=tmp_path / "run", resume=resume)

    def second() -> None:
        with pytest.raises(UsageError, match=r"this process is at work in it; wait for the end of its earlier run|already contains a run"):
            run(options)
        with pytest.raises(UsageError, match=r"this process is at work in it; wait for the end of its earlier run|already contains a run"):
            pipeline.solve(TARGET, problems, engines=SIM, output=tmp_path / "run", resume=resume)

    assert run(options, beside(second)).exit_code == 0
    assert len(rows(tmp_path / "run", "chains")) == 12


@pytest.mark.parametrize("resume", [False, True])
def test_a_process_that_was_killed_before_its_run_had_begun_leaves_a_place_for_one(resume: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).write_text("1\n")
    (folder / ".0123456789abcdef.tmp").write_text("{")
    run(RunOptions(graph=TARGET, engines=SIM, input=(str(write_problems(tmp_path, 1)),), output=folder, resume=resume))
    assert len(rows(folder, "chains")) == 1
