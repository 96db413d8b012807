"""Fault drills: a run is killed at random moments and taken up again; every chain ends once and says what it would have said."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.engines.sim_text import sim_answer
from pipeline.errors import RunFolderError
from pipeline.options import RunOptions, resume_options
from pipeline.run import run

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import drills  # noqa: E402

SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
SPECCOT = ROOT / "graphs/speccot.yaml"


def begin(problems: Path, output: Path, *more: str) -> list[str]:
    return ["run", str(SPECCOT), "--input", str(problems), "--output", str(output), *more]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    texts = [f"Problem number {i}?" for i in range(500)]
    path.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
    return path


@pytest.fixture(scope="module")
def whole(problems: Path) -> Path:
    """The run that nothing disturbs."""
    return run(RunOptions(graph=SPECCOT, engines=SIM, input=problems, output=problems.parent / "whole")).folder


@pytest.mark.slow
@pytest.mark.parametrize(("number", "strikes", "longest_s"), [(signal.SIGKILL, 50, 0.12), (signal.SIGTERM, 10, 0.2)])
def test_a_run_that_is_hit_again_and_again_ends_as_if_it_had_not_been(
    tmp_path: Path, problems: Path, whole: Path, number: signal.Signals, strikes: int, longest_s: float
) -> None:
    arguments = begin(problems, tmp_path / "run", "--engines", str(SIM))
    struck, resume_s = drills.struck_until_done(arguments, tmp_path / "run", strikes, random.Random(0), longest_s, number)
    assert struck == strikes
    found = drills.toll(number.name, struck, tmp_path / "run", whole, resume_s)
    assert (found.chains, found.lost, found.doubled, found.changed) == (500, 0, 0, 0)


@pytest.mark.slow
def test_the_same_on_real_models(tmp_path: Path, root: Path) -> None:
    test_set = root / "datasets/arith/test.parquet"
    whole = run(RunOptions(graph=SPECCOT, input=test_set, limit=60, output=tmp_path / "whole")).folder
    arguments = begin(test_set, tmp_path / "run", "--limit", "60")
    struck, resume_s = drills.struck_until_done(arguments, tmp_path / "run", 5, random.Random(1), 1.0)
    found = drills.toll("SIGKILL", struck, tmp_path / "run", whole, resume_s)
    assert struck == 5
    assert (found.chains, found.lost, found.doubled) == (60, 0, 0)
    assert found.changed <= 2  # other batches round differently


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("only root can make a small file system here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_ends_the_run_and_with_more_room_it_goes_on(disk: Path, problems: Path, whole: Path) -> None:
    options = RunOptions(graph=SPECCOT, engines=SIM, input=problems, output=disk / "run")
    try:
        result = run(options)
        assert (result.exit_code, result.run.status) == (1, "failed")
        assert "No space left on device" in str(result.error)
    except RunFolderError as error:  # not even run.json could be written
        assert "No space left on device" in str(error)  # noqa: PT017
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    assert run(resume_options(disk / "run")).exit_code == 0
    found = drills.toll("disk full", 1, disk / "run", whole)
    assert (found.chains, found.lost, found.doubled, found.changed) == (500, 0, 0, 0)
