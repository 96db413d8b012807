"""The probability that verifications gave to their valid options."""

import numpy as np
import pyarrow as pa
import pytest

from pipeline.analysis.capabilities import SCALE_COLUMNS
from pipeline.analysis.quality.option_mass import OptionMass, mass_sentence, masses, option_mass
from tests.support.traces import LIKELIHOOD, SCORE


def test_mean_tail_and_share_below_nine_tenths() -> None:
    found = option_mass(np.array([1.0] * 94 + [0.5] * 6))
    assert found == OptionMass(100, pytest.approx(0.97), 0.5, 0.06)
    assert found.flagged
    assert mass_sentence(found).endswith(
        "under 90% in 6.0% of 100 verifications: the verifier often prefers other tokens; check its prompt"
    )
    fine = option_mass(np.array([1.0] * 95 + [0.5] * 5))
    assert fine is not None
    assert not fine.flagged
    assert mass_sentence(fine).endswith("under 90% in 5.0% of 100 verifications")
    assert option_mass(np.array([])) is None


def test_likelihoods_functions_and_steps_without_a_verdict_do_not_count() -> None:
    asked, function = {"score_probs": [0.6, 0.4]}, SCORE | {"score_mass": 1.0, "score_probs": []}
    rows = [
        SCORE | asked | {"score_mass": 0.8},
        LIKELIHOOD | asked | {"score_mass": 1e-9},
        {"score_mass": None},
        SCORE | asked | {"score_mass": None},
        function,
    ]
    schema = pa.schema([("score_mass", pa.float64()), ("score_probs", pa.list_(pa.float64())), *SCALE_COLUMNS.items()])
    assert masses(pa.RecordBatch.from_pylist(rows, schema=schema)).tolist() == [0.8]
