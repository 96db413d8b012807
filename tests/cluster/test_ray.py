"""Runs on the actors of a real Ray cluster on this machine: the same answers as one process, whatever dies in between."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from ray.cluster_utils import Cluster

from pipeline.cli.signals import restored_handlers
from pipeline.cluster.ray_actors import check_room, solve_on_ray
from pipeline.errors import UsageError
from pipeline.session.observer import Observer
from pipeline.session.options import resume_options
from pipeline.session.prepare import load_plan
from pipeline.session.run import SessionResult, run
from tests.support.commands import COMMAND, pipeline
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.runs import said, write_problems
from tests.support.waiting_engines import engines_file, waiting, when

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
CHAINS = 60


class Nodes:
    """The nodes of a cluster on this machine that runs replicas, one each; they come and go."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.nodes = cluster, list[Any]()

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=1))

    def remove(self, node: Any) -> None:
        """Let a node die as a machine does."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def actors(self) -> list[tuple[Any, psutil.Process]]:
        """Each node of a replica, with its process."""
        raylets = [(node, psutil.Process(node.all_processes["raylet"][0].process.pid)) for node in self.nodes]
        return [(node, each) for node, raylet in raylets for each in raylet.children(recursive=True) if is_replica(each)]


def is_replica(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "ReplicaActor" in " ".join(process.cmdline())
    return False


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with restored_handlers(), pytest.MonkeyPatch.context() as environment:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        environment.setenv("RAY_ADDRESS", cluster.address)
        found = Nodes(cluster)
        for _ in range(2):
            found.add()
        yield found
        cluster.shutdown()


@pytest.fixture(autouse=True)
def _two_nodes(nodes: Nodes) -> Iterator[None]:
    """Every test begins with two nodes, on which nothing runs any more."""
    yield
    for _ in range(int(HANGS_S * 20)):
        if not nodes.actors():
            break
        threading.Event().wait(0.05)
    for node in nodes.nodes[2:]:
        nodes.remove(node)
    while len(nodes.nodes) < 2:
        nodes.add()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def alone(folder: Path) -> SessionResult:
    """The run of one process, on virtual time, whose answers all others are to give."""
    write_problems(folder, CHAINS)
    return run(waiting(folder, "alone"))


def on_ray(folder: Path, name: str, observer: Observer | None = None, replicas: int = 2, **more: Any) -> SessionResult:
    return run(waiting(folder, name, cluster="ray", replicas=replicas, **more), observer, carry_out=solve_on_ray)


def check(result: SessionResult, alone: SessionResult) -> None:
    """Fails unless the run has every chain once, with the answers of the run of one process."""
    assert (result.exit_code, result.done, result.error) == (0, CHAINS, None)
    assert result.folder is not None
    check_hangs_together(result.folder, CHAINS)
    assert said(result) == said(alone)
    assert sum(replica.chains for replica in result.run.sessions[-1].replicas) <= CHAINS


def test_two_replicas_answer_as_one_process(folder: Path, alone: SessionResult, nodes: Nodes) -> None:
    result = on_ray(folder, "two")
    check(result, alone)
    replicas = result.run.sessions[-1].replicas
    assert [replica.starts for replica in replicas] == [1, 1]
    assert len({replica.node for replica in replicas}) == 2, "each node has room for one"
    calls = pq.read_table(folder / "two/calls", columns=["replica", "node"]).to_pylist()
    assert {(row["replica"], row["node"]) for row in calls} == {(number, replica.node) for number, replica in enumerate(replicas)}
    assert not nodes.actors(), "no process is left behind"


def test_a_replica_and_a_node_that_die_are_replaced_and_their_chains_go_on(folder: Path, alone: SessionResult, nodes: Nodes) -> None:
    told: list[str] = []

    def strike(view: Any) -> None:
        (_, process), *_, (node, _) = nodes.actors()
        process.send_signal(signal.SIGKILL)
        nodes.remove(node)

    nodes.add()
    result = on_ray(folder, "struck", when(8, strike, told))
    check(result, alone)
    losses = [loss for replica in result.run.sessions[-1].replicas for loss in replica.losses]
    assert len(losses) >= 2, "perhaps more: for some seconds Ray may still start actors on the dead node"
    assert any("lost, restarting it" in sentence for sentence in told)
    assert len({row["node"] for row in pq.read_table(folder / "struck/calls", columns=["node"]).to_pylist()}) >= 2


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A `pipeline` command in a process group of its own."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def solving(folder: Path, name: str) -> subprocess.Popen[str]:
    """A run of a process that has recorded some chains."""
    process = command(
        folder, "run", str(ROOT / "graphs/speccot.yaml"), "--engines", str(engines_file(folder)), "--input", "problems.jsonl",
        "--output", name, "--cluster", "ray", "--replicas", "2", "--batch-size", "2",
    )  # fmt: skip
    over = threading.Event()
    wal = folder / name / "chains"
    for _ in range(int(HANGS_S * 20)):
        if process.poll() is not None or (any(wal.glob("wal-*")) and next(wal.glob("wal-*")).stat().st_size > 8192):
            break
        over.wait(0.05)
    return process


def test_ctrl_c_drains_and_the_run_goes_on_in_one_process(folder: Path, alone: SessionResult, nodes: Nodes) -> None:
    process = solving(folder, "drained")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, output
    assert "to resume: pipeline resume drained" in output
    _, alive = psutil.wait_procs(
        [process for _, process in nodes.actors()], timeout=HANGS_S
    )  # the cluster ends them once it has seen that their driver is gone
    assert not alive
    chains = pq.read_table(folder / "drained/chains").to_pylist()
    assert 0 < len(chains) < CHAINS
    assert all(row["stop_reason"] not in ("cancelled", "error") for row in chains), "chains in flight came to their ends"
    on_engines = structs.replace(resume_options(folder / "drained"), cluster=None, replicas=1)
    result = run(on_engines)
    check(result, alone)


def test_a_model_that_no_node_has_is_one_sentence(folder: Path, alone: SessionResult) -> None:
    engines = folder / "missing.yaml"
    engines.write_text("draft: {backend: torch, model: /nowhere/draft}\ntarget: {backend: torch, model: /nowhere/target}\n")
    with pytest.raises(UsageError) as found:
        run(structs.replace(waiting(folder, "missing", cluster="ray", replicas=2), engines=engines), carry_out=solve_on_ray)
    assert "/nowhere/" in str(found.value)
    assert not (folder / "missing").exists()


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ("ray://127.0.0.1:9", "--cluster ray://127.0.0.1:9: does not answer: connection refused"),
        ("ray://nobody", "--cluster ray://nobody: expected ray, or ray://HOST:PORT with the port of Ray's client server, such as 10001"),
        ("slurm", "--cluster slurm: expected ray, or ray://HOST:PORT with the port of Ray's client server, such as 10001"),
    ],
)
def test_an_address_that_is_none(folder: Path, alone: SessionResult, cluster: str, sentence: str) -> None:
    with pytest.raises(UsageError) as found:
        run(waiting(folder, "nowhere", cluster=cluster), carry_out=solve_on_ray)
    assert str(found.value) == sentence


def test_more_gpus_than_a_node_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def there(*gpus: int) -> None:
        resources = [{"CPU": 4.0, **({"GPU": float(count)} if count else {})} for count in gpus]
        monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": each} for each in resources])

    plan = load_plan(ROOT / "graphs/speccot.yaml", None, ("engines.target.device='cuda:1'", "engines.draft.device='cuda:0'"))
    asked = waiting(folder, "gpus", cluster="ray", replicas=4)
    told: list[str] = []
    there(0, 1)
    with pytest.raises(UsageError) as found:
        check_room(plan, asked, told.append)
    assert str(found.value) == (
        "--cluster ray: by its engines file each replica needs 2 GPUs on one node, but no node has more than 1; "
        "set engines.ROLE.device or devices"
    )
    there(0, 4)
    assert check_room(plan, asked, told.append) == 2
    assert told == ["warning: --replicas 4: the cluster has 2 GPUs for 2 of them; the others wait for nodes that join"]


def test_without_ray_installed(folder: Path, alone: SessionResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipeline.cluster.ray_actors", None)
    problems = folder / "problems.jsonl"
    done = pipeline("run", "speccot", "--input", problems, "--cluster", "ray", "--output", folder / "without")
    words = 'error: --cluster ray needs the package `ray`, which is not installed: pip install "speculative-pipeline[ray]"\n'
    assert (done.returncode, done.stderr) == (2, words)
