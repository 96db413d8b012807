"""Runs side by side in one table, which stays a table whatever names are in it; and what is read of run folders for it."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.analysis.compare.brief import brief
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import Comparison, compare
from pipeline.analysis.compare.runs import RunTable, read_run, read_runs
from pipeline.analysis.compare.written import as_csv, as_json, as_markdown
from pipeline.analysis.resources import EngineFacts
from pipeline.analysis.summary import summarize
from pipeline.errors import InputError, UsageError
from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.changed import write_rewards

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
Make = Callable[..., RunTable]
ONES = [1.0, 1.0, 1.0, 1.0]


def test_the_table_has_speed_ups_over_the_baseline(table: Make) -> None:
    slow = table("target", [4.0, 4.0, 4.0, 4.0], thought_tokens=np.full(4, 90.0))
    found, said, *_ = brief(compare([slow, table("speccot", ONES)]))
    assert isinstance(found, Table)
    columns = dict(zip(found.columns, zip(*found.rows, strict=True), strict=True))
    assert columns["models"] == ("large + small", "large + small")
    assert [columns[name][0] for name in ("times as fast", "speed-up", "= tokens", "x rate")] == ["baseline", "-", "-", "-"]
    assert [columns[name][1].partition(" [")[0] for name in ("times as fast", "speed-up", "= tokens", "x rate")] == ["1.00", "4", "2", "2"]
    assert said == "speccot is 1.00 times as fast as target, accuracy +0.0 points"


def markdown(comparison: Comparison) -> str:
    return as_markdown(brief(comparison))


def test_what_is_simulated_is_called_so(table: Make) -> None:
    assert "Simulated runs: times are those of a simulated clock" in markdown(compare([table("target", ONES, simulated=True)]))
    assert "imulated" not in markdown(compare([table("target", ONES)]))
    inside = structs.replace(table("target", ONES, simulated=True), facts={"target": EngineFacts(token_level=True)})
    assert "Speed-ups by token-level speculation are off by" in markdown(compare([inside]))


def test_names_stay_in_their_cells(table: Make) -> None:
    sly = structs.replace(table("=1+1|x", [1.0] * 4), graph="two\nlines")
    comparison = compare([table("target", [5.0] * 4), sly])
    text = markdown(comparison)
    assert "=1+1\\|x" in text
    for block in text.split("\n\n"):
        rows = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1
    read = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    assert read[1]["run"] == "=1+1|x"
    assert float(read[1]["over_baseline.speed_up"]) == float(read[1]["over_baseline.speed_up_high"]) == 5.0
    assert json.loads(as_json(comparison))["runs"][1]["over_baseline"]["speed_up"]["value"] == 5.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs on simulated engines, one of them with rewards beside it."""
    place = tmp_path_factory.mktemp("runs")
    wanted = {"target": ("target", 1, ()), "speccot": ("speccot", 2, ()), "scot": ("scot", 1, ())}
    wanted |= {f"r{n}": ("specreason", 1, (f"threshold={n}",)) for n in (3, 9)}
    for name, (graph, samples, settings) in wanted.items():
        options = RunOptions(
            graph=ROOT / f"graphs/{graph}.yaml",
            input=(str(ROOT / "datasets/arith/test.parquet"),),
            engines=ROOT / "graphs/engines/sim-2xh100.yaml",
            limit=12,
            samples=samples,
            settings=settings,
            output=place / name,
        )
        assert run(options).exit_code == 0
    return {name: place / name for name in wanted}


def test_run_folders_alone_are_enough(folders: dict[str, Path]) -> None:
    read = read_runs(list(folders.values()))
    comparison = compare(read)
    target, speccot, *_ = comparison.runs
    assert (target.problems, speccot.problems, speccot.table.samples) == (12, 12, 2)
    assert target.fallback_rate.value is None
    assert {flag.what for flag in comparison.flags} >= {"samples is 2, the baseline's 1"}
    low, high = (run for run in comparison.runs if run.table.graph == "specreason")
    assert low.draft_share.value is not None
    assert high.draft_share.value is not None
    assert low.draft_share.value > high.draft_share.value


def test_a_comparison_and_a_summary_say_the_same(folders: dict[str, Path]) -> None:
    for name in ("target", "speccot"):
        ours, summary = compare([read_run(folders[name])]).runs[0], summarize(folders[name])
        bounds = summary.accuracy_interval
        assert bounds is not None
        assert (ours.accuracy.value, ours.accuracy.low, ours.accuracy.high) == (summary.accuracy, bounds.low, bounds.high)
        assert ours.fallback_rate.value == pytest.approx(summary.fallback_rate)


def test_rewards_beside_a_run_are_table_5(folders: dict[str, Path], tmp_path: Path) -> None:
    steps = pq.read_table(
        folders["speccot"] / "steps", columns=["chain_id", "step_index", "decision", "chosen_candidate", "num_candidates"]
    )
    rows = [
        {
            "chain_id": step["chain_id"],
            "step_index": step["step_index"],
            "candidate_index": candidate,
            "selected": candidate == step["chosen_candidate"],
            "decision": step["decision"],
            "reward": 0.9 if candidate == step["chosen_candidate"] else 0.4,
            "model": "prm",
        }
        for step in steps.to_pylist()
        for candidate in range(step["num_candidates"])
    ]
    folder = tmp_path / "speccot"
    folder.mkdir()
    for name in ("run.json", "chains", "steps", "calls"):
        copied(folders["speccot"] / name, folder / name)
    write_rewards(folder, rows)
    quality = compare([read_run(folder)]).runs[0].quality
    assert quality is not None
    assert quality.selected.value == pytest.approx(0.9)
    assert 0.4 < (quality.drafted.value or 0) < 0.9


def copied(item: Path, to: Path) -> None:
    """Copy a file or a folder."""
    (shutil.copytree if item.is_dir() else shutil.copy)(item, to)


def test_runs_of_one_name_are_told_apart(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    (tmp_path / "later/target").symlink_to(folders["target"])
    with pytest.raises(UsageError, match="target is given twice; name each run once"):
        read_runs([folders["target"], tmp_path / "later/target"])
    other = tmp_path / "copied/target"
    other.mkdir(parents=True)
    for name in ("run.json", "chains", "steps", "calls"):
        copied(folders["target"] / name, other / name)
    first, second = read_runs([folders["target"], other])
    assert (first.name, second.name) == (f"{folders['target'].parent.name}/target", "copied/target")


def test_what_is_no_run_folder_is_named(tmp_path: Path, folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"run\.json: cannot be read: no such file or directory; expected a run folder"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match=r"is not a run\.json of this program: Object missing required field `run_id`"):
        read_run(tmp_path)
    card = msgspec.json.decode((folders["target"] / "run.json").read_bytes()) | {"source": 3}
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(card))
    with pytest.raises(InputError, match=r"Expected `str`, got `int` - at `\$\.source`"):
        read_run(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read: not a directory; expected a run folder"):
        read_run(tmp_path / "run.json")
    (tmp_path / "run.json").write_bytes((folders["target"] / "run.json").read_bytes())
    with pytest.raises(InputError, match="has no finished chain: there is nothing to compare"):
        read_run(tmp_path)
