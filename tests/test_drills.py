"""Fault drills: a run is killed at random moments and taken up again; every chain ends once and says what it would have said."""

import random
import sys
from pathlib import Path

import msgspec
import pytest

from pipeline.engines.sim_text import sim_answer
from pipeline.run import RunOptions, run

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import drills  # noqa: E402

SIM = ROOT / "graphs/engines/sim-2xh100.yaml"


@pytest.mark.slow
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    texts = [f"Problem number {i}?" for i in range(400)]
    problems.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts))
    graph = ROOT / "graphs/speccot.yaml"
    whole = run(RunOptions(graph=graph, engines=SIM, input=problems, output=tmp_path / "whole")).folder
    arguments = ["run", str(graph), "--engines", str(SIM), "--input", str(problems), "--output", str(tmp_path / "run")]
    struck, resume_s = drills.struck_until_done(arguments, tmp_path / "run", 10, random.Random(0), 0.3)
    sessions = len(msgspec.json.decode((tmp_path / "run/run.json").read_bytes())["sessions"])
    found = drills.toll("SIGKILL", struck, tmp_path / "run", whole, sessions, resume_s)
    print(found)
    assert (found.chains, found.lost, found.doubled, found.changed) == (400, 0, 0, 0)
