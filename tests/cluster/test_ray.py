"""A real Ray node on this machine: replicas as its actors give the answers of one process, and the example for Ray Data runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

from pipeline.cluster.ray import check_room
from pipeline.errors import UsageError
from pipeline.run.prepare import load_plan
from pipeline.run.run import Observer, SessionResult
from tests.cluster.conftest import check_whole, in_real_time, waiting, when
from tests.support.paths import ROOT, SIM
from tests.support.patience import HANGS_S
from tests.support.runs import rows, solve, write_problems

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
BATCHES = f"""
import json, runpy
Solver = runpy.run_path({str(ROOT / "examples/ray_data.py")!r}, run_name="__main__")["Solver"]
import ray
problems = [json.loads(line) for line in open("problems.jsonl")]
problems.append({{**problems[0], "problem_id": "empty", "problem": ""}})
actors = ray.data.ActorPoolStrategy(min_size=1, max_size=2)
options = {{"graph": "speccot", "engines": "sim-instant"}}
solved = ray.data.from_items(problems).map_batches(
    Solver, fn_constructor_kwargs=options, batch_size=3, batch_format="pyarrow", compute=actors
)
print(json.dumps(solved.take_all()))
"""


@pytest.fixture(scope="module", autouse=True)
def address() -> Iterator[str]:
    """The address of the one node of these tests."""
    yield ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False).address_info["gcs_address"]
    ray.shutdown()


def actors() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += [process] if "ray::ShardWorker" in " ".join(process.cmdline()) else []
    return found


def test_an_actor_that_dies_is_replaced_and_resumes_its_shard(folder: Path, alone: SessionResult) -> None:
    told: list[str] = []
    options = waiting(folder, "struck-actor", cluster="ray", replicas=2)
    with when(folder / "struck-actor", 8, lambda: actors()[0].kill()):
        check_whole(in_real_time(options, Observer(tell=told.append)), alone)
    assert any("lost, starting it again" in sentence for sentence in told)


def test_batches_of_ray_data_are_answered_as_in_a_run(tmp_path: Path, address: str) -> None:
    expected = solve(tmp_path, engines=SIM.with_name("sim-instant.yaml"), input=write_problems(tmp_path, 8))
    environment = os.environ | {"RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", BATCHES], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    *script, last = done.stdout.splitlines()
    assert script[-1] == "100% right"
    found = {row["problem_id"]: row for row in json.loads(last)}
    assert found.pop("empty")["error"].endswith("has no `problem`")
    chains = {row["problem_id"]: (row["answer"], row["correct"], None) for row in rows(expected, "chains")}
    assert {name: (row["solution"], row["correct"], row["error"]) for name, row in found.items()} == chains


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
        in_real_time(waiting(folder, "nowhere", cluster="slurm"))
