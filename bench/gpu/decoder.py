"""A process that computes iterations of one model on the GPU and times them; `bench/gpu/visit.py` starts one a role.

Weights are random, shapes are real. The model is transformers' Qwen2, its cache is full from the start: an iteration computes `tokens`
tokens of each of `batch` sequences, writes their keys and values over the last ones of the cache and attends to all of it, as an
engine's iteration does that decodes (1 token) or verifies (several). It ends when the most likely tokens are on the host. In the mode
`graph` it is one CUDA graph, as in an engine; in the mode `eager` the host launches every kernel.

Protocol, one JSON object a line: {"mode", "batch", "tokens"} prepares an iteration and answers with "ready"; {"seconds"} repeats it for so
long and answers with {"median_s", "mean_s", "iterations"}.
"""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
TINY = shutil.which("nvidia-smi") is None
"""Whether this is a dry run on a machine without a GPU: shapes are a toy's, and nothing is measured."""
SHAPES = {"target": (5120, 64, 40, 8, 27648), "draft": (1536, 28, 12, 2, 8960)}
"""`SIZES` of QwQ-32B and of R1-Distill-Qwen-1.5B, by their config.json."""
CONTEXT = 1024
"""Tokens of context of every sequence."""
WARMUP = 3
"""Iterations before the first that counts."""


def config(role: str) -> Qwen2Config:
    """The shape of a role's model."""
    shape, vocabulary = ((64, 2, 4, 2, 128), 1024) if TINY else (SHAPES[role], 152064)
    sizes = dict(zip(SIZES, shape, strict=True))
    return Qwen2Config(**sizes, vocab_size=vocabulary, max_position_embeddings=32768, tie_word_embeddings=False, use_sliding_window=False)


class FullCache:
    """The keys and values of `CONTEXT` tokens of each sequence; what is computed is written over the last ones."""

    def __init__(self, shape: Qwen2Config, batch: int, dtype: torch.dtype) -> None:
        heads, width = shape.num_key_value_heads, shape.hidden_size // shape.num_attention_heads
        layers = range(shape.num_hidden_layers)
        self._layers = [[torch.randn(batch, heads, CONTEXT, width, dtype=dtype) for _ in range(2)] for _ in layers]
        self.batch = batch

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the whole context, the new ones included; called by the model."""
        whole = [each[: len(keys)] for each in self._layers[layer]]
        for each, new in zip(whole, (keys, values), strict=True):
            each[:, :, -new.shape[2] :] = new
        return whole[0], whole[1]

    def get_seq_length(self, *_: Any) -> int:
        """Called by the model; positions are given to it."""
        return CONTEXT


class Decoder:
    """One model and its iterations."""

    def __init__(self, role: str, batch: int) -> None:
        self._cuda = torch.cuda.is_available()
        dtype = torch.bfloat16 if self._cuda else torch.float32
        shape = config(role)
        self._model = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval()
        for layer in self._model.model.layers:
            layer.self_attn.is_causal = False  # else a kernel would align the mask at the first token and read little of the context
        self._cache = FullCache(shape, batch, dtype)
        self.prepared: Callable[[], object] = int
        """The iteration that was prepared last."""

    def prepare(self, mode: str, batch: int, tokens: int) -> None:
        """Prepare an iteration, which is warm then."""
        self.prepared = int  # lets go of the memory of the graph before
        self.prepared = self._iteration(mode, batch, tokens)
        for _ in range(WARMUP):
            self.prepared()

    def _iteration(self, mode: str, batch: int, tokens: int) -> Callable[[], object]:
        ids = torch.randint(0, 1000, (batch, tokens))
        positions = torch.arange(CONTEXT - tokens, CONTEXT)[None]

        def forward() -> torch.Tensor:
            mask: Any = {"full_attention": None}
            found = self._model(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True)
            return torch.as_tensor(found.logits.argmax(-1))

        if mode == "eager" or not self._cuda:
            return lambda: forward().cpu()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chosen = forward()

        def replay() -> torch.Tensor:
            graph.replay()
            return chosen.cpu()

        return replay


def timed(iteration: Callable[[], object], seconds: float) -> dict[str, float]:
    """Repeat `iteration` for `seconds` and say how long one takes."""
    taken, until = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        iteration()
        taken.append(time.perf_counter() - started)
    return {"median_s": statistics.median(taken), "mean_s": statistics.fmean(taken), "iterations": len(taken)}


def main() -> None:
    """Answer requests until the input ends."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.no_grad():
        decoder = Decoder(sys.argv[1], int(sys.argv[2]))
        print("ready", flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            if "seconds" in request:
                print(json.dumps(timed(decoder.prepared, request["seconds"])), flush=True)
            else:
                decoder.prepare(**request)
                print("ready", flush=True)


if __name__ == "__main__":
    main()
