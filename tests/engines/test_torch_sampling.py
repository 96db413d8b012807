"""The torch engine's draw: it follows the distribution, and no order of addition changes it."""

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch


def params(rows: int, **options: float) -> Any:
    from pipeline.engines.torch.sampling import SamplingParams, stream_key

    told = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0} | options
    kinds = {"temperature": np.float32, "top_p": np.float32, "top_k": np.int64, "min_p": np.float32}
    keys = np.array([stream_key(7, row) for row in range(rows)], dtype=np.uint64)
    filled: dict[str, Any] = {name: np.full(rows, told[name], dtype=kind) for name, kind in kinds.items()}
    return SamplingParams(**filled, keys=keys, positions=np.arange(rows, dtype=np.uint64))


def drawn(logits: Any, asked: Any) -> list[int]:
    from pipeline.engines.torch.sampling import sample

    tokens: list[int] = sample(logits, asked).tolist()
    return tokens


PROBABILITIES = [0.3, 0.2, 0.2, 0.2, 0.06, 0.04]


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({}, 6),
        ({"top_p": 0.4}, 2),
        ({"top_k": 3}, 3),
        ({"min_p": 0.5}, 4),
        ({"top_k": 5, "min_p": 0.5}, 4),
        ({"top_k": 3, "top_p": 0.7}, 2),
        ({"top_k": 3, "top_p": 0.72}, 3),
    ],
    ids=str,
)
def test_draws_follow_what_the_bounds_leave_and_of_equal_tokens_the_first_are_kept(bounds: dict[str, float], kept: int) -> None:
    import torch

    left = np.array([*PROBABILITIES[:kept], *[0.0] * (6 - kept)])
    counts = np.bincount(drawn(torch.tensor([PROBABILITIES] * 4000).log(), params(4000, **bounds)), minlength=6)
    assert counts / 4000 == pytest.approx(left / left.sum(), abs=0.03)
    assert not counts[kept:].any()


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
def test_no_order_of_addition_changes_a_draw(monkeypatch: pytest.MonkeyPatch, bounds: dict[str, float]) -> None:
    import torch

    logits = torch.randn(16, 150_000, generator=torch.Generator().manual_seed(1)) * 0.01
    asked = params(16, **bounds)
    once = drawn(logits, asked)
    for size in (7, 1024):
        monkeypatch.setattr(torch.Tensor, "cumsum", in_blocks(size))
        assert drawn(logits, asked) == once


def test_a_draw_is_that_of_whole_numbers() -> None:
    import torch

    from pipeline.engines.torch.sampling import uniforms

    logits, asked = torch.randn(16, 500, generator=torch.Generator().manual_seed(1)) * 4, params(16)
    weights = (torch.softmax(logits, dim=-1).double() * 2**36).floor().to(torch.int64)
    for row, (numbers, token) in enumerate(zip(weights.tolist(), drawn(logits, asked), strict=True)):
        sums = list(accumulate(numbers))
        assert token == bisect_right(sums, int(uniforms(asked.keys, asked.positions)[row] * 2**24) * sums[-1] >> 24)
