"""Whole runs on simulated engines: thoughts as long as the papers print them."""

from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest

from pipeline.engines.sim.spec import SimSpec
from pipeline.graph.load import load_engines
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


def test_thoughts_on_scots_machine_are_as_long_as_its_tables_say(tmp_path: Path) -> None:
    """302 tokens of the target (table 1), 193 of the trained draft (table 2)."""
    found = {name: fmean(thoughts(tmp_path / name, name, "sim-5xa100")) for name in ("target", "draft")}
    assert found == {"target": pytest.approx(302, rel=0.15), "draft": pytest.approx(193, rel=0.15)}


def test_the_files_of_speccots_machines_differ_in_the_machine_alone() -> None:
    """`sim-4xa100-speccot.yaml` has the machine of `sim-4xa100.yaml`, and the other half of its rates and the same texts."""
    four, plain, two = (load_engines(ENGINES / f"{name}.yaml") for name in ("sim-4xa100-speccot", "sim-4xa100", "sim-2xa100-speccot"))
    for role, spec in four.items():
        other, half = plain[role], two[role]
        assert isinstance(spec, SimSpec)
        assert isinstance(other, SimSpec)
        assert isinstance(half, SimSpec)
        assert msgspec.structs.replace(spec, text=other.text) == other
        assert half.text == spec.text
        assert half.device.flops_per_s == spec.device.flops_per_s / 2
        assert half.device.bytes_per_s == pytest.approx(spec.device.bytes_per_s / 2, rel=0.01)
