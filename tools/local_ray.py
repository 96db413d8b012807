"""A Ray cluster of several nodes on this machine, which come and go: for tests and benchmarks.

The cluster is kept by a program of its own, this file run as one, so that nothing of it is left in the process that uses it. It takes lines
of JSON on stdin, each of which it answers by one on stdout:

    {"add": {"num_cpus": 1}}   answers with the process of the new node, `raylet`
    {"remove": RAYLET}         that node dies as a machine does
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

END_S = 60.0
"""Most seconds that the cluster may take to end."""


class Nodes:
    """The nodes of a cluster, by the processes that they consist of; each has room for one replica unless it is said otherwise."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, __file__]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._program = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=null)
        self.address = str(self._heard()["address"])
        self.nodes: list[int] = []
        for _ in range(count):
            self.add()

    def add(self, **resources: int) -> int:
        """Let a node join."""
        self._say({"add": {"num_cpus": 1, **resources}})
        self.nodes.append(int(self._heard()["raylet"]))
        return self.nodes[-1]

    def remove(self, node: int) -> None:
        """Let a node die as a machine does."""
        self.nodes.remove(node)
        self._say({"remove": node})
        self._heard()

    def actors(self) -> list[psutil.Process]:
        """The processes of replicas."""
        children = [each for node in self.nodes for each in psutil.Process(node).children(recursive=True)]
        return [each for each in children if "ReplicaActor" in " ".join(_command(each))]

    def shutdown(self) -> None:
        """End the cluster."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.close()
        self._program.wait(END_S)
        self._program.stdout.close()

    def _say(self, order: dict[str, Any]) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()

    def _heard(self) -> dict[str, Any]:
        """The next answer; what Ray itself prints is skipped."""
        assert self._program.stdout is not None
        line = next(line for line in self._program.stdout if line.startswith("{"))
        found: dict[str, Any] = json.loads(line)
        return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextmanager
def cluster_of(count: int) -> Iterator[Nodes]:
    """A cluster of so many nodes, which Ray finds until the block ends."""
    nodes, before = Nodes(count), os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = nodes.address
    try:
        yield nodes
    finally:
        os.environ.pop("RAY_ADDRESS")
        if before is not None:
            os.environ["RAY_ADDRESS"] = before
        nodes.shutdown()


def main() -> None:
    """Keep a cluster until stdin ends."""
    warnings.simplefilter("ignore")
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes: dict[int, Any] = {}
    _answer({"address": cluster.address})
    for line in sys.stdin:
        order = json.loads(line)
        if "add" in order:
            node = cluster.add_node(**order["add"])
            raylet = node.all_processes["raylet"][0].process.pid
            nodes[raylet] = node
            _answer({"raylet": raylet})
        else:
            cluster.remove_node(nodes.pop(order["remove"]), allow_graceful=False)
            _answer({})
    cluster.shutdown()


def _answer(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
