"""Shards of an input, each solved by itself, and the one run that `pipeline merge` makes of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.paths import SIM
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # whole runs

PROBLEMS, SHARDS = 24, 3
COMMAND = ("run", "speccot", "--engines", SIM, "--seed", "7", "--samples", "2")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The same problems solved whole, and in three shards."""
    folder = tmp_path_factory.mktemp("shards")
    problems = write_problems(folder, PROBLEMS)
    assert pipeline(*COMMAND, "--input", problems, "--output", folder / "whole").returncode == 0
    found = {"whole": folder / "whole", "input": problems}
    for index in range(SHARDS):
        name = f"{index}/{SHARDS}"
        found[name] = folder / f"shard-{index}"
        done = pipeline(*COMMAND, "--input", problems, "--shard", name, "--output", found[name])
        assert done.returncode == 0, done.stderr
    return found


def merge(tmp_path: Path, *runs: Path) -> tuple[int, str]:
    done = pipeline("merge", *runs, "--output", tmp_path / "merged")
    return done.returncode, done.stderr


def said(folder: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = pq.read_table(folder / table, columns=list(columns)).to_pylist()
    return sorted(tuple(str(row[name]) for name in columns) for row in rows)


def test_merged_shards_are_the_run_over_the_whole_input(shards: Mapping[str, Path], tmp_path: Path) -> None:
    code, error = merge(tmp_path, shards["2/3"], shards["0/3"], shards["1/3"])
    assert (code, error) == (0, "")
    merged, whole = tmp_path / "merged", shards["whole"]
    for table, columns in {
        "chains": ("chain_id", "input_row", "answer", "correct", "thought_tokens"),
        "steps": ("chain_id", "step_index", "step_text", "decision"),
        "calls": ("request_id", "seed", "output_token_ids"),
        "problems.parquet": ("input_row", "problem"),
    }.items():
        assert said(merged, table, *columns) == said(whole, table, *columns)
    one, other = RunFile.read(merged), RunFile.read(whole)
    assert (one.totals.chains, one.totals.steps, one.input.rows) == (other.totals.chains, other.totals.steps, PROBLEMS)
    assert set(pq.read_table(merged / "calls")["run_id"].to_pylist()) == {"merged"}
    assert pipeline("export", merged, "-o", "-").stdout == pipeline("export", whole, "-o", "-").stdout
    assert "is finished" in pipeline("resume", merged).stderr


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (("0/3", "1/3"), "shard 2/3 missing"),
        (("0/3",), "shards 1/3, 2/3 missing"),
        (("0/3", "1/3", "1/3"), "are both shard 1/3"),
        (("0/3", "whole"), "is not a shard"),
    ],
)
def test_what_is_not_all_shards_once_is_refused(shards: Mapping[str, Path], tmp_path: Path, runs: tuple[str, ...], said: str) -> None:
    copies = []
    for place, name in enumerate(runs):
        copies.append(tmp_path / str(place))
        copies[-1].symlink_to(shards[name])
    code, error = merge(tmp_path, *copies)
    assert (code, said in error, error.count("\n")) == (2, True, 1), error
    assert not (tmp_path / "merged").exists()


def test_shards_of_different_runs_are_refused(shards: Mapping[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    command = ("run", "speccot", "--engines", SIM, "--seed", "8", "--samples", "2", "--set", "candidates=2", "--shard", "1/3")
    assert pipeline(*command, "--input", shards["input"], "--output", other).returncode == 0
    code, error = merge(tmp_path, shards["0/3"], other, shards["2/3"])
    assert code == 2
    assert "are not shards of one run" in error
    assert "seed is 8, was 7" in error
    assert "candidates" in error


def test_an_unfinished_shard_is_refused(shards: Mapping[str, Path], tmp_path: Path) -> None:
    file = RunFile.read(shards["1/3"])
    broken = tmp_path / "broken"
    broken.mkdir()

    structs.replace(file, status="interrupted").write(broken)
    code, error = merge(tmp_path, shards["0/3"], broken, shards["2/3"])
    assert (code, "is interrupted; `pipeline resume" in error) == (2, True)


def test_a_shard_without_problems(tmp_path: Path) -> None:
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path, 1), "--shard", "0/1000", "--output", tmp_path / "run")
    assert (done.returncode, done.stdout.startswith("0 of 0 solved")) == (0, True), "so that it can be merged"
