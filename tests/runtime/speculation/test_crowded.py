"""`speculate: auto` where the target has no room for all live chains, in whole runs on virtual time."""

from pathlib import Path

import pytest

from pipeline.session.options import RunOptions
from pipeline.session.run import SessionResult, run
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT
from tests.support.runs import rows, write_problems

COUNT = 32
ROOMY = ("token_budget=30720", "max_steps=1000", "engines.target.timeout_s=100000")
"""No thought is cut, and none is given up because it waits long."""


def crowded(folder: Path, speculate: str, tokens: int = 20_000, **options: object) -> SessionResult:
    """A run of more chains than fit into `tokens` tokens of the target's cache."""
    lengths = [f"engines.{role}.text.preset=math" for role in ("draft", "target")]
    settings = (*ROOMY, *lengths, f"engines.target.kv_cache_tokens={tokens}", f"speculate={speculate}")
    graph, engines = ROOT / "graphs/specreason.yaml", ROOT / "graphs/engines/sim-2xa6000.yaml"
    chosen = {"graph": graph, "engines": engines, "input": write_problems(folder, COUNT), "output": folder / speculate}
    result = run(RunOptions(**chosen | {"batch_size": COUNT, "settings": settings} | options))  # type: ignore[arg-type]
    assert (result.exit_code, result.done) == (0, COUNT), result.error
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "least"), [(0, 0.7), (1, 0.9)])
def test_auto_comes_near_the_better_of_always_and_never(tmp_path: Path, seed: int, least: float) -> None:
    """With the seed 0 its only probe meets a step that is rejected, and all chains are tried two minutes later."""
    seconds = {mode: crowded(tmp_path, mode, seed=seed).run.wall_time_s for mode in ("always", "never", "auto")}
    assert min(seconds["always"], seconds["never"]) / seconds["auto"] > least
    assert seconds["never"] / seconds["auto"] > 2


@pytest.mark.slow
def test_chains_that_the_target_has_no_room_for_pause_while_others_write_directly(tmp_path: Path) -> None:
    """Their requests, which had waited there, are taken back before their first token, and sent again when there is room."""
    result = crowded(tmp_path, "auto")
    assert result.run.totals.pauses > 0
    asked = [row for row in rows(result, "calls") if row["stage"] == "response"]
    taken_back = [row for row in asked if row["finish_reason"] == ["interrupted"] and row["output_tokens"] == 0]
    assert 0 < len(taken_back) < len(asked)
    assert result.run.mode_changes[0].live < COUNT
    check_hangs_together(tmp_path / "auto", COUNT)


@pytest.mark.slow
def test_without_admission_by_cache_nothing_pauses(tmp_path: Path) -> None:
    assert crowded(tmp_path, "auto", admission="batch").run.totals.pauses is None
