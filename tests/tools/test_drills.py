"""Fault drills, a few strikes of each kind; `bench/reliability.py` has many. Every chain is there once, whole, and says what it said."""

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from drills import disk, engines, garbage, grounds, servers, signals, surroundings  # noqa: E402
from drills.toll import Ground, Toll  # noqa: E402

pytestmark = pytest.mark.slow
Make = Callable[..., Ground]
"""Makes the ground of a kind of engines: so many rows, solved by a graph."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.fixture(scope="module", params=["same", "varying"])
def ground(request: pytest.FixtureRequest, place: Path) -> Ground:
    """40 problems on engines that answer the same twice, and on some that never do."""
    return grounds.simulated(place, 40) if request.param == "same" else grounds.varying(place, 40)


@pytest.fixture(scope="module")
def target(place: Path) -> Ground:
    """More problems than are read ahead, in one call each, on engines that never answer the same twice."""
    return grounds.varying(place, 300, "target")


@pytest.fixture
def luck(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.name)


def assert_harmless(toll: Toll) -> None:
    assert toll.harmless, toll


@pytest.mark.parametrize(("number", "strikes"), [(signal.SIGKILL, 5), (signal.SIGTERM, 1), (signal.SIGINT, 1)])
def test_a_run_that_is_hit_again_and_again(
    tmp_path: Path, ground: Ground, luck: random.Random, number: signal.Signals, strikes: int
) -> None:
    toll = signals.killed(ground, tmp_path, strikes, luck, 0.4, number)
    assert toll.faults == strikes
    assert_harmless(toll)


@pytest.mark.torch
def test_a_run_on_real_models_that_is_killed(tmp_path: Path, luck: random.Random) -> None:
    toll = signals.killed(grounds.torch(tmp_path, 12, "target"), tmp_path / "struck", 1, luck, 2.0)
    assert toll.faults == 1
    assert (toll.lost, toll.doubled, toll.torn, toll.failed, toll.tracebacks, toll.wrong_ends) == (0, 0, 0, 0, 0, 0)
    assert (toll.changed or 0) <= 1  # other batches round differently


def test_a_disk_that_is_full_and_later_larger(tmp_path: Path, ground: Ground) -> None:
    try:
        toll = disk.full(ground, tmp_path, [16 << 10, 192 << 10])
    except disk.CannotMount as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    assert toll.faults == 2
    assert_harmless(toll)


@pytest.fixture(scope="module")
def halves(place: Path) -> tuple[Ground, Path, Path]:
    """Two half-done runs of the same command, on engines that never answer the same twice."""
    ground, luck = grounds.varying(place, 70), random.Random(0)
    return ground, *(signals.half_done(ground, place / "halves" / name, luck, 0.1) for name in ("one", "other"))


@pytest.mark.parametrize("damage", garbage.DAMAGES, ids=lambda damage: damage.__name__)
def test_garbage_in_the_folder(tmp_path: Path, halves: tuple[Ground, Path, Path], luck: random.Random, damage: garbage.Damage) -> None:
    """Refused with a sentence and repaired, or everything is there once."""
    ground, one, other = halves
    assert_harmless(garbage.damaged(damage, ground, tmp_path, one, other, 1, luck))


@pytest.mark.parametrize("change", surroundings.CHANGES, ids=lambda change: change.__name__)
def test_an_input_that_changes(tmp_path: Path, target: Ground, luck: random.Random, change: surroundings.Change) -> None:
    toll = surroundings.input_changed(change, target, tmp_path, 1, luck, 0.05)
    assert toll.faults == 1
    assert_harmless(toll)


def test_several_runs_at_once(tmp_path: Path, place: Path) -> None:
    few = grounds.varying(place, 20, "target")
    assert_harmless(surroundings.same_output(few, tmp_path, 1))
    assert_harmless(surroundings.same_name(few, tmp_path, 1))


def test_output_that_nobody_takes(tmp_path: Path, place: Path) -> None:
    assert_harmless(surroundings.mute(grounds.varying(place, 20, "target"), tmp_path / "mute"))


@pytest.mark.parametrize("fault", engines.FAULTS)
def test_simulated_engines_that_fail(tmp_path: Path, place: Path, fault: str) -> None:
    toll = engines.failing(fault, grounds.varying(place, 40), tmp_path)
    assert toll.faults > 0
    assert_harmless(toll)


@pytest.mark.parametrize("way", ["cut"])
def test_a_server_that_misbehaves_at_times(tmp_path: Path, luck: random.Random, way: str) -> None:
    assert_harmless(servers.moody(way, tmp_path, 3, luck))


@pytest.mark.parametrize("way", ["401", "hang"])
def test_one_of_two_servers_that_always_misbehaves(tmp_path: Path, luck: random.Random, way: str) -> None:
    toll = servers.one_of_two(way, tmp_path, 3, luck)
    assert toll.faults > 0
    assert_harmless(toll)


def test_a_run_that_is_suspended(tmp_path: Path, luck: random.Random) -> None:
    with grounds.served(tmp_path, 3, replicas=1, timeout_s=1.0, takes_s=0.1) as (ground, [server]):
        toll = signals.suspended(ground, server.always.gate, tmp_path, 1, luck, pause_s=1.5)
    assert toll.faults == 1
    assert_harmless(toll)
