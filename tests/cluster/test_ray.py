"""Replicas as actors of a real Ray node on this machine: the same answers as one process, whatever dies in between."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
from msgspec import structs

from pipeline.cluster.ray import check_room, solve_on_ray
from pipeline.errors import UsageError
from pipeline.options import RunOptions
from pipeline.run.loop import in_loop
from pipeline.run.observer import Observer
from pipeline.run.prepare import load_plan, prepare
from pipeline.run.run import SessionResult, run
from tests.cluster.waiting_engines import waiting, when
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT
from tests.support.runs import said, write_problems

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
CHAINS = 40


@pytest.fixture(scope="module", autouse=True)
def _node() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def alone(folder: Path) -> SessionResult:
    """The run of one process, whose answers all others are to give."""
    write_problems(folder, CHAINS)
    return run(waiting(folder, "alone"))


def actors() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += [process] if "ray::ShardWorker" in " ".join(process.cmdline()) else []
    return found


def on_ray(options: RunOptions, observer: Observer) -> SessionResult:
    """The run in real time, so that something can happen meanwhile."""
    plan = load_plan(options.graph, options.bound_engines, options.settings)
    with prepare(options, plan, virtual=False) as ready:
        result: SessionResult = in_loop(partial(solve_on_ray, ready, observer), virtual=False)
    return result


def test_an_actor_that_dies_is_replaced_and_resumes_its_shard(folder: Path, alone: SessionResult) -> None:
    told: list[str] = []
    options = waiting(folder, "struck", cluster="ray", replicas=2)
    result = on_ray(options, when(8, lambda: actors()[0].kill(), told))
    assert (result.exit_code, result.done, result.error) == (0, CHAINS, None)
    check_hangs_together(folder / "struck", CHAINS)
    assert said(result) == said(alone)
    assert any("lost, starting it again" in sentence for sentence in told)


def test_what_a_cluster_has_no_room_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan(ROOT / "graphs/speccot.yaml", None, ("engines.target.device='cuda:1'", "engines.draft.device='cuda:0'"))
    options = waiting(folder, "room", cluster="ray", replicas=4)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}])
    with pytest.raises(UsageError, match="each replica needs 2 GPUs on one node, but no node has more than 1"):
        check_room(plan, options)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}}])
    assert check_room(plan, options) == 2
    ray.shutdown()
    with pytest.raises(UsageError, match=r"^--cluster slurm: cannot connect: Invalid address format"):
        on_ray(structs.replace(waiting(folder, "nowhere"), cluster="slurm"), Observer())
