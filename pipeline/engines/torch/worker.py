"""The worker process of engine `torch`: loads one model, then computes the requests from its socket until the socket closes.

Started by `pipeline.engines.torch.backend` as `python -m pipeline.engines.torch.worker FD`.
"""

import gc
from typing import TYPE_CHECKING

from pipeline.engines.process.wire import Setup
from pipeline.engines.process.worker import run_worker
from pipeline.engines.startup import tell_phase
from pipeline.system.worker_process import without_collections

if TYPE_CHECKING:
    from pipeline.engines.torch.runner import BatchRunner


def load(setup: Setup) -> "BatchRunner":
    """The model of `setup`, ready to compute; raises `CannotLoad`."""
    tell_phase(setup.role, "importing torch")
    with without_collections():
        from pipeline.engines.torch.model import load_model  # seconds: torch and transformers

        tell_phase(setup.role, f"loading {setup.model}")
        runner = load_model(setup)
        gc.collect()
        gc.freeze()  # what was loaded stays: later collections need not look at it
    return runner


if __name__ == "__main__":
    run_worker(load)
