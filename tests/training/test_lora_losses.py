"""Losses of a choice, against plain arithmetic."""

import math
import random

import pytest

pytestmark = pytest.mark.torch
CASES = [((0,), 2), ((0, 2), 2), ((2,), 2), ((1,), None), ((0, 1, 2), None)]
"""Right options among three, and the one that rejects all."""


def logits(seed: int, size: int = 9) -> list[float]:
    draw = random.Random(seed)
    return [draw.uniform(-3, 3) for _ in range(size)]


def probability(values: list[float], index: int) -> float:
    return math.exp(values[index]) / sum(map(math.exp, values))


def test_of_several_right_options_the_least_or_the_sum() -> None:
    import torch

    from pipeline.training.lora.losses import PADDING, least, option_logprobs, summed

    rows, ids = [logits(seed) for seed in range(len(CASES))], [[7, 3, 5, PADDING]] * len(CASES)
    logprobs = option_logprobs(torch.tensor(rows), torch.tensor(ids))
    right = torch.tensor([[index in of for index in range(4)] for of, _ in CASES])
    for place, (of, _) in enumerate(CASES):
        every = [probability(rows[place], ids[place][index]) for index in of]
        assert logprobs[place, 0].item() == pytest.approx(math.log(probability(rows[place], 7)), abs=1e-5)
        assert least(logprobs, right)[place].item() == pytest.approx(min(-math.log(p) for p in every), abs=1e-5)
        assert summed(logprobs, right)[place].item() == pytest.approx(-math.log(sum(every)), abs=1e-5)
    assert bool((summed(logprobs, right) <= least(logprobs, right) + 1e-6).all())
    assert torch.isneginf(logprobs[:, 3]).all()


def test_only_the_likeliest_right_option_has_a_gradient() -> None:
    import torch

    from pipeline.training.lora.losses import least, option_logprobs, summed

    values = torch.tensor([[1.0, 2.0, 0.5, 0.0]], requires_grad=True)
    right = torch.tensor([[True, True, False]])
    for loss, raised in ((least, {1}), (summed, {0, 1})):
        values.grad = None
        loss(option_logprobs(values, torch.tensor([[0, 1, 2]])), right).sum().backward()
        assert values.grad is not None
        assert {index for index, slope in enumerate(values.grad[0].tolist()) if slope < 0} == raised


def test_what_came_of_each_example() -> None:
    import torch

    from pipeline.training.lora.losses import least, option_logprobs, outcomes
    from pipeline.training.lora.measures import CHANCE, CLASS, CLASS_1, CLASS_2, LOSS, MASS, RIGHT, SCORED

    rows = [logits(seed) for seed in range(len(CASES))]
    logprobs = option_logprobs(torch.tensor(rows), torch.tensor([[7, 3, 5]] * len(CASES)))
    right = torch.tensor([[index in of for index in range(3)] for of, _ in CASES])
    loss = least(logprobs, right)
    found = outcomes(loss, logprobs, right, torch.tensor([-1 if none is None else none for _, none in CASES]))
    for place, (of, none) in enumerate(CASES):
        chosen = max(range(3), key=lambda index: rows[place][(7, 3, 5)[index]])
        accepting = set(of) - {none}
        expected = accepting or set(of)
        assert found[place, LOSS].item() == pytest.approx(loss[place].item())
        assert found[place, MASS].item() == pytest.approx(sum(probability(rows[place], id_) for id_ in (7, 3, 5)), abs=1e-5)
        assert found[place, RIGHT].item() == (chosen in expected)
        assert found[place, CLASS].item() == (SCORED if none is None else CLASS_1 if accepting else CLASS_2)
        assert found[place, CHANCE].item() == pytest.approx(len(expected) / 3)
