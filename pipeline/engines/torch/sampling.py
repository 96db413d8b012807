"""Samples tokens from logits: greedily, or with a random number that depends on seed, candidate and position alone.

Each token takes one uniform number, hashed from a counter, which is looked up in the cumulative distribution. So no random
generator has a state, and a candidate's text is the same whatever else is in the batch, as far as its logits are. The distribution is
added up in whole numbers: a GPU adds those of float32 in an order that changes from one time to the next.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_UNIFORM_BITS, _WEIGHT_BITS = 24, 36
"""Bits of a random number, and of a probability as a whole number: their product has less than 63."""


def stream_key(seed: int, candidate: int) -> int:
    """The key of one candidate's stream of random numbers: splitmix64 of seed and candidate, an unsigned 64-bit number."""
    return _mix(_mix(seed & _MASK) ^ _mix((candidate + 1) * _GOLDEN & _MASK))


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float32]:
    """For each i the random number at `positions[i]` of the stream `keys[i]`: uniform in [0, 1), 24 bits (splitmix64)."""
    x = keys + positions * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    bits: NDArray[np.float32] = ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).astype(np.float32)
    return bits * np.float32(2**-24)


class SamplingParams(NamedTuple):
    """How each row of logits is sampled; every array has one entry for each row."""

    temperature: NDArray[np.float32]
    """0: greedy."""
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int64]
    """0: all tokens."""
    min_p: NDArray[np.float32]
    keys: NDArray[np.uint64]
    """The candidate's stream of random numbers, see `stream_key`."""
    positions: NDArray[np.uint64]
    """Which number of the stream to use: how many tokens the candidate has."""


def sample(logits: Tensor, params: SamplingParams) -> Tensor:
    """A token for each row of `logits` (rows, vocabulary), float32."""
    greedy = logits.argmax(dim=-1)
    warm = np.flatnonzero(params.temperature)
    if not len(warm):
        return greedy
    if len(warm) == len(greedy):
        return _draw(logits, params)
    rows = torch.from_numpy(warm).to(logits.device)
    drawn = _draw(logits.index_select(0, rows), SamplingParams._make(each[warm] for each in params))
    return greedy.index_copy_(0, rows, drawn)


def _draw(logits: Tensor, params: SamplingParams) -> Tensor:
    temperature = torch.from_numpy(params.temperature).to(logits.device)[:, None]
    probabilities = torch.softmax(logits / temperature, dim=-1)
    if (params.min_p > 0).any():
        least = torch.from_numpy(params.min_p).to(logits.device)[:, None] * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if (params.top_k > 0).any() or (params.top_p < 1).any():
        probabilities = _likeliest(probabilities, params)
    cumulative = _weights(probabilities).cumsum(dim=-1)
    numbers = (uniforms(params.keys, params.positions) * (1 << _UNIFORM_BITS)).astype(np.int64)
    at = torch.from_numpy(numbers).to(logits.device)[:, None] * cumulative[:, -1:] >> _UNIFORM_BITS
    return torch.searchsorted(cumulative, at, right=True).squeeze(1)


def _weights(probabilities: Tensor) -> Tensor:
    """`probabilities` as whole numbers, of which 1 is 2^`_WEIGHT_BITS`."""
    return (probabilities * (1 << _WEIGHT_BITS)).to(torch.int64)


def _likeliest(probabilities: Tensor, params: SamplingParams) -> Tensor:
    """Zero all but the `top_k` likeliest tokens, and of these all but the likeliest that have the share `top_p` together."""
    top_k, top_p = (torch.from_numpy(each).to(probabilities.device)[:, None] for each in (params.top_k, params.top_p))
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    places = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill((top_k > 0) & (places >= top_k), 0.0)
    weights = _weights(ordered)
    cumulative = weights.cumsum(dim=-1)
    beyond = cumulative - weights >= top_p.double() * cumulative[:, -1:]
    return probabilities.scatter(1, order, ordered.masked_fill(beyond, 0.0))


def choose(logprobs: list[float], temperature: float, key: int) -> int:
    """The index of one of the options with these log probabilities: the likeliest at temperature 0, else drawn from the stream `key`."""
    if temperature == 0:
        return max(range(len(logprobs)), key=logprobs.__getitem__)
    scaled = np.array(logprobs, dtype=np.float64) / temperature
    cumulative = np.exp(scaled - scaled.max()).cumsum()
    u = uniforms(np.array([key], dtype=np.uint64), np.zeros(1, dtype=np.uint64))[0]
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)
