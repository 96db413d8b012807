"""What a full disk, a kill or a hand leaves of a run goes on to a whole one, on engines that do not answer the same twice as well."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.api import solve
from pipeline.errors import InputError, RunFolderError
from pipeline.session.observer import Observer
from pipeline.session.options import resume_options
from pipeline.session.run import run
from pipeline.store.checking.fsck import examine, repair
from pipeline.store.manifest import FILE
from pipeline.store.rewrite import remove
from tests.support.hanging_together import check_hangs_together, rows
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems
from tests.support.unrepeatable import solve_unrepeatably, speccot

CHAINS = 24


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, `run`, and its problems."""
    folder = tmp_path_factory.mktemp("source")
    problems = write_problems(folder, CHAINS)
    assert solve_unrepeatably(speccot(folder / "run", problems, batch_size=8)).exit_code == 0
    return folder


def resumed(folder: Path, problems: Path, **options: Any) -> tuple[int, list[str]]:
    """Exit code of a further session, and what was said before it."""
    said: list[str] = []
    options = {"batch_size": 8} | options
    result = solve_unrepeatably(speccot(folder, problems, **options), Observer(tell=said.append))
    return result.exit_code, said


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """A copy of the finished run whose `run.json` says that it was killed."""
    shutil.copytree(source / "run", tmp_path / "run")
    text = (tmp_path / "run/run.json").read_text()
    (tmp_path / "run/run.json").write_text(text.replace('"finished"', '"running"'))
    return tmp_path / "run"


def lose(folder: Path, table: str, share: float, seed: int = 0) -> int:
    """Remove this share of the rows of a table; how many."""
    chance, gone = random.Random(seed), []

    def each(content: Any) -> list[bool]:
        lost = [not (gone or place) or chance.random() < share for place in range(len(content))]
        gone.extend(lost)
        return lost

    remove(folder, table, ["chain_id"], each)
    return sum(gone)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["calls", "steps", "chains"])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_lost_rows_are_made_again_whatever_the_engines_answer(source: Path, folder: Path, table: str, share: float) -> None:
    assert lose(folder, table, share)
    code, said = resumed(folder, source / "problems.jsonl")
    assert code == 0
    if table != "chains":
        [sentence] = said
        assert "chains were taken back:" in sentence
        assert "because calls or steps are missing" in sentence
    check_hangs_together(folder, CHAINS)


@pytest.mark.slow
def test_chains_that_came_out_differently_are_mended_by_retrying(source: Path, folder: Path) -> None:
    """As earlier versions left them: a hole in the calls, filled by other answers, and chains that failed of it."""
    [part] = (folder / "chains").glob("*.parquet")
    content = pq.read_table(part).to_pylist()
    for row in content[:5]:
        row |= {"stop_reason": "error", "error_type": "PastMismatch", "error_message": "step 3 came out differently", "answer": None}
    schema = pq.read_schema(part)
    pq.write_table(pq.ParquetFile(part).read().from_pylist(content, schema), part)
    code, said = resumed(folder, source / "problems.jsonl", retry_failed=True)
    assert code == 0
    assert any("5 because its steps came out differently" in sentence for sentence in said)
    check_hangs_together(folder, CHAINS)


@pytest.mark.slow
def test_a_whole_folder_is_left_alone(source: Path, folder: Path) -> None:
    assert resumed(folder, source / "problems.jsonl") == (0, [])
    assert rows(folder, "calls") == rows(source / "run", "calls")
    assert rows(folder, "chains") == rows(source / "run", "chains")


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
@pytest.mark.parametrize("kib", [16, 40, 64, 72, 100, 160, 256, 400, 600, 900, 1400, 2200, 3000])
def test_a_full_disk_that_is_made_larger(source: Path, disk: Callable[[int], Path], kib: int) -> None:
    folder = disk(kib) / "run"
    problems = source / "problems.jsonl"
    with suppress(RunFolderError):  # where not even `run.json` finds room
        code, _ = resumed(folder, problems, samples=3)
        assert code in ((0, 1) if kib > 900 else (1,))
    disk(64 << 10)
    resumed(folder, problems, samples=3)
    check_hangs_together(folder, 3 * CHAINS)


