"""Fault drills: a run is killed at random moments and taken up again; every chain ends once and says what it would have said."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.engines.sim.text import sim_answer
from pipeline.errors import RunFolderError
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.run import run

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import drills  # noqa: E402

SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
SPECCOT = ROOT / "graphs/speccot.yaml"


def begin(problems: Path, output: Path, *more: str) -> list[str]:
    return ["run", str(SPECCOT), "--input", str(problems), "--output", str(output), *more]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    texts = [f"Problem number {i}?" for i in range(300)]
    path.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
    return path


@pytest.fixture(scope="module")
def undisturbed(problems: Path) -> tuple[Path, float]:
    """The run that nothing disturbs, and the seconds that it takes now: on a busy machine it gets as far in more of them."""
    began = time.monotonic()
    folder = run(RunOptions(graph=SPECCOT, engines=SIM, input=problems, output=problems.parent / "whole")).folder
    return folder, time.monotonic() - began


@pytest.fixture(scope="module")
def whole(undisturbed: tuple[Path, float]) -> Path:
    return undisturbed[0]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "strikes"), [(signal.SIGKILL, 50), (signal.SIGTERM, 10)])
def test_a_run_that_is_hit_again_and_again_ends_as_if_it_had_not_been(
    tmp_path: Path, problems: Path, undisturbed: tuple[Path, float], number: signal.Signals, strikes: int
) -> None:
    def arguments(out: Path) -> list[str]:
        return begin(problems, out, "--engines", str(SIM))

    whole, takes_s = undisturbed
    found = drills.campaign(number.name, arguments, tmp_path, whole, strikes, max(0.6, takes_s / 3), number)
    assert found.faults >= strikes
    assert (found.lost, found.doubled, found.changed) == (0, 0, 0)
    assert found.rewritten_bytes > 0  # sessions got somewhere before they were hit


@pytest.mark.slow
@pytest.mark.torch
def test_the_same_on_real_models(tmp_path: Path, root: Path) -> None:
    test_set = root / "datasets/arith/test.parquet"
    whole = run(RunOptions(graph=SPECCOT, input=test_set, limit=60, output=tmp_path / "whole")).folder

    def arguments(out: Path) -> list[str]:
        return begin(test_set, out, "--limit", "60")

    found = drills.campaign("SIGKILL", arguments, tmp_path, whole, 5, 4.0, signal.SIGKILL)
    assert found.faults >= 5
    assert (found.lost, found.doubled) == (0, 0)
    assert found.changed <= found.chains / 50  # other batches round differently


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


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_with_more_room_it_goes_on(disk: Path, problems: Path, whole: Path) -> None:
    options = RunOptions(graph=SPECCOT, engines=SIM, input=problems, output=disk / "run")
    try:
        result = run(options)
        assert (result.exit_code, result.run.status) == (1, "failed")
        assert "no space left on device" in str(result.error)
    except RunFolderError as error:  # not even run.json could be written
        assert "no space left on device" in str(error)  # noqa: PT017
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    assert run(resume_options(disk / "run")).exit_code == 0
    found = drills.toll("disk full", 1, disk / "run", whole)
    assert (found.chains, found.lost, found.doubled, found.changed) == (300, 0, 0, 0)
