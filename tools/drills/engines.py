"""The engines are struck: those of `tests/support/faulty_engine.py` die, hang and answer with garbage, real ones lose their processes."""

from collections.abc import Mapping
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from drills.command import Command, carried_out
from drills.grounds import SIM
from drills.signals import rows_bytes
from drills.toll import Ground, Toll, card, toll

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
    code = carried_out([*ground.command(run), "--engines", str(engines), *settings], log)
    errors = pq.read_table(run / "calls", columns=["error_type"]).column(0)
    faults = card(run)["engine_statistics"]["draft"]["restarts"] or len(errors) - errors.null_count
    return toll(fault, ground, run, log, faults=faults, wrong_ends=int(code != 0))


WORKER = "pipeline.engines.torch.worker"
"""The module that an engine process of torch runs."""


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
