"""A Ray cluster of several nodes on this machine, whose engines wait in real time in place of computing."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from pipeline.session.observer import Observer, View
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S

ENGINE = (
    "{backend: sim, model: waiting, max_in_flight: 64, parameters: 1, kv_bytes_per_token: 0, kv_cache_tokens: 10000000,"
    " device: {name: nowhere, flops_per_s: .inf, bytes_per_s: .inf, overhead_s: 0.004},"
    " text: {steps_mean: 6, step_tokens_mean: 8, answer_tokens: 8}}"
)


class Nodes:
    """The nodes of a cluster, by the processes that they consist of; each has room for one replica unless it is said otherwise."""

    def __init__(self, count: int) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_nodes"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.address = str(self._heard()["address"])
        self.nodes: list[int] = []
        for _ in range(count):
            self.add()

    def add(self, **resources: int) -> int:
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
        assert self._program.stdin is not None
        self._program.stdin.close()
        self._program.wait(HANGS_S)
        assert self._program.stdout is not None
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
def addressed(nodes: Nodes) -> Iterator[None]:
    """Let Ray find this cluster."""
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = nodes.address
    try:
        yield
    finally:
        os.environ.pop("RAY_ADDRESS")
        if before is not None:
            os.environ["RAY_ADDRESS"] = before


def when(done: int, act: Callable[[View], object], told: list[str]) -> Observer:
    """An observer that acts once, when so many chains are done."""
    over = threading.Event()

    @contextmanager
    def watch(view: View) -> Iterator[None]:
        def wait() -> None:
            while not over.wait(0.01):
                if view.progress.done >= done:
                    act(view)
                    return

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    return Observer(watch=watch, tell=told.append)


def engines_file(folder: Path) -> Path:
    path = folder / "waiting.yaml"
    path.write_text(f"draft: {ENGINE}\ntarget: {ENGINE}\n")
    return path
