"""The keys that an engines file may hold for an engine `replay`."""

from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.graph.spec import EngineSpec, PositiveSeconds


class ReplaySpec(EngineSpec, frozen=True, kw_only=True, tag="replay"):
    """Gives the answers that the engine of the same role gave in a recorded run, on virtual time and without any model."""

    run: str
    """Folder of the recorded run."""
    costs: Literal["auto", "recorded", "simulated"] = "auto"
    """How long a call takes. `recorded`: as long as it took then, whatever runs beside it. `simulated`: as long as a roofline says,
    which is that of the recorded simulated engine or the one in the run's `calibration.yaml`. `auto`: `simulated` where there is a
    roofline, else `recorded`."""
    costs_from: str | None = None
    """An engines file of simulated engines whose rooflines are used instead; the text that they would write is not."""
    model: str = ""
    """The model's name in the trace; by default that of the recorded model."""
    trust_remote_code: bool = False
    """Let code run that comes with the recorded model's tokenizer; a run folder cannot ask for that itself."""
    max_in_flight: Annotated[int, Meta(ge=0, le=65536)] = 0
    """See `EngineSpec.max_in_flight`; 0: as recorded."""
    timeout_s: PositiveSeconds | None = None
    """An attempt at a call that takes longer than this many seconds is given up; null: as recorded."""
    max_retries: Annotated[int, Meta(ge=-1, le=100)] = -1
    """See `EngineSpec.max_retries`; -1: as recorded."""

    @property
    def adapter_names(self) -> Collection[str] | None:
        """See `EngineSpec.adapter_names`: a request is answered where it was asked of the recorded engine with the same adapter."""
        return None
