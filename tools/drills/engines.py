"""The engines are struck: simulated ones die, hang and answer with garbage, real ones lose their processes, servers misbehave."""

import random
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from drills.command import Command, carried_out
from drills.grounds import SIM, served
from drills.signals import rows_bytes, started
from drills.toll import Ground, Toll, card, toll
from tests.support.small_server import Fault, Handler, Reply, SmallServer, cut, raw, status

FAULTS: Mapping[str, tuple[str, ...]] = {
    "engine dies": ("faults.dies_after_calls=200", "max_restarts=1000"),
    "engine hangs": ("faults.hangs_after_calls=200", "max_restarts=1000", "hang_s=10"),
    "engine answers with garbage": ("faults.garbage_share=0.05", "max_retries=20"),
}
"""Settings of the draft that make it fail."""


def failing(fault: str, ground: Ground, folder: Path) -> Toll:
    """A run whose simulated draft fails as it is told."""
    folder.mkdir(parents=True, exist_ok=True)
    run, log = folder / fault.replace(" ", "-"), folder / f"{fault}.log"
    settings = [word for setting in FAULTS[fault] for word in ("--set", f"engines.draft.{setting}")]
    engines = folder / "faulty.yaml"
    engines.write_text(SIM.read_text().replace("backend: sim", "backend: faulty"))
    command = [str(engines) if word == str(SIM) else word for word in ground.command(run)]
    code = carried_out([*command, *settings], log)
    errors = pq.read_table(run / "calls", columns=["error_type"]).column(0)
    faults = card(run)["sessions"][-1]["engine_statistics"]["draft"]["restarts"] or len(errors) - errors.null_count
    return toll(fault, ground, run, log, faults=faults, wrong_ends=int(code != 0))


WORKER = "pipeline.engines.torch.model:load_model"
"""What an engine process runs."""


def killed_workers(ground: Ground, folder: Path, kills: int) -> Toll:
    """A run on real models whose engine processes are killed, one after the other."""
    run, log = folder / "torch-workers", folder / "torch-workers.log"
    limits = [word for role in ("draft", "target") for word in ("--set", f"engines.{role}.max_restarts={kills}")]
    command = Command([*ground.command(run), *limits], log)
    killed = sum(_kill_one(command, run) for _ in range(kills))
    if not killed:
        raise RuntimeError(f"no engine process was found to be killed, see {log}")
    return toll("SIGKILL of an engine process", ground, run, log, faults=killed, wrong_ends=int(command.wait() != 0))


def _kill_one(command: Command, run: Path) -> bool:
    """Once more is written, one engine process goes; has one?"""
    size = rows_bytes(run)
    while not command.over and rows_bytes(run) < size + 20_000:
        command.process.join(0.01)
    workers = [child for child in command.children() if _is_worker(child)]
    for worker in workers[:1]:
        worker.kill()
    return bool(workers)


def _is_worker(process: psutil.Process) -> bool:
    """Whether a process is an engine's; one that has ended is none."""
    try:
        return WORKER in process.cmdline()
    except psutil.NoSuchProcess:
        return False


HTML = raw(b"<!doctype html><title>502 Bad Gateway</title>")
FOR_A_MOMENT: Mapping[str, Fault] = {
    "429": status(429),
    "500": status(500),
    "503": status(503),
    "HTML": HTML,
    "cut": cut,
    "empty": raw(b""),
    "half of a JSON object": raw(b'{"choices": [{"index": 0, "te'),
}
"""What may be another time: the request is sent again."""


class Sometimes:
    """A fault that meets a `share` of the requests for completions, and counts them."""

    def __init__(self, fault: Fault, share: float, luck: random.Random) -> None:
        self.fault, self.share, self.luck, self.count = fault, share, luck, 0

    def __call__(self, handler: Handler, reply: Reply) -> None:
        if handler.command == "POST" and self.luck.random() < self.share:
            self.count += 1
            self.fault(handler, reply)
        else:
            handler.send(reply)


def moody(way: str, folder: Path, rows: int, luck: random.Random, share: float = 0.1) -> Toll:
    """The only server misbehaves at a share of the requests."""
    with served(folder, rows) as (ground, server):
        return _solved(f"server: {way}, at times", ground, folder / "run", server, Sometimes(FOR_A_MOMENT[way], share, luck))


def _solved(name: str, ground: Ground, run: Path, server: SmallServer, fault: Sometimes) -> Toll:
    """A run whose `server` has the `fault` once chains can start."""
    log = run.with_suffix(".log")
    command, _ = started(ground, run, log, wait=True)
    server.always = fault
    code = command.wait()
    return toll(name, ground, run, log, faults=fault.count, wrong_ends=int(code != 0))
