"""Simulated engines that never answer the same twice, as servers with a batch, a seed and a version of their own do.

The backend `varying` of an installed package, `tests/support/packages`; its keys are those of `sim`.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import structs

from pipeline.engine import Backend, Engine, Request
from pipeline.engines.sim.engine import open_devices
from pipeline.engines.sim.output import Output
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.text import TextModel


class VaryingSpec(SimSpec, frozen=True, kw_only=True, tag="varying"):
    """The keys of `sim`."""


class VaryingText(TextModel):
    """Text by seeds that nobody gave: another one in every process and for every request."""

    def __init__(self, spec: VaryingSpec) -> None:
        super().__init__(f"{spec.model}/{os.urandom(8).hex()}", spec.text)

    def output(self, request: Request, max_model_len: int) -> Output:
        return super().output(structs.replace(request, seed=int.from_bytes(os.urandom(6))), max_model_len)


@asynccontextmanager
async def open_varying(specs: Mapping[str, VaryingSpec]) -> AsyncIterator[Mapping[str, Engine]]:
    """Open the engines of all roles."""
    async with open_devices(specs, {role: VaryingText(spec) for role, spec in specs.items()}) as engines:
        yield engines


BACKEND = Backend(spec=VaryingSpec, open=open_varying, virtual_time=True)
