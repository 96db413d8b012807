"""Six simulated runs of 120 problems give the rows and figures that `outcome.json` holds.

It has a digest of each column of each table, and the figures of `show --json` and of `compare --json` against the target alone.
A column or a figure that goes is no longer compared; those in `ESSENTIAL` never go. `python -m tests.test_outcome` writes the
file anew: only a change of the simulator wants that, with a table of old and new values in its commit.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pipeline.store.query import Query
from tests.support.commands import pipeline
from tests.support.paths import SIM
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow

KEPT = Path(__file__).with_name("outcome.json")
RUNS = {
    "target": (),
    "speccot": (),
    "specreason": (),
    "scot": (),
    "gated": ("sure=-0.25",),  # lets a part of the simulated steps pass
    "self-consistency": (),
}
ORDERS = {
    "problems": "problem_id",
    "chains": "chain_id",
    "steps": "chain_id, step_index",
    "calls": "chain_id, call_index, request_id, attempt",
}
ESSENTIAL = {
    "problems": {"problem_id", "problem", "reference_answer"},
    "chains": {"answer", "correct", "stop_reason", "steps", "accepted_steps", "thought_tokens", "chain_time_s", "end_unix_ns"},
    "steps": {"decision", "step_text", "candidate_texts", "draft_tokens"},
    "calls": {"purpose", "output_token_ids", "input_tokens", "submit_unix_ns", "end_unix_ns", "client_wait_s"},
    "show": {"accuracy", "problems_per_s", "output_tokens", "engines.target.busy_s"},
}
CLOCK = re.compile(r"^startup_s$|^baselines\.|dataset$")
"""Figures that depend on this machine, or name its temporary folders."""
INTERVAL = re.compile(r"\b(low|high)$")
"""The ends of intervals, which may differ by one percent; other figures agree to nine digits."""
Found = dict[str, dict[str, Any]]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers, names and truths of a JSON document by their paths; sentences are left out."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flat(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from flat(each, f"{name}[{place}]")
    elif value is not None and not CLOCK.search(name) and not (isinstance(value, str) and " " in value):
        yield name, value


def digest(column: str, values: list[Any], start: int) -> str:
    """Points in time count from the start of the run."""
    if column.endswith("_unix_ns"):
        values = [value - start for value in values]
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:12]


def outcome(name: str, folder: Path) -> Found:
    """Solve the problems of `folder` by a graph into `folder/name`."""
    settings = [word for setting in RUNS[name] for word in ("--set", setting)]
    words = ["--engines", SIM, "--input", folder / "problems.jsonl", "--output", folder / name, "--batch-size", "16", *settings]
    done = pipeline("run", name, *words)
    assert done.returncode == 0, done.stderr
    found: Found = {}
    with Query(folder / name) as tables:
        start = tables.scalar("SELECT min(start_unix_ns) FROM chains")
        for table, order in ORDERS.items():
            rows = tables.arrow(f"SELECT * FROM {table} ORDER BY {order}")
            found[table] = {column: digest(column, rows[column].to_pylist(), start) for column in rows.column_names}
    found["show"] = dict(flat(json.loads(pipeline("show", folder / name, "--json").stdout)))
    if name != "target":
        found["compare"] = dict(flat(json.loads(pipeline("compare", folder / "target", folder / name, "--json").stdout)))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    folder = tmp_path_factory.mktemp("outcome")
    write_problems(folder, 120)
    return {name: outcome(name, folder) for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_the_outcome_is_as_it_was(name: str, runs: dict[str, Found]) -> None:
    kept: dict[str, Found] = json.loads(KEPT.read_text())
    for part, values in kept[name].items():
        found = runs[name][part]
        assert ESSENTIAL.get(part, set()) <= found.keys()
        for key in values.keys() & found.keys():
            close = 1e-2 if INTERVAL.search(key) else 1e-9
            wanted = pytest.approx(values[key], rel=close) if isinstance(values[key], float) else values[key]
            assert found[key] == wanted, f"{name}, {part}: {key}"


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        write_problems(Path(place), 120)
        kept = {name: outcome(name, Path(place)) for name in RUNS}
    KEPT.write_text(re.sub(r"(\}, |: \{)", "\\1\n", json.dumps(kept)) + "\n")
