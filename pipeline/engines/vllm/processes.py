"""Which processes an engine on CPU cores consists of: the worker with vLLM's front end, and one that schedules and computes.

vLLM's CPU build would start two in addition to the worker, one that schedules and one that computes, and each would import everything
again, because the number of OpenMP's threads and their cores have to be set before a process loads OpenMP. One thread on one core needs
neither: the process that schedules computes, too, and is a fork of the worker, which has imported everything.
"""

import os
from collections.abc import Collection
from typing import Any

from pipeline.engines.vllm.spec import VllmSpec


def one_thread(spec: VllmSpec) -> bool:
    """Whether a CPU computes the model of `spec` with one thread."""
    return spec.threads == 1 and spec.tensor_parallel_size == 1


def compute_in_one_fork(config: Any, cores: Collection[int]) -> None:
    """Have the engine that is made of vLLM's `config` schedule and compute in one fork of this process, on `cores` (empty: any).

    To be called between the making of `config`, which chooses otherwise, and that of the engine.
    """
    config.parallel_config.distributed_executor_backend = "uni"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    if cores:
        os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, cores))
