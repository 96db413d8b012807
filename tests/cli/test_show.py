"""`pipeline show RUN --follow`: how far a run is, from its folder alone."""

import json
from pathlib import Path

from pipeline.analysis.progress import run_progress
from tests.support.commands import pipeline
from tests.support.runs import rows, solve_short, write_problems


def test_counts_are_those_of_the_tables(tmp_path: Path) -> None:
    result = solve_short(tmp_path, input=write_problems(tmp_path, 12, (b'{"problem_id": "bad"}',)))
    found = run_progress(result.folder)
    assert (found.state, found.chains, found.done, found.failed, found.over) == ("finished", 13, 12, 1, 13)
    assert (found.steps, found.calls) == (len(rows(result, "steps")), len(rows(result, "calls")))
    assert (found.graded, found.correct) == (result.run.totals.graded, result.run.totals.correct)


def test_a_finished_run_is_looked_at_once(tmp_path: Path) -> None:
    folder = solve_short(tmp_path).folder
    done = pipeline("show", folder, "--follow")
    assert done.returncode == 0
    assert done.stdout.startswith("run: finished, 12/12 chains · 0 failed · ")
    assert json.loads(pipeline("show", folder, "--follow", "--json").stdout)["done"] == 12
    assert "no such directory; expected a run folder" in pipeline("show", tmp_path / "nothing", "--follow").stderr
    refused = pipeline("show", folder, "p1", "--follow")
    assert (refused.returncode, refused.stderr) == (2, "error: --follow: about the whole run; leave out CHAIN and --candidates\n")
    missing = pipeline("show", folder, "p1", "--attempt", "9")
    assert (missing.returncode, missing.stderr) == (2, f"error: {folder}: no finished attempt 9 at problem 'p1', but 0\n")
