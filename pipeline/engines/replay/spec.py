"""The keys that an engines file may hold for an engine `replay`."""

from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.graph.spec import EngineSpec, PositiveSeconds


class ReplaySpec(EngineSpec, frozen=True, kw_only=True, tag="replay"):
    """The recorded answers of the engine of the same role in an earlier run, on a virtual clock and without a model."""

    run: str
    """Folder of the recorded run."""
    costs: Literal["auto", "recorded", "simulated"] = "auto"
    """How long a call takes. `recorded`: as long as it took then, whatever else runs. `simulated`: by a roofline, that of the recorded
    simulated engine or the one in the run's `calibration.yaml`. `auto`: `simulated` if there is a roofline, else `recorded`."""
    costs_from: str | None = None
    """An engines file of simulated engines whose rooflines are used instead."""
    model: str = ""
    """Name of the model in the trace; empty: that of the recorded model."""
    trust_remote_code: bool = False
    """Run code that comes with the recorded model's tokenizer; a run folder cannot ask for that itself."""
    max_in_flight: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Maximum number of requests sent to the engine at once; 0: as recorded."""
    timeout_s: PositiveSeconds | None = None
    """Seconds after which an attempt at a call times out; null: as recorded."""
    max_retries: Annotated[int, Meta(ge=-1, le=100)] = -1
    """How often a call is sent again; -1: as recorded."""

    @property
    def adapter_names(self) -> Collection[str] | None:
        """A request is answered where it was asked of the recorded engine with the same adapter."""
        return None

    @property
    def tokenizer_name(self) -> None:
        return None
