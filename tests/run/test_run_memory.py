"""What a run holds does not grow with the chains that are over."""

import asyncio
import gc
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

import pipeline
from tests.support.runs import write_problems

EVERY = 50
INSTANT = {
    "backend": "sim",
    "model": "instant",
    "device": {"name": "nowhere", "flops_per_s": float("inf"), "bytes_per_s": float("inf")},
    "parameters": 1,
    "kv_bytes_per_token": 0,
    "kv_cache_tokens": 20_000,
    "max_in_flight": 8,
    "text": {"step_accuracy": 1},
}
"""An engine whose cache is full after some thirty chains, and whose answers are all right: few different texts are remembered."""


async def _held(problems: Path, samples: int) -> list[int]:
    """The blocks of memory that Python holds, after every 50 chains of a run."""
    held, over = [], 0
    async with aclosing(pipeline.solve_async("target", problems, engines={"target": INSTANT}, samples=samples, batch_size=32)) as chains:
        async for _ in chains:
            over += 1
            if over % EVERY == 0:
                gc.collect()
                held.append(sys.getallocatedblocks())
    return held


@pytest.mark.slow
def test_chains_that_are_over_are_forgotten(tmp_path: Path) -> None:
    """Of eight problems with many samples each: what is remembered about problems has its own bounds."""
    gc.freeze()  # what other tests hold
    try:
        held = asyncio.run(_held(write_problems(tmp_path, 8), 250))
    finally:
        gc.unfreeze()
    early, late = min(held[4:12]), min(held[24:32])  # before the last chains end
    assert (late - early) / (20 * EVERY) < 3, held
