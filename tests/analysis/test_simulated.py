"""What stands beside simulated speeds is what was measured."""

import json

import pytest

from bench import sharing, token_level
from pipeline.analysis.facts import MEDIAN_ERROR, OWN_TEXT_ERROR, TOKEN_LEVEL_ERROR, EngineFacts, stated
from tests.support.paths import ROOT


def test_the_stated_errors_are_those_of_the_results_file() -> None:
    found = json.loads((ROOT / "bench/results/calibration.json").read_bytes())
    errors = (found[name] for name in ("median_error", "own_text_error", "token_level_error"))
    assert tuple(each and round(each, 2) for each in errors) == (MEDIAN_ERROR, OWN_TEXT_ERROR, TOKEN_LEVEL_ERROR)


def test_the_error_under_mps_is_that_of_the_measured_times_and_no_share_of_a_kernel_has_a_much_smaller_one() -> None:
    error, _ = sharing.errors("mps")
    assert round(error, 2) == 0.06
    others = {wait: sharing.errors("mps", wait)[0] for wait in (0.0, 0.3, 0.5, 0.6, 0.8)}
    assert min(others.values()) > error
    assert others[0.0] > 9 * error


def test_each_measured_time_under_mps_is_near_what_is_simulated() -> None:
    for cell in sharing.cells("mps"):
        if cell.engine_like:
            assert cell.simulated == pytest.approx(cell.measured, rel=0.2)


@pytest.mark.slow
def test_the_error_of_token_level_speculation_is_what_its_anchors_give() -> None:
    found = json.loads((ROOT / "bench/results/calibration.json").read_bytes())
    again = token_level.results()
    assert again["token_level_error"] == pytest.approx(found["token_level_error"], rel=1e-3)
    assert again["token_level"]["anchors"] == len(token_level.ANCHORS) == found["token_level"]["anchors"]
    assert again["token_level_fitted_error"] < again["token_level_error"] < again["token_level_roofline_error"] / 1.5


def test_what_engines_state_of_their_error_is_said() -> None:
    fitted = [EngineFacts(fit_error=error) for error in (0.1, None, 0.441)]
    assert f"off by a median of {MEDIAN_ERROR:.0%} with recorded text" in stated([])
    assert stated(fitted).endswith("The rates here were fitted, and times of single calls are off by 44.1% on average.")
    said = stated([EngineFacts(), EngineFacts(token_level=True)])
    assert said.endswith(f"Speed-ups by token-level speculation are off by {TOKEN_LEVEL_ERROR:.0%} of printed ones on average.")
