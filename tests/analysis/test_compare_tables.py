"""Tables that say what the papers' tables say, and that stay tables whatever names are in them."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import Comparison, compare
from pipeline.analysis.compare.runs import RunTable, SpeculatedTokens, read_run, read_runs
from pipeline.analysis.compare.tables import markdown, tables
from pipeline.analysis.compare.written import as_csv, as_json
from pipeline.analysis.quality.by_problem import Quality
from pipeline.analysis.quality.samples import SampleStatistics
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.analysis.resources import EngineFacts, Resources
from pipeline.analysis.summary import summarize
from pipeline.errors import InputError, UsageError
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.changed import write_rewards

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
Make = Callable[..., RunTable]
ONES = [1.0, 1.0, 1.0, 1.0]


def one(comparison: Comparison, title: str) -> Table:
    """The table whose title holds these words."""
    found = [table for table in tables(comparison) if title in table.title]
    assert len(found) == 1, [table.title for table in tables(comparison)]
    return found[0]


def cells(table: Table, column: str) -> list[str]:
    """A column without its intervals."""
    place = table.columns.index(column)
    return [row[place].partition(" [")[0] for row in table.rows]


def test_table_2_has_speed_ups_over_the_baseline(table: Make) -> None:
    slow = table("target", [4.0, 4.0, 4.0, 4.0], thought_tokens=np.full(4, 90.0))
    found = one(compare([slow, table("speccot", ONES)]), "SpecCoT table 2")
    assert [cells(found, name) for name in ("r", "= tokens", "x rate")] == [["baseline", "4"], ["baseline", "2"], ["baseline", "2"]]
    assert cells(found, "change") == ["baseline", "-50.0%"]
    assert found.rows[1][2] == "large + small"


def test_tokens_by_model_have_a_row_for_each_role(table: Make) -> None:
    alone = table(
        "speculative-decoding", ONES, output_tokens={"target": np.full(4, 25.0)}, speculation={"target": SpeculatedTokens(50, 30)}
    )
    found = one(compare([alone, table("speccot", ONES)]), "Tokens by model")
    assert [row[2:4] for row in found.rows] == [("target", "large"), ("target", "large"), ("draft", "small")]
    assert cells(found, "tokens per problem") == ["25", "10", "30"]
    assert (cells(found, "speculated inside"), cells(found, "of these accepted")) == (["50", "-", "-"], ["60.0%", "-", "-"])


def test_answer_lengths(table: Make) -> None:
    found = one(compare([table("target", ONES), table("scot", ONES, answer_tokens=np.full(4, 5.0))]), "SCoT table 3")
    assert [row[4] for row in found.rows] == ["10 [10, 10]", "5 [5, 5]"]
    assert found.rows[1][5].startswith("-50.0%")


def test_several_samples_say_pass_at_k_and_the_majority(table: Make) -> None:
    many = SampleStatistics(interval=None, samples=5, pass_at={1: 0.5, 2: 0.6, 4: 0.75}, majority=0.25)
    comparison = compare([table("target", ONES), table("draft", ONES, samples=5, sample_statistics=many)])
    found = one(comparison, "Several samples")
    assert found.columns[-3:] == ("pass@2", "pass@4", "majority vote")
    assert found.rows[0][-3:] == ("60.0%", "75.0%", "25.0%")
    assert not [t for t in tables(compare([table("target", ONES)])) if "samples" in t.title]


def test_table_4_is_over_the_smallest_resources(table: Make) -> None:
    small = table("two", [10.0] * 4, graph="speccot", resources=Resources(gpus=2), wall_time_s=20.0)
    large = table("four", [8.0] * 4, graph="speccot", resources=Resources(gpus=4), wall_time_s=16.0)
    found = one(compare([large, small]), "SpecCoT table 4")
    assert cells(found, "resources") == ["2 GPUs", "4 GPUs"]
    assert cells(found, "time speed-up") == ["-", "+20.0%"]  # (10 - 8) / 10
    assert cells(found, "kept tokens/s") == ["10", "12.5"]
    assert cells(found, "throughput gain") == ["-", "+25.0%"]


def test_table_6_has_the_baseline_at_the_same_batch_size(table: Make) -> None:
    sizes = {1: 80.0, 8: 20.0}
    runs = [table(f"s{n}", ONES, graph="speccot", batch_size=n, wall_time_s=wall) for n, wall in sizes.items()]
    runs += [table(f"t{n}", ONES, graph="target", batch_size=n, wall_time_s=40.0) for n in sizes]
    found = one(compare(runs), "speccot, pipelined: wall time")
    assert cells(found, "batch size") == ["1", "8"]
    assert (cells(found, "speed-up"), cells(found, "over target")) == (["1.00", "4.00"], ["0.50", "2.00"])


@pytest.mark.parametrize(
    ("knob", "values", "figure"),
    [
        ("threshold", (9.0, 0.5), "SpecReason figure 5"),
        ("first_steps", (10, 0), "SpecReason figure 6"),
        ("token_budget", (8192, 4096), "SpecReason figure 4b"),
        ("candidates", (10, 2), "SpecCoT figure 4b"),
        ("guidance_tokens", (16, 0), "SpecCoT figure 4a"),
        ("statistic", ("minimum", "mean"), ""),
    ],
)
def test_knobs_have_tables_of_their_own(table: Make, knob: str, values: Sequence[object], figure: str) -> None:
    runs = [table(f"r{i}", np.full(4, 1.0 + i), graph="specreason", params={knob: value}) for i, value in enumerate(values)]
    found = one(compare(runs), f"specreason: by {knob}")
    assert figure in found.title
    assert cells(found, knob) == [str(values[1]), str(values[0])]
    assert cells(found, "r") == ["-", "2"]


def test_schedules_are_a_knob_too(table: Make) -> None:
    runs = [table(name, ONES, graph="speccot", schedule=name) for name in ("pipelined", "lockstep")]
    assert cells(one(compare(runs), "speccot: by schedule"), "schedule") == ["lockstep", "pipelined"]


def test_by_budget_the_gap_to_the_target_is_shown(table: Make) -> None:
    runs = [table(f"s{n}", ONES, graph="specreason", params={"token_budget": n}) for n in (50, 100)]
    runs += [table(f"t{n}", ONES, graph="target", params={"token_budget": n}, right=[n == 100, 1, 1, 1]) for n in (50, 100)]
    found = one(compare(runs), "specreason: by token_budget")
    assert cells(found, "gain over target") == ["+25.0%", "+0.0%"]


def test_selection_quality_and_second_thoughts(table: Make) -> None:
    choices = ThoughtChoices(np.arange(2), np.array([0.5, 0.0]), np.array([0, 1]), np.array([1, 0]), np.array([1.0, np.nan]), True)
    ones = np.ones(4)
    quality = Quality(
        model="prm",
        drafted=0.5 * ones,
        steps=ones,
        selected=0.8 * ones,
        selected_from=0.6 * ones,
        selections=ones,
        fallback=0.9 * ones,
        fallbacks=ones,
    )
    comparison = compare([table("scot", ONES, choices=choices, quality=quality)])
    assert [row.partition(" [")[0] for row in one(comparison, "SCoT 4.4").rows[0][2:]] == ["1", "100.0%", "50.0%", "1", "100.0%", "100.0%"]
    assert [row.partition(" [")[0] for row in one(comparison, "SpecCoT table 5").rows[0][2:]] == [
        "prm",
        "0.500",
        "0.600",
        "0.800",
        "+0.200",
        "0.900",
    ]
    assert cells(one(comparison, "SCoT tables 1 and 2"), "drafted") == ["6"]
    assert cells(one(comparison, "SpecCoT A.1"), "fallback over drafts") == ["+180"]


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
    assert read[1]["run"] == "'=1+1|x"
    assert float(read[1]["over_baseline.speed_up"]) == float(read[1]["over_baseline.speed_up_high"]) == 5.0
    assert float(read[0]["output_tokens.draft"]) == 30.0
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
            input=ROOT / "datasets/arith/test.parquet",
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
    titles = " ".join(table.title for table in tables(comparison))
    for said in ("table 2", "Several samples", "specreason (simulated): by threshold", "table 3", "SCoT 4.4", "SCoT tables 1 and 2", "A.1"):
        assert said in titles
    assert "SpecCoT table 5" not in titles
    low, high = (run for run in comparison.runs if run.table.graph == "specreason")
    assert low.draft_share.value is not None
    assert high.draft_share.value is not None
    assert low.draft_share.value > high.draft_share.value


def test_a_comparison_and_a_summary_say_the_same(folders: dict[str, Path]) -> None:
    """Tokens are those of the roles' totals, and of an accuracy the interval is the same."""
    for name in ("target", "speccot"):
        ours, summary = compare([read_run(folders[name])]).runs[0], summarize(folders[name])
        chains = ours.problems * ours.table.samples
        totals = {role: round((tokens.value or 0) * chains) for role, tokens in ours.output_tokens.items()}
        assert totals == {role: engine.output_tokens for role, engine in summary.engines.items()}
        assert summary.accuracy_interval is not None
        assert (ours.accuracy.value, ours.accuracy.low, ours.accuracy.high) == (
            summary.accuracy,
            summary.accuracy_interval.low,
            summary.accuracy_interval.high,
        )
        assert (ours.pass_at, ours.majority_accuracy) == (summary.pass_at, summary.majority_accuracy)
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
    assert quality.selected_from.value == pytest.approx((0.9 + 4 * 0.4) / 5)


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
    with pytest.raises(InputError, match=r"is not a run\.json of this program: Object missing required field `graph`"):
        read_run(tmp_path)
    card = msgspec.json.decode((folders["target"] / "run.json").read_bytes()) | {"engines": ["draft"]}
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(card))
    with pytest.raises(InputError, match=r"Expected `object`, got `array` - at `\$\.engines`"):
        read_run(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read: not a directory; expected a run folder"):
        read_run(tmp_path / "run.json")
    (tmp_path / "run.json").write_bytes((folders["target"] / "run.json").read_bytes())
    with pytest.raises(InputError, match="has no finished chain: there is nothing to compare"):
        read_run(tmp_path)
