"""The outcome of `pipeline tune`: settings with what was predicted and what was measured of each, as `tune.json` holds them."""

from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.analysis.quality.estimates import Estimate
from pipeline.files import new_file
from pipeline.graph.spec import Param
from pipeline.graph.yaml_file import shown

FILE = "tune.json"


class Measured(Struct, frozen=True, kw_only=True):
    """One real run."""

    run: str
    """Its folder, from that of `tune.json`."""
    accuracy: float | None
    loss: Estimate
    """Accuracy of the target alone less that of this run, paired over the problems; its interval is one of `Tuned.tests`."""
    problems_per_s: float | None
    over_target: float | None
    """`problems_per_s` over that of the target alone."""


class TunedSetting(Struct, frozen=True, kw_only=True):
    """One choice of values. What is predicted is as in `sweep.predict.Prediction`."""

    values: dict[str, Param]
    recorded: bool = False
    """Whether the others are predicted from its run."""
    problems_per_s: float | None = None
    """Predicted: that of the recorded run, over the seconds of a chain."""
    over_target: float | None = None
    """Predicted."""
    chains_known: float | None = None
    changed: float | None = None
    unverified: float | None = None
    accepted: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    accuracy_tried: float | None = None
    frontier: bool = False
    """Whether no other prediction is faster and changes fewer decisions."""
    measured: Measured | None = None

    @property
    def label(self) -> str:
        """Its values: `sure=-0.7 threshold=7`."""
        return shown(self.values)


class Tuned(Struct, frozen=True, kw_only=True):
    """A tuned graph."""

    graph: str
    input: str
    problems: int
    samples: int
    batch_size: int
    max_loss: float
    tests: int
    """So many intervals of losses hold together in 95 % of cases: one for each run that the search may make."""
    simulated: bool
    """Whether all runs were on simulated engines."""
    target: Measured
    """The target alone."""
    settings: tuple[TunedSetting, ...]
    """Measured ones first, then predicted ones, each fastest first."""
    chosen: dict[str, Param] | None
    """The values of the fastest measured setting whose loss has its upper end below `max_loss`; null: there is none."""
    would_do: int | None = None
    """Where none is: so many problems that the best measured one would pass, if its loss and its spread stayed as they are."""

    @property
    def measured(self) -> list[TunedSetting]:
        """The settings that were run."""
        return [each for each in self.settings if each.measured is not None]

    @property
    def choice(self) -> TunedSetting | None:
        """The setting that was chosen."""
        return next((each for each in self.measured if each.values == self.chosen), None)

    def write(self, folder: Path) -> None:
        """Write it into `folder` as `tune.json`."""
        with new_file(folder / FILE) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
