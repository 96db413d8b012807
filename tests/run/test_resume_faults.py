"""What a full disk or a kill leaves of a run goes on to a whole one, also on engines that do not answer the same twice."""

import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.errors import RunFolderError
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.store.run_file import RunFile
from tests.support.changed import change_rows
from tests.support.commands import COMMAND
from tests.support.golden import golden_run
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT
from tests.support.runs import rows, write_problems

CHAINS = 24


@pytest.fixture
def varying(faulty: Path) -> Path:
    """The file of engines that never answer the same twice."""
    faulty.write_text(faulty.read_text().replace("backend: faulty", "backend: faulty\n  faults: {varies: true}"))
    return faulty


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return write_problems(tmp_path, CHAINS)


def resumed(folder: Path, problems: Path, engines: Path, **options: Any) -> int:
    """The exit code of a further session."""
    given = {"graph": ROOT / "graphs/speccot.yaml", "batch_size": 8, "resume": True} | options
    return run(RunOptions(engines=engines, input=(str(problems),), output=folder, **given)).exit_code


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a small disk of so many KiB, and makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def size(kib: int) -> Path:
        nonlocal mounted
        options = f"{'remount,' if mounted else ''}size={kib}k"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        mounted = True
        return place

    yield size
    if mounted:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("kib", [64, 600, 1400])
def test_a_full_disk_that_is_made_larger(problems: Path, varying: Path, disk: Callable[[int], Path], kib: int) -> None:
    folder = disk(kib) / "run"
    with suppress(RunFolderError):  # where not even `run.json` finds room
        code = resumed(folder, problems, varying, samples=3)
        assert code in ((0, 1) if kib > 900 else (1,))
    disk(64 << 10)
    resumed(folder, problems, varying, samples=3)
    check_hangs_together(folder, 3 * CHAINS)


@pytest.mark.slow
def test_kills_at_any_moment(problems: Path, varying: Path, tmp_path: Path) -> None:
    """Sessions are killed one after the other; a last one ends the run."""
    chance, folder = random.Random(3), tmp_path / "run"
    for _ in range(3):
        words = ["run", "speccot", "--engines", varying, "--input", problems, "--output", folder, "--resume", "--batch-size", "8"]
        process = subprocess.Popen([*COMMAND, *map(str, words)])
        while process.poll() is None and not (folder / "run.json").exists():
            pass
        try:
            process.wait(chance.uniform(0.0, 0.6))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
    resumed(folder, problems, varying)
    check_hangs_together(folder, CHAINS)


@pytest.mark.slow
def test_what_a_kill_leaves_between_two_file_operations_goes_on(varying: Path, tmp_path: Path) -> None:
    history = golden_run(tmp_path, varying)
    for number, moment in enumerate(history.moments[4::9]):
        folder = history.put(moment, tmp_path / str(number))
        resumed(folder, tmp_path / "problems.jsonl", varying, batch_size=3)
        check_hangs_together(folder, 4)


@pytest.mark.slow
def test_chains_whose_steps_came_out_differently_begin_anew_when_failed_ones_are_retried(
    problems: Path, varying: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert resumed(folder, problems, varying) == 0
    change_rows(folder, "chains", lambda row: MISMATCH if row["input_row"] < 4 else {})
    record = RunFile.read(folder)
    structs.replace(record, totals=structs.replace(record.totals, chains_done=CHAINS - 3, chains_failed=3)).write(folder)
    before = {row["chain_id"]: row["answer"] for row in rows(folder, "chains")}
    assert resumed(folder, problems, varying, retry_failed=True) == 0
    check_hangs_together(folder, CHAINS)
    again = {row["chain_id"]: row["answer"] for row in rows(folder, "chains")}
    assert len([chain for chain in before if again[chain] != before[chain]]) == 3


MISMATCH = {"stop_reason": "error", "error_type": "ResumeMismatch", "error_message": "step 3 differs", "answer": None}
