"""The tables of the papers over small runs: each has its rows, and names missing systems; and the page about the papers' systems."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from msgspec import structs

from bench import papers
from bench.figures import results_of
from pipeline.analysis.compare import Run, read_runs
from pipeline.analysis.papers import paper_table
from pipeline.analysis.tables import named_queries
from pipeline.errors import UsageError
from pipeline.store.query import Query
from tests.analysis.conftest import run_of, score_drafts
from tests.support.runs import solve_short, write_problems

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Each system over two data sets, the drafts of SpecCoT and SpecReason scored."""
    place, folders = tmp_path_factory.mktemp("papers"), []
    for count in (3, 4):
        problems = write_problems(place, count).rename(place / f"set{count}.jsonl")
        for graph in ("draft", "target", "speccot", "scot", "specreason"):
            folder = solve_short(place, f"{graph}{count}", graph, input=problems, seed=1).folder
            if graph in ("speccot", "specreason"):
                score_drafts(folder, lambda place: 0.05 + place / 10)
            folders.append(folder)
    return read_runs(folders)


CELLS = {
    "speccot-2": ("speccot3", {"speccot"}, "set3 tokens", "tokens"),
    "speccot-3": ("speccot3", {"set3"}, "QwQ-32B latency s", "latency_s"),
    "speccot-4": ("target3", {"set3", "target"}, "latency s", "latency_s"),
    "speccot-5": ("speccot3", {"set3"}, "draft quality", "drafted_reward"),
    "scot-1": ("scot3", {"scot"}, "set3 thinking s", "thinking_s"),
    "scot-2": ("scot3", set[str](), "set3", "tokens_per_draft"),
    "specreason-3": ("specreason3", {"specreason"}, "set3 latency s", "latency_s"),
    "specreason-4": ("specreason3", {"specreason"}, "set3", "thought_tokens"),
    "data-sets": ("specreason3", {"specreason"}, "set3 tokens", "tokens"),
}
"""By table a cell, by what its row holds and its column, and the figure of a run that it shows."""


@pytest.mark.parametrize("name", named_queries())
def test_every_table_has_rows_whose_figures_are_those_of_the_runs(name: str, runs: list[Run]) -> None:
    table = paper_table(name, runs)
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}
    if name in CELLS:
        run, held, column, figure = CELLS[name]
        [cell] = [row[table.columns.index(column)] for row in table.rows if held <= {*row}]
        [shown] = [each.figures[figure].value for each in runs if each.name == run]
        assert float(cell.removesuffix(" (too few)")) == pytest.approx(shown, rel=5e-3)
    left_out = [column for column in table.columns if column.endswith("accuracy")]
    assert ("Simulated accuracies are left out." in table.note) == bool(left_out)
    assert {row[table.columns.index(column)] for row in table.rows for column in left_out} <= {"-"}


def test_a_table_has_the_layout_of_its_paper(runs: list[Run]) -> None:
    found = paper_table("speccot-2", runs)
    assert found.columns[:2] == ("graph", "models")
    assert found.columns[2:] == tuple(f"{data} {name}" for data in ("average", "set3", "set4") for name in ("tokens", "latency s", "r"))
    assert [row[0] for row in found.rows] == ["draft", "target", "speccot"]
    of = {run.name: run for run in runs}
    target, ours = of["target3"].figures["latency_s"].value, of["speccot3"].figures["latency_s"].value
    assert [row[7] for row in found.rows] == ["-", "-", f"{(target or 0) / (ours or 1):.3g} (too few)"]
    assert [row[0] for row in paper_table("speccot-3", runs).rows] == ["set3", "set4"]


def test_scores_are_compared_with_rewards_in_bins(runs: list[Run]) -> None:
    [run] = [each for each in runs if each.name == "specreason3"]
    found = {row[2]: row[3:] for row in paper_table("specreason-7", [run]).rows}
    with Query(*run.folders) as db:
        scores = db.columns("SELECT score_value FROM steps WHERE score_value IS NOT NULL AND NOT score_of_candidates")["score_value"]
    assert found["[0.0, 0.1)"] == (f"{np.mean(scores):.3g}", str(len(scores)))