@pytest.mark.slow
def test_kills_at_any_moment(source: Path, tmp_path: Path) -> None:
    """Sessions are killed one after the other; a last one ends the run."""
    chance, folder, problems = random.Random(3), tmp_path / "run", source / "problems.jsonl"
    for _ in range(6):
        command = [sys.executable, "-m", "tests.support.unrepeatable", str(folder), str(problems)]
        process = subprocess.Popen(command, cwd=ROOT)
        while process.poll() is None and not (folder / FILE).exists():
            pass
        try:
            process.wait(chance.uniform(0.0, 0.6))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
    resumed(folder, problems, batch_size=16)
    check_hangs_together(folder, CHAINS)


@pytest.mark.slow
def test_every_state_between_two_changes_of_the_folder_goes_on(source: Path, tmp_path: Path) -> None:
    """The folder as a kill would leave it after each file that was made, renamed, written or deleted while parts were finished."""
    problems, live = source / "problems.jsonl", tmp_path / "live"
    code = (
        "import sys, os, shutil; from pathlib import Path\n"
        "from tests.support.unrepeatable import *\n"
        "live, states, count = Path(sys.argv[1]), Path(sys.argv[2]), 0\n"
        "def watch(event, arguments):\n"
        "    global count\n"
        "    names = ('os.rename', 'os.remove', 'os.truncate', 'open')\n"
        "    if event not in names or str(live) not in str(arguments[0]) or str(states) in str(arguments): return\n"
        "    if event == 'open' and not (arguments[2] & os.O_CREAT): return\n"
        "    if not (live / 'run.json').exists(): return\n"
        "    count += 1\n"
        "    target = states / f'{count:03}'\n"
        "    states.mkdir(exist_ok=True)\n"
        "    os.system(f'cp -r {live} {target}')\n"
        "import pipeline.store.tables as store\n"
        "store.GROUP_ROWS, store.PART_GROUPS, store.BATCH_ROWS = 64, 1, 32\n"
        "sys.addaudithook(watch)\n"
        "solve_unrepeatably(speccot(live, Path(sys.argv[3]), batch_size=8))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(live), str(tmp_path / "states"), str(problems)], cwd=ROOT, check=True)
    states = sorted((tmp_path / "states").iterdir())
    assert len(states) > 30
    for state in states[:: max(len(states) // 12, 1)]:
        assert [str(flaw) for flaw in examine(state).flaws] == [], state
        resumed(state, problems)
        check_hangs_together(state, CHAINS)


EDITS: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda run: (run / FILE).unlink(),
    "an empty manifest": lambda run: (run / FILE).write_bytes(b""),
    "a cut manifest": lambda run: os.truncate(run / FILE, (run / FILE).stat().st_size * 2 // 3),
    "a garbled manifest": lambda run: (run / FILE).write_bytes(bytes(range(256)) * 9),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_a_lost_manifest_loses_nothing(source: Path, folder: Path, edit: str) -> None:
    EDITS[edit](folder)
    lose(folder, "calls", 0.05)
    code, said = resumed(folder, source / "problems.jsonl")
    assert code == 0
    assert any("manifest" in sentence for sentence in said)
    check_hangs_together(folder, CHAINS)


def test_a_finished_run_with_a_missing_part_is_not_said_to_be_finished(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source / "run", tmp_path / "run")
    shutil.copy(source / "problems.jsonl", tmp_path)
    (tmp_path / "run/calls/part-00000.parquet").unlink()
    options = structs.replace(resume_options(tmp_path / "run"), input=tmp_path / "problems.jsonl")
    with pytest.raises(
        InputError, match=r"calls/part-00000\.parquet is missing; nothing was changed; to repair: pipeline runs check .*run --repair"
    ):
        run(options)
    assert "chains" in " ".join(repair(tmp_path / "run").repaired)


@pytest.mark.slow
def test_the_python_api_says_what_was_taken_back(source: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"engines": SIM, "batch_size": 8, "output": tmp_path / "run"}
    solve("speccot", source / "problems.jsonl", limit=6, **given)
    lose(tmp_path / "run", "steps", 0.2)
    text = (tmp_path / "run/run.json").read_text()
    (tmp_path / "run/run.json").write_text(text.replace('"finished"', '"running"'))
    found = solve("speccot", source / "problems.jsonl", limit=6, resume=True, **given)
    assert any("chains were taken back" in notice for notice in found.notices)
    check_hangs_together(tmp_path / "run", 6)
