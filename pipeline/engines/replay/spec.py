"""What an engines file may say of an engine `replay`."""

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.graph.spec import EngineSpec


class ReplaySpec(EngineSpec, frozen=True, kw_only=True, tag="replay"):
    """What a recorded run's engine of the same role answered, once more, on virtual time and without any model."""

    run: str
    """Folder of the recorded run."""
    costs: Literal["auto", "recorded", "simulated"] = "auto"
    """How long a call takes. `recorded`: as long as it took then, whatever runs beside it. `simulated`: what a roofline says: of
    a run that was simulated its own, else the one in its `calibration.yaml`. `auto`: `simulated` where there is a roofline."""
    costs_from: str | None = None
    """An engines file of simulated engines whose roofline counts instead; of what they would write nothing is used."""
    model: str = ""
    """A label for the trace; by default the recorded model's."""
    trust_remote_code: bool = False
    """Let code run that comes with the recorded model's tokenizer; a run folder cannot ask for that itself."""
    max_in_flight: Annotated[int, Meta(ge=0, le=65536)] = 0
    """0: as recorded."""
    timeout_s: Annotated[float, Meta(ge=0.0)] = 0.0
    """0: as recorded."""
    max_retries: Annotated[int, Meta(ge=-1, le=100)] = -1
    """-1: as recorded."""
