"""How much probability a verifier's model gave to the valid options: verified steps enter, mean, tail and a warning leave.

An engine is asked for one of a few tokens, and their probabilities are renormalised. Where they had little mass before that, the model
meant to say something else; SpecReason's released code gives such a step the score 0.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.time.timeline import Array

COLUMNS = ("score_mass", "score_probs")
"""The columns of the steps that are read."""
LOW = 0.9
"""Below this mass a verification counts as doubtful."""
FLAGGED = 0.05
"""Above this share of doubtful verifications a run is flagged."""
TAIL = 0.05
"""The share of the verifications below the percentile that is told."""
MORE = 1 << 17
"""So many more verifications than finished parts have steps may be added: those of a write-ahead file, and what a run adds meanwhile."""


class OptionMass(Struct, frozen=True):
    """Probability of all valid options together, before renormalising, over the verifications of a run; 0 to 1."""

    verifications: int
    mean: float
    p5: float
    """5th percentile: 95 % of the verifications have this mass or more."""
    low_share: float
    """Share of the verifications with a mass below `LOW`."""

    @property
    def flagged(self) -> bool:
        """Whether too many are doubtful for the verdicts to be trusted."""
        return self.low_share > FLAGGED


def masses(steps: pa.RecordBatch) -> Array:
    """The mass of each verification in `steps`, a batch of `capabilities.read_steps` with `COLUMNS`.

    Verdicts with a unit are left out: those are likelihoods of texts, which no options were asked for. So are those of functions.
    """
    mass, probs = (steps.column(name) for name in COLUMNS)
    chosen = pc.fill_null(pc.greater(pc.list_value_length(probs), 0), False)
    asked = pc.and_(pc.and_(mass.is_valid(), chosen), pc.equal(pc.fill_null(steps.column("score_unit"), ""), ""))
    return np.asarray(mass.filter(asked).to_numpy(zero_copy_only=False), float)


def option_mass(values: Array) -> OptionMass | None:
    """The figures of the masses `values`; None without any."""
    totals = MassTotals(len(values))
    totals.add(values)
    return totals.figures()


class MassTotals:
    """Makes an `OptionMass` of masses that are added in parts; it holds those that may be among the least 5 %."""

    def __init__(self, most: int) -> None:
        """`most`: how many verifications there are at most, but for `MORE`."""
        self._most = int(TAIL * (most + MORE)) + 2
        self._number = self._low = 0
        self._sum, self._least = 0.0, [np.empty(0)]

    def add(self, values: Array) -> None:
        """Add the masses `values`."""
        self._number += len(values)
        self._low += int((values < LOW).sum())
        self._sum += float(values.sum())
        self._least.append(values)
        if sum(map(len, self._least)) > 2 * self._most:
            self._least = [np.partition(np.concatenate(self._least), self._most)[: self._most]]

    def figures(self) -> OptionMass | None:
        """The figures of all that was added; None without any."""
        if not self._number:
            return None
        least, exact = np.sort(np.concatenate(self._least)), TAIL * (self._number - 1)
        place = min(int(exact), len(least) - 2) if len(least) > 1 else 0
        below, above, part = least[place], least[min(place + 1, len(least) - 1)], exact - int(exact)
        p5 = below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part)  # to the last bit as `np.quantile`
        return OptionMass(self._number, self._sum / self._number, float(p5), self._low / self._number)


def mass_sentence(found: OptionMass) -> str:
    """What was found as one sentence, with a warning where it is `flagged`."""
    said = f"{found.mean:.1%} of the probability on valid options, 5th percentile {found.p5:.1%}"
    said += f", under {LOW:.0%} in {found.low_share:.1%} of {found.verifications:,} verifications"
    return f"{said}: the verifier often prefers other tokens; check its prompt" if found.flagged else said
