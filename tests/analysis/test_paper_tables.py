"""The papers' tables from runs: rows, columns, what figures are over, and what is said to be missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.papers import bundled_tables, by_data_set, paper_table, read_layout
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.reward_agreement import ScoredSteps
from pipeline.analysis.resources import Resources
from pipeline.errors import UsageError
from pipeline.store.run_file import RunInput
from tests.support.paths import ROOT

Make = Callable[..., RunTable]
TABLES = bundled_tables()
ALONE = {"target": {"backend": "torch", "model": "org/large"}}


def input_of(name: str) -> dict[str, Any]:
    return {"file": Path(f"{name}.parquet"), "input": RunInput(sha256=name, rows=2, chains=2, samples=1)}


def column(table: Table, name: str) -> list[str]:
    return [row[table.columns.index(name)].partition(" [")[0] for row in table.rows]


def runs_over(table: Make, name: str, latency: float, **fields: Any) -> list[RunTable]:
    each = input_of(name) | fields
    alone = table(f"target-{name}", [latency] * 2, graph="target", engines=ALONE, drafters=(), **each)
    return [alone, table(f"speccot-{name}", [2.0] * 2, graph="speccot", **each)]


def test_data_sets_are_columns_and_the_last_ones_are_averages(table: Make) -> None:
    found = paper_table(TABLES["speccot-2"], [*runs_over(table, "gsm8k", 6.0), *runs_over(table, "amc23", 4.0)])
    assert found.columns == (
        "system",
        "models",
        *(f"{data}, {metric}" for data in ("gsm8k", "amc23", "average") for metric in ("tokens", "latency s", "r")),
    )
    assert column(found, "system") == ["target alone", "SpecCoT"]
    assert column(found, "gsm8k, r") == ["-", "3"]
    assert column(found, "amc23, r") == ["-", "2"]
    assert column(found, "average, r") == ["-", "2.5"]
    assert found.note == ""


def test_a_system_is_compared_with_the_target_of_its_own_model(table: Make) -> None:
    other = {"draft": {"backend": "torch", "model": "org/small"}, "target": {"backend": "torch", "model": "org/huge"}}
    huge = [
        table("huge", [20.0] * 2, graph="target", engines={"target": other["target"]}, drafters=(), **input_of("gsm8k")),
        table("huge-speccot", [5.0] * 2, graph="speccot", engines=other, **input_of("gsm8k")),
    ]
    found = paper_table(TABLES["speccot-2"], [*runs_over(table, "gsm8k", 6.0), *huge])
    assert list(zip(column(found, "models"), column(found, "gsm8k, r"), strict=True)) == [
        ("large", "-"),
        ("huge", "-"),
        ("large + small", "3"),
        ("huge + small", "4"),
    ]


def test_speed_ups_are_taken_apart_by_data_set(table: Make) -> None:
    """The run over amc23 writes 25 tokens, not 50 as its target does."""
    short = runs_over(table, "amc23", 8.0)
    short[1] = structs.replace(short[1], thought_tokens=np.full(2, 15.0))
    found = paper_table(TABLES["speed-up"], [*runs_over(table, "gsm8k", 6.0), *short])
    assert column(found, "system") == ["speccot"]
    assert [column(found, f"gsm8k, {name}") for name in ("r", "= tokens", "x rate")] == [["3"], ["1"], ["3"]]
    assert [column(found, f"amc23, {name}") for name in ("r", "= tokens", "x rate")] == [["4"], ["2"], ["2"]]


def test_of_several_runs_in_a_cell_the_first_is_shown_and_the_others_are_named(table: Make) -> None:
    runs = [table(f"t{n}", [float(n)] * 2, graph="specreason", params={"threshold": n}) for n in (9, 3, 7)]
    found = paper_table(TABLES["specreason-3"], runs)
    assert column(found, "data, latency s") == ["9"]
    assert found.note == "Not shown because another run takes their place: t3, t7."


def test_the_target_alone_with_another_draft_inside_its_engine_is_another_row(table: Make) -> None:
    drafts = {"r1": "./padded/R1-1.5B", "zr1": "./padded/ZR1-1.5B"}
    configs = {name: {"method": "draft_model", "model": model} for name, model in drafts.items()}
    engines = {name: {"target": {"backend": "vllm", "model": "org/large", "speculative_config": each}} for name, each in configs.items()}
    runs = [table(name, [1.0] * 2, graph="speculative-decoding", engines=each, drafters=()) for name, each in engines.items()]
    found = paper_table(TABLES["specreason-3"], runs)
    assert column(found, "models") == ["large", "large"]
    assert column(found, "speculation") == ["R1-1.5B", "ZR1-1.5B"]
    assert found.note == ""


def test_each_of_several_engines_files_has_its_own_target(table: Make, tmp_path: Path) -> None:
    runs = []
    for share, latency in ((0.5, 4.0), (0.9, 6.0)):
        target = {"backend": "torch", "model": "org/large", "kv": {"share": share}, "slots": 10 * share}
        engines = {"draft": {"backend": "torch", "model": "org/small"}, "target": target}
        runs.append(table(f"target-{share}", [latency] * 2, graph="target", engines={"target": target}, drafters=()))
        runs.append(table(f"speccot-{share}", [2.0] * 2, graph="speccot", engines=engines))
    (tmp_path / "mine.sql").write_text("SELECT run, over_target.speed_up AS r FROM runs WHERE graph = 'speccot' ORDER BY run")
    assert column(paper_table(tmp_path / "mine.sql", runs), "r") == ["2", "3"]


def test_resources_and_batch_sizes_are_over_the_least(table: Make) -> None:
    more = [
        table("less", [4.0] * 2, graph="speccot"),
        table("more", [1.0] * 2, graph="speccot", resources=Resources(cores=4), wall_time_s=5.0),
    ]
    found = paper_table(TABLES["speccot-4"], more)
    assert (column(found, "time saved, 4 cores"), column(found, "throughput gained, 4 cores")) == (["+75.0%"], ["+100.0%"])
    assert "time saved, 2 cores" not in found.columns
    sizes = [table(f"b{n}", [1.0] * 2, graph="speccot", batch_size=n, wall_time_s=32.0 / n) for n in (8, 1)]
    found = paper_table(TABLES["speccot-6"], sizes)
    assert (column(found, "batch size"), column(found, "data, speed-up")) == (["1", "8"], ["-", "8"])


def test_the_thinking_stage_is_compared_with_the_thinking_stage(table: Make) -> None:
    scot = table("scot", [4.0] * 2, graph="scot", thinking_s=np.array([1.0, 1.0]))
    runs = [table("target", [9.0] * 2, engines=ALONE, drafters=(), thinking_s=np.array([6.0, 6.0])), scot]
    found = paper_table(TABLES["scot-1"], runs)
    assert column(found, "data, thinking s") == ["6", "1"]
    assert column(found, "data, speed-up") == ["-", "6"]


def test_figure_7_has_a_row_for_each_bin(table: Make) -> None:
    scored = ScoredSteps("score", np.array([0, 0, 1]), np.array([1.0, 8.0, 9.0]), np.array([0.02, 0.81, 0.97]))
    found = paper_table(TABLES["specreason-7"], [table("specreason", [1.0] * 2, scored=scored)])
    assert list(zip(column(found, "metric"), column(found, "data, large + small"), strict=True)) == [
        ("[0.0, 0.1)", "1"),
        ("[0.8, 0.9)", "8"),
        ("[0.9, 1.0]", "9"),
        ("rank correlation", "1"),
        ("steps", "3"),
    ]


def test_a_run_is_the_system_that_says_most_about_it(table: Make) -> None:
    runs = [table("n5", [1.0] * 2, graph="scot", params={"candidates": 5}), table("n1", [1.0] * 2, graph="scot", params={"candidates": 1})]
    assert column(paper_table(TABLES["scot-4"], runs), "system") == ["SCoT", "single draft"]


def test_pooled_runs_and_failed_chains_are_said(table: Make) -> None:
    pooled = table("s0 (+2 seeds)", [1.0] * 2, graph="speccot", pooled=("s0", "s1", "s2"), failed=3)
    note = paper_table(TABLES["speccot-3"], [pooled]).note
    assert note == "Pooled runs that differ only in the seed: 3 a row. 3 chains failed: they count as wrong and are in no other figure."
    one = table("one", [1.0] * 2, graph="speccot", batch_size=1)
    assert "in the seed: 1 or 3 a row." in paper_table(TABLES["speccot-3"], [pooled, one]).note


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("scot-1", r"SCoT table 1, section 4\.2: none of the runs is of a system in it; give runs of graph target, graph scot"),
        ("speccot-5", r"section A\.1: the runs give none of its figures; needs `pipeline score RUN --prm FILE`$"),
        ("speed-up", r"the runs give none of its figures; it needs the run of the target alone over the same problems as well$"),
    ],
)
def test_a_table_that_the_runs_cannot_fill_is_refused_with_what_it_needs(table: Make, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        paper_table(TABLES[name], [table("speccot", [1.0] * 2)])


def test_every_graph_of_a_table_is_a_bundled_one() -> None:
    graphs = {path.stem for path in (ROOT / "graphs").glob("*.yaml")}
    assert {system.asked.split()[1] for file in TABLES.values() for system in read_layout(file).systems} <= graphs


def test_a_file_of_ones_own_is_printed_as_it_is_or_laid_out(table: Make, tmp_path: Path) -> None:
    runs = [*runs_over(table, "gsm8k", 6.0), *runs_over(table, "amc23", 4.0)]
    file = tmp_path / "mine.sql"
    query = "SELECT run, percent(accuracy) AS right, over_target.speed_up AS r, tokens.value AS tokens FROM runs WHERE r IS NOT NULL"
    file.write_text(query)
    found = paper_table(file, runs)
    assert (found.title, found.columns) == ("mine", ("run", "right", "r", "tokens"))
    assert [tuple(cell.partition(" [")[0] for cell in row) for row in found.rows] == [
        ("speccot-gsm8k", "100.0%", "3", "50"),
        ("speccot-amc23", "100.0%", "2", "50"),
    ]
    file.write_text(f"-- title: Mine\n-- source: here\n-- rows: system\n-- columns: data, metric\n{query}")
    laid_out = paper_table(file, runs)
    assert (laid_out.title, column(laid_out, "amc23, r")) == ("Mine (here)", ["2"])
    for sql, says in (
        ("SELECT nothing FROM runs", "SQL: Referenced column .nothing. not found"),
        ("DROP TABLE runs", "SQL: expected one query, which begins with"),
        ("-- rows: system\nSELECT tokens FROM runs", "mine: a query with a layout has a column `run`"),
        ("-- systems: SCoT\nFROM runs", "`systems` has 'SCoT'; expected `LABEL = graph NAME"),
        ("-- rows: system\n-- average: data\nFROM runs", "`average` needs `data` and `metric` among the `columns`"),
    ):
        file.write_text(sql)
        with pytest.raises(UsageError, match=says):
            paper_table(file, runs)


def test_all_systems_over_all_data(table: Make) -> None:
    found = by_data_set([*runs_over(table, "gsm8k", 6.0), *runs_over(table, "amc23", 4.0)])
    assert column(found, "system") == ["target", "speccot"]
    assert column(found, "average, accuracy") == ["100.0%", "100.0%"]
