"""An engine that a caller of the Python API opened."""

import anyio.lowlevel

from pipeline.engine import Candidate, Completion, EngineStatistics, Request, Usage
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import EngineDead


class Echo:
    """An engine of a caller's, of no event loop in particular: it answers after one turn of whatever loop asks."""

    max_model_len, vocab_size = 1 << 16, 1 << 31

    def __init__(self, role: str = "target", dies_after: int | None = None) -> None:
        self.role, self.tokenizer, self.facts = role, SimTokenizer(), {}
        self.asked, self.dies_after = 0, dies_after

    async def generate(self, request: Request) -> Completion:
        self.asked += 1
        if self.dies_after is not None and self.asked > self.dies_after:
            raise EngineDead(self.role, "it was told to")
        await anyio.lowlevel.checkpoint()
        text = "</think>\n\n\\boxed{7}"
        candidate = Candidate(ids=tuple(self.tokenizer.encode(text)), text=text, cumulative_logprob=None, finish_reason="stop")
        return Completion(candidates=(candidate,), usage=Usage(input_tokens=len(request.prompt_ids), output_tokens=len(candidate.ids)))

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(requests=self.asked)

    async def aclose(self) -> None:
        raise AssertionError("the caller closes what the caller opened")
