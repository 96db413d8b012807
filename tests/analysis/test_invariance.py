"""Two runs chain by chain: where nothing may differ nothing does, and what differs is found at its step."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pipeline.analysis.quality.invariance import invariance, invariance_markdown
from pipeline.cli.main import cli
from pipeline.engines.sim.text import sim_answer
from pipeline.errors import UsageError
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.replicas import EACH

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent


def solve(folder: Path, name: str, **options: Any) -> Path:
    problems = folder / "problems.jsonl"
    texts = [f"Problem number {i}?" for i in range(12)]
    problems.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
    graph, engines = ROOT / "graphs/speccot.yaml", ROOT / "graphs/engines/sim-2xh100.yaml"
    return run(RunOptions(**{"graph": graph, "engines": engines, "input": problems, "output": folder / name} | options)).folder


def test_the_batch_changes_no_chain(tmp_path: Path) -> None:
    found = invariance(solve(tmp_path, "one", batch_size=1), solve(tmp_path, "other", batch_size=64, schedule="lockstep"))
    assert (found.chains, found.equal, found.equal_share, found.only_in_one) == (12, 12, 1.0, 0)
    assert found.first_difference == {}
    assert found.accuracy_difference.value == 0.0
    assert found.differing == {"batch_size": ("1", "64"), "schedule": ("pipelined", "lockstep")}


def test_more_replicas_are_named_among_what_differs(replica_runs: dict[int, Path]) -> None:
    found = invariance(replica_runs[2].parent / "part-0/run", replica_runs[2])
    assert (found.equal, found.only_in_one, found.differing) == (EACH, EACH, {"replicas": ("1", "2")})


def test_another_verifier_parts_chains_by_a_verdict_and_by_nothing_before_it(tmp_path: Path) -> None:
    worse = "engines.target.text.verifier_accuracy=0.5"
    found = invariance(solve(tmp_path, "one"), solve(tmp_path, "other", settings=(worse,)))
    assert found.equal < found.chains == 12
    assert found.parted_by_verdict == found.chains - found.equal == sum(found.first_difference.values())
    assert (found.parted_by_drafts, found.parted_by_writing) == (0, 0)
    assert min(found.first_difference) >= 1  # guidance is written before any verdict
    assert "by a verdict" in invariance_markdown(found)
    assert any("verifier_accuracy" in value for pair in found.differing.values() for value in pair)


def test_other_graphs_seeds_and_inputs_are_refused(tmp_path: Path) -> None:
    one = solve(tmp_path, "one", limit=2)
    with pytest.raises(UsageError, match="seed of one is 0, of other 1; expected the same"):
        invariance(one, solve(tmp_path, "other", limit=2, seed=1))
    with pytest.raises(UsageError, match="graph of one is speccot, of third target"):
        invariance(one, solve(tmp_path, "third", limit=2, graph=ROOT / "graphs/target.yaml"))


def test_the_command_prints_it(tmp_path: Path) -> None:
    runs = [str(solve(tmp_path, name, limit=3)) for name in ("one", "other")]
    told = CliRunner().invoke(cli, ["compare", "--identical", *runs], catch_exceptions=False)
    assert "equal to the last token: 3 (100.0%" in told.output
    as_json = CliRunner().invoke(cli, ["compare", "--identical", "--json", *runs], catch_exceptions=False)
    assert msgspec.json.decode(as_json.output)["equal"] == 3
    with pytest.raises(UsageError, match="compares two runs"):
        CliRunner().invoke(cli, ["compare", "--identical", runs[0]], catch_exceptions=False, standalone_mode=False)
