"""How much probability a verifier's model gave to the valid options: verified steps enter, mean, tail and a warning leave.

An engine is asked for one of a few tokens, and their probabilities are renormalised. Where they had little mass before that, the model
meant to say something else; SpecReason's released code gives such a step the score 0.
"""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.store.query import Query

LOW = 0.9
"""Below this mass a verification counts as doubtful."""
FLAGGED = 0.05
"""Above this share of doubtful verifications a run is flagged."""
ASKED = "score_mass IS NOT NULL AND len(score_probs) > 0 AND coalesce(score_unit, '') = ''"
"""True of a verification that chose among options: verdicts with a unit are likelihoods of texts, those of functions have no mass."""


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


def read_masses(db: Query) -> Array:
    """The mass of each verification of a run."""
    return db.columns(f"SELECT score_mass FROM steps WHERE {ASKED}")["score_mass"]


def option_mass(values: Array) -> OptionMass | None:
    """The figures of the masses `values`; None without any."""
    if not len(values):
        return None
    return OptionMass(len(values), float(values.mean()), float(np.quantile(values, 0.05)), float((values < LOW).mean()))


def mass_sentence(found: OptionMass) -> str:
    """What was found as one sentence, with a warning where it is `flagged`."""
    if not found.mean:
        remedy = "read its question (`pipeline graph prompt`), or let another engine judge"
        return f"no option had any probability in {found.verifications:,} verifications, so that every draft was rejected; {remedy}"
    said = f"{found.mean:.1%} of the probability on valid options, 5th percentile {found.p5:.1%}"
    said += f", under {LOW:.0%} in {found.low_share:.1%} of {found.verifications:,} verifications"
    return f"{said}: the verifier often prefers other tokens; check its prompt" if found.flagged else said
