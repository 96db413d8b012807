"""A model of engine `torch` without its worker process, alone and as an engine, and requests to it."""

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from msgspec import structs

from pipeline.engine import Completion, EngineStatistics, Request
from pipeline.engines.models import load_tokenizer, resolve
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.validate import validate_request
from tests.support.paths import MODELS


class Bench:
    """A bundled model in this very process: the worker without its socket."""

    def __init__(self, **options: Any) -> None:
        from transformers.modeling_utils import AttentionInterface

        from pipeline.engines.process.wire import Setup
        from pipeline.engines.torch.model import load_model

        spec = TorchSpec(**{"model": "bundled:tiny-target", "dtype": "float32"} | options)
        self.runner = load_model(Setup.of("target", spec, resolve("target", spec.model)))
        self._attend = AttentionInterface()["pipeline"]
        self._number = 0

    def step(self) -> dict[int, Completion]:
        """The next iteration: what ended in it. A process of its own has one model, whose attention is the one that is registered."""
        from transformers.modeling_utils import AttentionInterface

        AttentionInterface.register("pipeline", self._attend)
        return dict(self.runner.step())

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """All at once; the answers in the order of the requests. `order` tells in which order they finished."""
        first = self._number
        for request in requests:
            self.runner.add(self._number, request)
            self._number += 1
        done: dict[int, Completion] = {}
        while not self.runner.idle:
            done |= {number - first: completion for number, completion in self.step().items()}
        self.order = list(done)
        return [done[index] for index in range(len(requests))]


class InProcess:
    """A model of engine `torch` as an engine in this very process: whoever waits for an answer computes the next iteration of all."""

    def __init__(self, role: str, spec: TorchSpec) -> None:
        self.role = role
        self._bench = Bench(**structs.asdict(spec))
        self._runner = self._bench.runner
        self.tokenizer = load_tokenizer(resolve(self.role, spec.model), spec)
        self.max_model_len, self.vocab_size, self.facts = self._runner.max_model_len, self._runner.vocab_size, self._runner.facts
        self._adapters = spec.adapters
        self._numbers = count()
        self._done: dict[int, Completion] = {}

    async def generate(self, request: Request) -> Completion:
        validate_request(request, self.max_model_len, self.vocab_size, self._adapters)
        number = next(self._numbers)
        self._runner.add(number, structs.replace(request, content=None))
        try:
            await anyio.lowlevel.checkpoint()
            while number not in self._done:
                self._done |= self._bench.step()
                await anyio.lowlevel.checkpoint()
            return self._done.pop(number)
        finally:
            self._runner.abort(number)

    async def reset_prefix_cache(self) -> None:
        self._runner.reset_prefix_cache()

    def statistics(self) -> EngineStatistics:
        found: EngineStatistics = self._runner.statistics()
        return found

    async def aclose(self) -> None:
        pass


def random_prompt(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(20, 500, length)]


def request(prompt: Sequence[int], **options: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": list(prompt), "max_tokens": 8} | options)


def small_model(folder: Path, kind: str, **options: Any) -> Any:
    """A random model of another architecture, saved with the bundled tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for path in (MODELS / "tiny-draft").glob("tokenizer*"):
        shutil.copy(path, folder)
    size = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    rest = {"vocab_size": 560, "max_position_embeddings": 512, "initializer_range": 0.2, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **size | rest | options)).eval()
    model.save_pretrained(folder)
    return model
