"""What vLLM's CPU build needs to be told: one process that schedules and computes where one thread is enough, and a mended kernel.

vLLM would start two processes in addition to the worker, each of which would import everything again to set OpenMP's threads and cores
before it is loaded. One thread on one core needs neither: a fork of the worker, which has imported everything, schedules and computes.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch

_KERNEL = "_expand_kernel_impl"


def compute_in_one_fork(config: Any, cores: Collection[int]) -> None:
    """Have the engine that is made of vLLM's `config` schedule and compute in one fork of this process, on `cores` (empty: any).

    To be called between the making of `config`, which chooses otherwise, and that of the engine.
    """
    config.parallel_config.distributed_executor_backend = "uni"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    if cores:
        os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, cores))


def apply_cpu_patch() -> None:
    """Replace the kernel that spreads temperature and top-p over speculated tokens; nothing changes on a GPU.

    vLLM 0.32's own converts both tensors to integers and fills the copy of the output, so that every sampled token under
    speculation has an arbitrary temperature (`vllm.utils.cpu_triton_utils._expand_kernel_impl`; greedy text is right).
    """
    with suppress(ImportError):
        from vllm.platforms import current_platform
        from vllm.utils import cpu_triton_utils

        if current_platform.is_cpu() and hasattr(cpu_triton_utils, _KERNEL):
            setattr(cpu_triton_utils, _KERNEL, expand)


def expand(output: Any, values: Any, cumulative_counts: Any, replace_from: Any, replace_to: Any, *_: Any, **__: Any) -> None:
    """Repeat each of `values` (batch) in `output` (tokens) for each token of that sequence, with `replace_to` in place of
    `replace_from`; `cumulative_counts` (batch) are running sums of the sequences' tokens."""
    counts = torch.diff(cumulative_counts.to(torch.int64), prepend=torch.zeros(1, dtype=torch.int64))
    spread = torch.where(values == replace_from, torch.as_tensor(replace_to, dtype=values.dtype), values).repeat_interleave(counts)
    output[: len(spread)] = spread
