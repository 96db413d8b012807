"""What two engines on one GPU do to each other: tokens a second of each alone and of both at once; `bench/gpu/visit.py engines` calls it.

Unlike the iterations of `gpu_decoder.py` these are an engine's own, with its kernels, its scheduler and its host.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np

from pipeline.engine import Engine, Request
from pipeline.engines.registry import open_engines
from pipeline.graph.load import load_engines

ROLES = ("target", "draft")
PROMPT, ANSWER = 256, 32
"""Tokens of a prompt that is decoded after, and that are decoded."""


class Load(NamedTuple):
    """Requests of one kind that an engine always has."""

    in_flight: int
    new_tokens: int = 0
    """Tokens of each prompt that are not in the cache; 0: decode."""


LOADS: tuple[Mapping[str, Load], ...] = (
    {"target": Load(1), "draft": Load(1)},
    {"target": Load(16), "draft": Load(16)},
    {"target": Load(64), "draft": Load(64)},
    {"target": Load(1, 80), "draft": Load(1)},
    {"target": Load(16, 80), "draft": Load(16)},
)
"""Decoding both; and the target verifying steps of 80 tokens, question included, while the draft decodes."""


async def measure(engines: Path, seconds: float) -> list[dict[str, Any]]:
    """For each of `LOADS` tokens a second by role, alone and together."""
    rows = []
    async with open_engines(load_engines(engines)) as opened:
        for loads in LOADS:
            row: dict[str, Any] = {role: {"in_flight": loads[role].in_flight, "new_tokens": loads[role].new_tokens} for role in ROLES}
            for role in ROLES:
                await _rate(opened[role], loads[role], 0.0)  # warms up
                row[role]["alone"] = await _rate(opened[role], loads[role], seconds)
            async with anyio.create_task_group() as tasks:
                for role in ROLES:
                    tasks.start_soon(_into, row[role], opened[role], loads[role], seconds)
            rows.append(row)
            print(row, flush=True)
    return rows


async def _into(row: dict[str, Any], engine: Engine, load: Load, seconds: float) -> None:
    row["together"] = await _rate(engine, load, seconds)


async def _rate(engine: Engine, load: Load, seconds: float) -> float:
    """Tokens a second with the load kept up for so long; requests that are then under way are finished and count."""
    random, done = np.random.default_rng(0), 0
    started = time.perf_counter()
    ids = [token for token in engine.tokenizer.encode("0 1 2 3 4 5 6 7 8 9") if token not in engine.tokenizer.eos_ids]

    async def one(number: int) -> None:
        nonlocal done
        own = random.choice(ids, PROMPT).tolist()
        while True:
            prompt = own + random.choice(ids, load.new_tokens).tolist()
            most = 1 if load.new_tokens else ANSWER
            answer = await engine.generate(Request(request_id=f"{number}", prompt_ids=prompt, max_tokens=most, temperature=1.0, seed=done))
            done += load.new_tokens or sum(len(candidate.ids) for candidate in answer.candidates)
            if time.perf_counter() - started >= seconds:
                return

    async with anyio.create_task_group() as tasks:
        for number in range(load.in_flight):
            tasks.start_soon(one, number)
    return done / (time.perf_counter() - started)
