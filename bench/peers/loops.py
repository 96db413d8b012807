"""SpecReason by plain loops over two chat servers, as one would write them in an afternoon: no trace, no retries, no resume.

`gathered` has so many problems in progress at a time; `lockstep` takes as many through every round together, and then the next ones.
Prompts and stop rules are those of the authors' script.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pipeline.graph.prompts import Prompts

BOXED = ("boxed", "Answer:", "ANSWER:")


@dataclass
class Chain:
    """A problem and the steps of its thought."""

    problem: str
    steps: list[str] = field(default_factory=list)
    tokens: int = 0
    done: bool = False

    def take(self, step: str, tokens: int, budget: int) -> None:
        """Add a step, and end as the script does."""
        boxed = any(mark in step for mark in BOXED)
        self.steps.append(step if boxed else step.replace("</think>", ""))
        self.tokens += tokens
        repeated = len(self.steps) > 2 and self.steps[-1] == self.steps[-2]
        self.done = boxed or repeated or self.tokens >= budget


class Loop:
    """The calls of one client; `urls` are of the servers `draft` and `target`."""

    def __init__(self, session: aiohttp.ClientSession, urls: Mapping[str, str], prompts: Prompts, threshold: int, budget: int) -> None:
        self._session, self._urls, self._prompts, self._threshold, self._budget = session, urls, prompts, threshold, budget

    async def chain(self, chain: Chain) -> None:
        """Solve a problem."""
        while not chain.done:
            await self.round(chain)

    async def round(self, chain: Chain) -> None:
        """Add a step: the draft's, or the target's where it rejects that."""
        step, tokens = await self._write(chain, "draft")
        if await self._score(chain, step) < self._threshold:
            step, tokens = await self._write(chain, "target")
        chain.take(step, tokens, self._budget)

    async def _write(self, chain: Chain, role: str) -> tuple[str, int]:
        said = await self._chat(role, _thought(self._asked(chain), chain.steps), max_tokens=512, stop=["\n\n"])
        return str(said["choices"][0]["message"]["content"]), int(said["usage"]["completion_tokens"])

    async def _score(self, chain: Chain, step: str) -> int:
        score = self._prompts.score
        turns = _thought(self._asked(chain), [*chain.steps, step])
        turns += [{"role": "user", "content": score.turn}, {"role": "assistant", "content": f"<think>{score.prefill}"}]
        said = await self._chat("target", turns, max_tokens=1)
        digit = str(said["choices"][0]["message"]["content"])
        return int(digit) if digit.isdigit() else 0

    def _asked(self, chain: Chain) -> str:
        return self._prompts.problem.replace("{{problem}}", chain.problem)

    async def _chat(self, role: str, turns: Sequence[Mapping[str, str]], **more: Any) -> Any:
        ours = turns[-1]["role"] == "assistant"
        body = {
            "model": role,
            "messages": turns,
            "temperature": 0,
            "add_generation_prompt": not ours,
            "continue_final_message": ours,
            **more,
        }
        async with self._session.post(f"{self._urls[role]}/chat/completions", json=body) as response:
            response.raise_for_status()
            return await response.json()


def _thought(asked: str, steps: Iterable[str]) -> list[dict[str, str]]:
    """The turns of a problem with the steps so far."""
    turns = [{"role": "user", "content": asked}]
    thought = "".join(f"{step}\n\n" for step in steps)
    return [*turns, {"role": "assistant", "content": f"<think>{thought}"}] if thought else turns


async def gathered(loop: Loop, chains: Sequence[Chain], at_once: int) -> None:
    """Solve all problems, `at_once` at a time."""
    left = iter(chains)

    async def work() -> None:
        for chain in left:
            await loop.chain(chain)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def lockstep(loop: Loop, chains: Sequence[Chain], at_once: int) -> None:
    """Solve all problems in batches of `at_once`, each in rounds in which every call waits for the slowest one."""
    for start in range(0, len(chains), at_once):
        while live := [chain for chain in chains[start : start + at_once] if not chain.done]:
            await asyncio.gather(*map(loop.round, live))
