"""SpecReason by plain loops over two chat servers, as one would write them in an afternoon: no trace, no retries, no resume.

`gathered` has so many problems in progress at a time; `lockstep` takes as many through every round together, and then the next ones.
Stop rules are those of the authors' script, but a step that closes the thought ends it: the script takes the mark out and goes
on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from pipeline.graph.prompts import Prompts

OPEN, CLOSE, BLANK = "<think>", "</think>", "\n\n"
ENDS = ("boxed", "Answer:", "ANSWER:", CLOSE)
STEP_TOKENS = 512
REPLIES = {"in_thought": OPEN, "after_thought": f"{OPEN}{BLANK}{CLOSE}{BLANK}"}
"""How a reply begins that rates a step, where the models think."""


@dataclass
class Chain:
    """A problem and the steps of its thought."""

    problem: str
    steps: list[str] = field(default_factory=list)
    tokens: int = 0
    done: bool = False

    def take(self, step: "Step", budget: int) -> None:
        """Add a step, and see whether it is the last one."""
        self.steps.append(step.text)
        self.tokens += step.tokens
        repeated = len(self.steps) > 2 and self.steps[-1] == self.steps[-2]
        self.done = step.ends or any(mark in step.text for mark in ENDS) or repeated or self.tokens >= budget


class Step(NamedTuple):
    """What a model wrote; `ends`: it ended its turn."""

    text: str
    tokens: int
    ends: bool


class Loop(NamedTuple):
    """The calls of one client."""

    session: aiohttp.ClientSession
    urls: Mapping[str, str]
    """Of the servers `draft` and `target`."""
    prompts: Prompts
    opening: str
    """How the models' chat template begins a thought."""
    threshold: int
    budget: int

    async def chain(self, chain: Chain) -> None:
        """Solve a problem."""
        while not chain.done:
            await self.round(chain)

    async def round(self, chain: Chain) -> None:
        """Add a step: the draft's, or the target's where it rejects that."""
        step = await self._write(chain, "draft")
        if await self._score(chain, step.text) < self.threshold:
            step = await self._write(chain, "target")
        chain.take(step, self.budget)

    async def _write(self, chain: Chain, role: str) -> Step:
        most = min(STEP_TOKENS, self.budget - chain.tokens)
        said = await self._chat(role, self._turns(chain), max_tokens=most, stop=[BLANK, CLOSE], include_stop_str_in_output=True)
        [choice] = said["choices"]
        ends = choice["finish_reason"] == "stop" and choice["stop_reason"] not in (BLANK, CLOSE)
        return Step(str(choice["message"]["content"]), int(said["usage"]["completion_tokens"]), ends)

    async def _score(self, chain: Chain, step: str) -> int:
        score = self.prompts.score
        reply = REPLIES[score.reply] if self.opening else ""
        turns = self._turns(chain, step)
        turns += [{"role": "user", "content": score.turn}, {"role": "assistant", "content": reply + score.prefill}]
        said = await self._chat("target", turns, max_tokens=1)
        digit = str(said["choices"][0]["message"]["content"])
        return int(digit) if digit.isdigit() else 0

    def _turns(self, chain: Chain, *more: str) -> list[dict[str, str]]:
        """The problem, and the thought so far with what more is written."""
        asked = {"role": "user", "content": self.prompts.problem.replace("{{problem}}", chain.problem)}
        steps = [*chain.steps, *more]
        return [asked, {"role": "assistant", "content": "".join([self.opening, *steps])}] if steps else [asked]

    async def _chat(self, role: str, turns: Sequence[Mapping[str, str]], **more: Any) -> Any:
        ours = turns[-1]["role"] == "assistant"
        goes_on = {"add_generation_prompt": not ours, "continue_final_message": ours}
        body = {"model": role, "messages": turns, "temperature": 0, "skip_special_tokens": False, **goes_on, **more}
        async with self.session.post(f"{self.urls[role]}/chat/completions", json=body) as response:
            response.raise_for_status()
            return await response.json()


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
