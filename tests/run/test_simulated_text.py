"""Whole runs on simulated engines: thoughts as long as the papers print them."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.paths import ROOT
from tests.support.runs import rows, write_problems

pytestmark = pytest.mark.slow  # whole runs

ENGINES = ROOT / "graphs/engines"


def solve(folder: Path, graph: str, engines: Path, settings: tuple[str, ...], count: int, **options: Any) -> Any:
    result = run(
        RunOptions(
            graph=ROOT / f"graphs/{graph}.yaml",
            engines=engines,
            input=(str(write_problems(folder, count)),),
            output=folder / "run",
            settings=settings,
            **options,
        )
    )
    assert (result.exit_code, result.failed) == (0, 0)
    return result


MATH = ("engines.*.text.steps_mean=33.3", "engines.draft.text.verbosity=1.97", "engines.target.text.verbosity=2.34")
"""The settings that `sim-4xa100-speccot.yaml` names for MATH-500."""


def thoughts(folder: Path, graph: str, engines: str, *settings: str) -> list[int]:
    """Tokens of each thought of a run."""
    settings = (*settings, "engines.*.timeout_s=100000")
    folder.mkdir()
    result = solve(folder, graph, ENGINES / f"{engines}.yaml", settings, 64, batch_size=64)
    return [row["thought_tokens"] for row in rows(result, "chains")]


@pytest.mark.parametrize(
    ("settings", "draft", "target", "both"), [((), 1096.8, 2053.8, 1023.3), (MATH, 2609.3, 3086.8, 1495.9)], ids=["GSM8K", "MATH-500"]
)
def test_thoughts_on_speccots_machine_are_as_long_as_its_table_2_says(
    settings: tuple[str, ...], draft: float, target: float, both: float, tmp_path: Path
) -> None:
    """Lengths of 64 problems scatter by 7 %, those of two systems about the same problems less."""
    printed = {"draft": draft, "target": target, "speccot": both}
    more = {"speccot": ("max_steps=1000",)}
    found = {name: fmean(thoughts(tmp_path / name, name, "sim-4xa100-speccot", *settings, *more.get(name, ()))) for name in printed}
    assert found == {name: pytest.approx(tokens, rel=0.15) for name, tokens in printed.items()}
    assert found["speccot"] / found["target"] == pytest.approx(both / target, rel=0.08)
    assert found["draft"] / found["target"] == pytest.approx(draft / target, rel=0.08)
