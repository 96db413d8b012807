"""Stage kinds of other packages plug in through entry points and bring their own spec."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parent.parent
MODULE = '''
from typing import ClassVar

from pipeline.reasoning.chain import Outcome, Verdict
from pipeline.graph.spec import StageSpec
from pipeline.stages.base import EngineStage, StageKind


class LongestSpec(StageSpec, frozen=True, kw_only=True, tag="longest"):
    engine: str
    at_least: int = 1
    judges: ClassVar[bool] = True


class LongestStage(EngineStage):
    """Accepts the longest candidate, without asking anybody."""

    def requests(self, chain):
        return []

    def apply(self, chain, completions):
        lengths = [len(candidate.ids) for candidate in chain.candidates]
        best = lengths.index(max(lengths))
        chosen = best if lengths[best] >= self.spec.at_least else None
        return Outcome(verdict=Verdict(kind="longest", chosen=chosen, label=str(best + 1), value=max(lengths), probs=(), mass=1.0))


KIND = StageKind(spec=LongestSpec, build=LongestStage)
'''
GRAPH = """
name: longest
engines: none
stages:
  reason:
    kind: repeat
    until: {thought_closed: true, max_steps: 30}
    stages:
      draft: {kind: draft, engine: draft, candidates: 3, max_tokens: 200}
      verify: {kind: longest, engine: target, after: draft, at_least: AT_LEAST}
      fallback: {kind: generate, engine: target, unit: step, after: verify, when: verify.rejected, max_tokens: 200}
  answer: {kind: answer, engine: target, after: reason}
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A distribution as pip would leave it."""
    (tmp_path / "longest.py").write_text(MODULE)
    info = tmp_path / "longest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: longest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pipeline.stages]\nlongest = longest:KIND\n")
    (tmp_path / "problems.csv").write_text("problem\nWhat is one more than one?\n")
    return tmp_path


def pipeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pipeline.cli.main import main; main()", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(folder)}, timeout=60)


@pytest.mark.slow
def test_a_stage_of_another_package_runs(installed: Path) -> None:
    (installed / "graph.yaml").write_text(GRAPH.replace("AT_LEAST", "2"))
    engines = str(ROOT / "graphs/engines/sim-2xh100.yaml")
    done = pipeline(installed, "run", "graph.yaml", "--engines", engines, "--input", "problems.csv", "--output", "out")
    assert done.returncode == 0, done.stderr
    steps = pq.read_table(installed / "out/steps").to_pylist()
    assert {row["verify_kind"] for row in steps} == {"longest"}
    assert all(len(row["step_token_ids"]) == max(row["candidate_tokens"]) for row in steps)


@pytest.mark.slow
def test_its_spec_is_as_strict_as_ours(installed: Path) -> None:
    (installed / "graph.yaml").write_text(GRAPH.replace("AT_LEAST", "many"))
    engines = str(ROOT / "graphs/engines/sim-2xh100.yaml")
    done = pipeline(installed, "check", "graph.yaml", "--engines", engines)
    assert done.returncode == 2
    assert "$.stages.reason.stages.verify.at_least: expected `int`, got `str`" in done.stderr
