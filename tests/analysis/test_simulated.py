"""What stands beside simulated speeds is what was measured."""

import json

from pipeline.analysis.simulated import MEDIAN_ERROR, OWN_TEXT_ERROR, stated
from tests.support.paths import ROOT


def test_the_stated_errors_are_those_of_the_results_file() -> None:
    found = json.loads((ROOT / "bench/results/calibration.json").read_bytes())
    assert (round(found["median_error"], 2), round(found["own_text_error"], 2)) == (MEDIAN_ERROR, OWN_TEXT_ERROR)


def test_fitted_rates_have_their_own_error_beside_it() -> None:
    assert stated([None, None]) == stated([])
    assert f"off by a median of {MEDIAN_ERROR:.0%} with recorded text" in stated([])
    assert stated([0.1, None, 0.441]).endswith("The rates here were fitted, and times of single calls are off by 44.1% on average.")
