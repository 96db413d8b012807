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
        """Whether so many are doubtful that the verdicts should not be trusted."""
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
    if not len(values):
        return None
    return OptionMass(len(values), float(values.mean()), float(np.quantile(values, 0.05)), float((values < LOW).mean()))


def mass_sentence(found: OptionMass) -> str:
    """What was found as one sentence, with a warning where it is `flagged`."""
    said = f"{found.mean:.1%} of the probability on valid options, 5th percentile {found.p5:.1%}"
    said += f", under {LOW:.0%} in {found.low_share:.1%} of {found.verifications:,} verifications"
    return f"{said}: the verifier often means to say something else, so look at its prompt" if found.flagged else said
