"""A model of engine `torch` without its worker process, and requests to it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engine import Completion, Request
from pipeline.engines.models import resolve
from pipeline.engines.torch.spec import TorchSpec


class Bench:
    """A bundled model in this very process: the worker without its socket."""

    def __init__(self, **options: Any) -> None:
        from pipeline.engines.process.wire import Setup
        from pipeline.engines.torch.model import load_model

        spec = TorchSpec(**{"model": "bundled:tiny-target"} | options)
        self.runner = load_model(Setup.of("target", spec, resolve("target", spec.model)))
        self._number = 0

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """All at once; the answers in the order of the requests. `order` tells in which order they finished."""
        first = self._number
        for request in requests:
            self.runner.add(self._number, request)
            self._number += 1
        done: dict[int, Completion] = {}
        while not self.runner.idle:
            done |= {number - first: completion for number, completion in self.runner.step()}
        self.order = list(done)
        return [done[index] for index in range(len(requests))]


def random_prompt(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(20, 500, length)]


def request(prompt: Sequence[int], **options: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": list(prompt), "max_tokens": 8} | options)
