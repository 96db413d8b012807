"""The torch engine's draw, which no order of addition changes."""

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def sampling() -> Any:
    from pipeline.engines.torch import sampling as module

    return module


def params(sampling: Any, rows: int, **options: float) -> Any:
    told = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0} | options
    kinds = {"temperature": np.float32, "top_p": np.float32, "top_k": np.int64, "min_p": np.float32}
    keys = np.array([sampling.stream_key(7, row) for row in range(rows)], dtype=np.uint64)
    filled = {name: np.full(rows, told[name], dtype=kind) for name, kind in kinds.items()}
    return sampling.SamplingParams(**filled, keys=keys, positions=np.arange(rows, dtype=np.uint64))


def in_blocks(size: int) -> Any:
    """A running sum as a GPU makes it: of blocks, each of which then gets the sum of those before it."""
    import torch

    def cumsum(tensor: Any, dim: int) -> Any:
        padded = torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % size)).unflatten(-1, (-1, size))
        within = torch.cumsum(padded, dim=-1)
        before = torch.cumsum(within[..., -1:], dim=-2) - within[..., -1:]
        return (within + before).flatten(-2)[..., : tensor.shape[-1]].contiguous()

    return cumsum


@pytest.mark.parametrize("bounds", [{}, {"top_p": 0.7}])
def test_no_order_of_addition_changes_a_draw(sampling: Any, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, float]) -> None:
    import torch

    rows, vocabulary = 16, 150_000
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1)) * 0.01
    asked = params(sampling, rows, **bounds)
    drawn = sampling.sample(logits, asked).tolist()
    for size in (7, 1024):
        monkeypatch.setattr(torch.Tensor, "cumsum", in_blocks(size))
        assert sampling.sample(logits, asked).tolist() == drawn


def test_a_draw_is_that_of_whole_numbers(sampling: Any) -> None:
    import torch

    logits = torch.randn(16, 500, generator=torch.Generator().manual_seed(1)) * 4
    asked = params(sampling, 16)
    weights = (torch.softmax(logits, dim=-1).double() * 2**36).floor().to(torch.int64)
    for row, (numbers, drawn) in enumerate(zip(weights.tolist(), sampling.sample(logits, asked).tolist(), strict=True)):
        sums = list(accumulate(numbers))
        assert drawn == bisect_right(sums, int(sampling.uniforms(asked.keys, asked.positions)[row] * 2**24) * sums[-1] >> 24)


@pytest.mark.parametrize(("bound", "kept"), [({"top_p": 0.5}, 3), ({"top_k": 3}, 3), ({"min_p": 0.5}, 4)], ids=str)
def test_of_equal_tokens_the_first_are_kept(sampling: Any, bound: dict[str, float], kept: int) -> None:
    """Four tokens that are equally likely, of which a half is two and a little: which of them is left is not left to a sort."""
    import torch

    logits = torch.zeros(64, 5)
    logits[:, 4] = -3.0
    drawn = sampling.sample(logits, params(sampling, 64, **bound))
    assert set(drawn.tolist()) == set(range(kept))
