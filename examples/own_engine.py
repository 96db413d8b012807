"""An engine of your own: an object that answers token ids with token ids. This one wraps `generate` of transformers.

python examples/own_engine.py
"""

from pathlib import Path
from threading import Lock
from typing import Any

import anyio.to_thread
import torch
from transformers import AutoModelForCausalLM

import pipeline
from pipeline.engine import EngineStatistics
from pipeline.engines.tokenizer import HFTokenizer

MODEL = Path(pipeline.__file__).parent / "models/tiny-target"
PROBLEMS = [
    {"problem": "Zoe has 9 pens. Zoe collects 2. Zoe buys 2 packs of 5. How many pens has Zoe now?", "answer": "21"},
    {"problem": "Anna has 10 figs. Anna loses 5. Anna finds 9. Anna sells 7. How many figs has Anna now?", "answer": "7"},
]


class Generate:
    """A model in this process, one request at a time; nothing that a stage could ask for beyond plain text."""

    role, facts = "target", {"cannot": ("options",)}

    def __init__(self, folder: str) -> None:
        self.tokenizer: Any = HFTokenizer(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.max_model_len, self.vocab_size = self.model.config.max_position_embeddings, self.model.config.vocab_size
        self.requests, self.one_at_a_time = 0, Lock()

    async def generate(self, request: pipeline.Request) -> pipeline.Completion:
        return await anyio.to_thread.run_sync(self.answer, request)

    def answer(self, request: pipeline.Request) -> pipeline.Completion:
        with self.one_at_a_time:
            torch.manual_seed(request.seed)
            sampled = {"do_sample": True, "temperature": request.temperature, "top_p": request.top_p} if request.temperature else {}
            prompt, ends = torch.tensor([list(request.prompt_ids)]), {*self.tokenizer.eos_ids, *request.stop_ids}
            written = self.model.generate(
                prompt, max_new_tokens=request.max_tokens, num_return_sequences=request.n, eos_token_id=list(ends), **sampled
            )
            self.requests += 1
        candidates = tuple(self.candidate(row[len(request.prompt_ids) :].tolist(), request) for row in written)
        usage = pipeline.Usage(input_tokens=len(request.prompt_ids), output_tokens=sum(len(each.ids) for each in candidates))
        return pipeline.Completion(candidates=candidates, usage=usage)

    def candidate(self, ids: list[int], request: pipeline.Request) -> pipeline.Candidate:
        end = next((place for place, each in enumerate(ids) if each in {*self.tokenizer.eos_ids, *request.stop_ids}), None)
        stopped = None if end is None or ids[end] not in request.stop_ids else ids[end]
        kept = tuple(ids if end is None else ids[: end + (stopped is not None)])
        return pipeline.Candidate(
            ids=kept,
            text=self.tokenizer.decode(kept),
            cumulative_logprob=None,
            finish_reason="length" if end is None else "stop",
            stop_reason=stopped,
        )

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(requests=self.requests)

    async def aclose(self) -> None:
        """Nothing to free."""


if __name__ == "__main__":
    result = pipeline.solve("target", PROBLEMS, engines={"target": Generate(str(MODEL))})
    for chain in result:
        print(chain.problem_id, chain.answer, "right" if chain.correct else "wrong")
    print(f"{result.accuracy:.0%} right")
