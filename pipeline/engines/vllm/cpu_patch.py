"""Mends a defect of vLLM's CPU build: its processes replace one function before they start. Nothing changes on a GPU."""

from contextlib import suppress
from typing import Any

import torch

_KERNEL = "_expand_kernel_impl"


def apply_cpu_patch() -> None:
    """Replace the kernel that spreads temperature and top-p over speculated tokens.

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
