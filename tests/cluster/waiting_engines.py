"""Runs of replicas whose engines wait in real time in place of computing."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline.cli.live import repeated
from pipeline.options import RunOptions
from pipeline.run.observer import Observer, Work
from pipeline.run.prepare import Prepared
from tests.support.paths import ROOT

ENGINE = (
    "{backend: sim, model: waiting, max_in_flight: 64, parameters: 1, kv_bytes_per_token: 0, kv_cache_tokens: 10000000,"
    " device: {name: nowhere, flops_per_s: .inf, bytes_per_s: .inf, overhead_s: 0.004},"
    " text: {steps_mean: 6, step_tokens_mean: 8, answer_tokens: 8}}"
)


def when(done: int, act: Callable[[], object], told: list[str]) -> Observer:
    """An observer that acts once, when so many chains are done."""
    acted = threading.Event()

    def watch(run: Prepared, work: Work) -> AbstractContextManager[None]:
        def look() -> None:
            if not acted.is_set() and work.progress.done >= done:
                acted.set()
                act()

        return repeated(0.01, look)

    return Observer(watch=watch, tell=told.append)


def engines_file(folder: Path) -> Path:
    path = folder / "waiting.yaml"
    path.write_text(f"draft: {ENGINE}\ntarget: {ENGINE}\n")
    return path


def waiting(folder: Path, name: str, **more: Any) -> RunOptions:
    """A run of `folder`/problems.jsonl into `folder`/`name`."""
    engines, graph = engines_file(folder), ROOT / "graphs/speccot.yaml"
    return RunOptions(
        graph=graph, engines=engines, input=(str(folder / "problems.jsonl"),), output=folder / name, **{"batch_size": 4, **more}
    )