def test_what_cannot_be_made_is_said(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--table speccot-7: no such table; did you mean `speccot-"):
        paper_table("speccot-7", runs)
    with pytest.raises(UsageError, match=r"SpecCoT table 5, section A\.1: the runs give none of its figures\. Needs `pipeline score"):
        paper_table("speccot-5", runs[:2])
    (tmp_path / "mine.sql").write_text("SELECT run, nothing FROM runs")
    with pytest.raises(UsageError, match="SQL: Referenced column"):
        paper_table(str(tmp_path / "mine.sql"), runs)


def test_latencies_are_taken_one_problem_at_a_time_on_equal_cores(tmp_path: Path) -> None:
    cores = dict[str, set[int | None]]()
    for family, systems in papers.families(papers.planned(papers.STUDY, tmp_path / "study", small=True)).items():
        if family.rpartition(" ")[2] in ("latency", "inside"):
            points = [point for same in systems.values() for point in same]
            assert {point.label.batch_size for point in points} == {1}
            specs = [spec for point in points for spec in point.plan.engines.values()]
            cores[family] = {getattr(spec, "core", None) for spec in specs if spec.backend == "torch"}
    assert cores == {"tiny latency": {1}, "inflated latency": {1}, "tiny inside": set()}


def test_repeated_runs_are_one_with_their_mean_times_and_say_how_far_clocks_are_believed() -> None:
    same = [run_of("a", [1.0, 3.0], mean_wall_time_s=3.0), run_of("a", [3.0, 5.0], mean_wall_time_s=12.0)]
    mean = papers.mean_of(same)
    assert (mean.sums["latency_s"].tolist(), mean.wall_time_s) == ([2.0, 4.0], 7.5)
    assert papers.mean_of(same[:1]) is same[0]
    # Logs of 3 and 12 lie log(2) from their mean, the others 0: variance 2 log(2)^2 / 2 with 2 degrees of freedom, of means of two.
    others = [run_of("b", [1.0]), run_of("b", [1.0])]
    assert papers.noise_of([same, others]) == pytest.approx(np.exp(4.303 * np.log(2)), rel=1e-3)
    assert papers.noise_of([same[:1], others[:1]]) is None


def test_every_printed_figure_for_which_ours_is_asked_has_one() -> None:
    page = papers.page_of(results_of("papers")).partition("## What was measured")[0]
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ") and not line.startswith("| what | ")]
    groups = yaml.safe_load(papers.PRINTED.read_bytes())
    rows = [{"at": None, "ours": None, **group, **row} for group in groups for row in group["rows"]]
    for row, (_, _, ours, _, how, _) in zip(rows, lines, strict=True):
        at, sql = (each if isinstance(each, list) else [each] * len(row["of"]) for each in (row["at"], row["ours"]))
        asked = [bool(part and of_it) for part, of_it in zip(at, sql, strict=True)]
        assert [cell != "-" for cell in ours.split(" / ")] == (asked if any(asked) else [False]), row["what"]
        assert how == (row["how"] if any(asked) else "not possible here"), row["what"]


def test_simulated_figures_stand_beside_printed_ones(tmp_path: Path) -> None:
    plan = papers.planned(papers.SIMULATED, tmp_path / "study", small=True)
    plan = structs.replace(plan, groups={heading: points for heading, points in plan.groups.items() if "xA100/MATH-500" in heading})
    result = papers.made(plan)
    found = papers.figures_of(plan, result)
    assert {part: list(systems) for part, systems in found.items()} == {
        "4xA100/MATH-500": ["target", "draft", "speccot"],
        "2xA100/MATH-500": ["target", "draft", "speccot"],
        "4xA100/MATH-500+Decode": ["speculative-decoding", "speccot"],
    }
    [site, *_] = papers.read_sites(plan, result)
    assert (site["point"], len(site["rows"])) == ("batch size 1, 4 problems, simulated", 3)
    kept = results_of("papers")
    page = papers.page_of(kept | {"simulated": kept["simulated"] | found})
    ours = found["4xA100/MATH-500"]
    r = ours["target"]["latency_s"] / ours["speccot"]["latency_s"]
    [row] = [line.split(" | ") for line in page.splitlines() if line.startswith("| r | 3.3 / 3.1 / 2.3 / 2.0 |")]
    assert (row[2].split(" / ")[1], row[3].split(" / ")[1::2], row[4]) == (f"{r:.3g}", [f"{r / 3.1:.2f}", "-"], "fitted")
    assert page.count("this simulator is off by") == 1
    assert not any("accuracy" in figures for systems in kept["simulated"].values() for figures in systems.values())
