"""Shards of an input, each solved by itself, and the one run that `pipeline merge` makes of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.cluster.merge import in_order
from pipeline.errors import UsageError
from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.runs import rows, solve_short, write_problems

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """The same problems solved whole, and in three shards."""
    folder = tmp_path_factory.mktemp("shards")
    given: dict[str, Any] = {"input": write_problems(folder, 24), "seed": 7, "samples": 2}
    return {shard: solve_short(folder, str(place), shard=shard, **given).folder for place, shard in enumerate((None, "0/3", "1/3", "2/3"))}


def said(folder: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(row[name]) for name in columns) for row in rows(folder, table))


def test_merged_shards_are_the_run_over_the_whole_input(shards: Mapping[str | None, Path], tmp_path: Path) -> None:
    merged, whole = tmp_path / "merged", shards[None]
    done = pipeline("merge", shards["2/3"], shards["0/3"], shards["1/3"], "--output", merged)
    assert (done.returncode, done.stderr) == (0, "")
    for table, columns in {
        "chains": ("chain_id", "input_row", "answer", "correct", "thought_tokens"),
        "steps": ("chain_id", "step_index", "step_text", "decision"),
        "calls": ("request_id", "seed", "output_token_ids"),
        "problems.parquet": ("input_row", "problem"),
    }.items():
        assert said(merged, table, *columns) == said(whole, table, *columns)
    one, other = RunFile.read(merged), RunFile.read(whole)
    assert (one.totals.chains, one.totals.steps, one.input.rows) == (other.totals.chains, other.totals.steps, 24)
    assert {row["run_id"] for row in rows(merged, "calls")} == {"merged"}
    assert pipeline("export", merged, "-o", "-").stdout == pipeline("export", whole, "-o", "-").stdout
    assert "is finished" in pipeline("resume", merged).stderr


def test_what_is_not_all_shards_of_one_run_once_is_refused(shards: Mapping[str | None, Path]) -> None:
    files = {name or "whole": RunFile.read(folder) for name, folder in shards.items()}
    other = structs.replace(files["1/3"], options=structs.replace(files["1/3"].options, seed=8))
    stopped = structs.replace(files["1/3"], status="interrupted")
    for given, what in (
        ([files["0/3"], files["1/3"]], "each once; these are 0/3, 1/3$"),
        ([files["0/3"]], "each once; these are 0/3$"),
        ([files["0/3"], files["1/3"], files["1/3"]], "each once; these are 0/3, 1/3, 1/3$"),
        ([files["0/3"], files["whole"]], "is not a shard"),
        ([files["0/3"], other, files["2/3"]], "are not shards of one run: seed is 8, was 7"),
        ([files["0/3"], stopped, files["2/3"]], "is interrupted; `pipeline resume"),
    ):
        with pytest.raises(UsageError, match=what):
            in_order({Path(str(place)): file for place, file in enumerate(given)})
    assert in_order({Path(name): files[name] for name in ("2/3", "0/3", "1/3")}) == [Path("0/3"), Path("1/3"), Path("2/3")]
