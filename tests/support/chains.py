"""Chains over tokenizers that differ in every way, without any engine."""

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from pipeline.data.problems import ChainSettings, Problem
from pipeline.engine import Candidate, Completion, FinishReason, Tokenizer, Usage
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.prompts import Prompts
from pipeline.reasoning.chain import Chain, Outcome, Span, Step
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from tests.support.paths import ROOT

DEFAULT = ChainSettings()


class Shifted(SimTokenizer):
    """The same ordinary tokens; every special one has another id."""

    SHIFT = 100

    def __init__(self) -> None:
        super().__init__()
        self.special_ids = {text: number + self.SHIFT for text, number in self.special_ids.items()}
        self.eos_ids = frozenset(number + self.SHIFT for number in self.eos_ids)

    def encode(self, text: str) -> list[int]:
        return [i + self.SHIFT if i < self.SHIFT else i for i in super().encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([i - self.SHIFT if i < 2 * self.SHIFT else i for i in ids])


class Plain(SimTokenizer):
    """The same ordinary tokens and no thoughts: `<think>` and `</think>` are text like any other."""

    def __init__(self) -> None:
        super().__init__()
        del self.special_ids["<think>"], self.special_ids["</think>"]

    def encode(self, text: str) -> list[int]:
        pieces = re.split("(?<=<)(?=/?think>)", text)
        return [i for piece in pieces for i in super(Plain, self).encode(piece)]

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        return super().render(messages).removesuffix("<think>\n")


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "sim": SimTokenizer,
    "shifted": Shifted,
    "plain": Plain,
    "tiny": cache(lambda: HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))),
}


class World:
    """Chains, spans and completions over named tokenizers, without any engine."""

    def __init__(self, draft: str = "sim", target: str = "sim", limit: int = 10_000, **prompts: Any) -> None:
        """`prompts`: texts of the graph, as fields of `Prompts`."""
        self.tokenizers = {"draft": TOKENIZERS[draft](), "target": TOKENIZERS[target]()}
        self.builders = {role: PromptBuilder(tokenizer, Prompts(**prompts)) for role, tokenizer in self.tokenizers.items()}
        self._limits = {"draft": limit, "target": limit}

    def chain(self, problem_id: str = "p", sample_index: int = 0, *, seed: int = 0, order: int = 0, own: ChainSettings = DEFAULT) -> Chain:
        """`own`: what the problem says of its chains."""
        asked = "Tom has 3 pens and buys 2. How many?"
        problem = Problem(row=1, problem_id=problem_id, problem=asked, answer="5", settings=own)
        return Chain(problem, sample_index, order, seed, self.builders, TokenTranslator(self.tokenizers), self._limits)

    def span(self, role: str, text: str, closes: bool = False) -> Span:
        return Span(role, tuple(self.tokenizers[role].encode(text)), text, closes)

    def write(self, chain: Chain, *texts: str, role: str = "target", decision: str = "fallback", closes: bool = False) -> list[Step]:
        """Commit each of `texts` as a step."""
        outcomes = [Outcome(step=self.span(role, text, closes), decision=decision) for text in texts]
        return [step for outcome in outcomes if (step := chain.apply("write", outcome)) is not None]

    def draft(self, chain: Chain, *texts: str) -> None:
        thinks = "</think>" in self.tokenizers["draft"].special_ids
        spans = (self.span("draft", text, closes=thinks and text.endswith("</think>")) for text in texts)
        chain.apply("draft", Outcome(candidates=tuple(spans)))

    def said(self, *texts: str, role: str = "draft", finish: FinishReason = "stop", stop: str | int | None = "\n\n") -> Completion:
        """The completion whose candidates are `texts`."""
        encode = self.tokenizers[role].encode
        candidates = tuple(
            Candidate(ids=tuple(encode(text)), text=text, cumulative_logprob=0.0, finish_reason=finish, stop_reason=stop) for text in texts
        )
        return Completion(candidates=candidates, usage=Usage(input_tokens=1))

    @staticmethod
    def weighed(*probabilities: float) -> Completion:
        """The answer to a choice: the probability of each option."""
        logprobs = tuple(math.log(p) if p else -math.inf for p in probabilities)
        return Completion(candidates=(), option_logprobs=logprobs, usage=Usage(input_tokens=1))


def begun(draft: str = "sim", target: str = "sim", limit: int = 10_000, **prompts: Any) -> tuple[World, Any]:
    """A chain that begins, in a world of these tokenizers."""
    here = World(draft, target, limit, **prompts)
    return here, here.chain()
