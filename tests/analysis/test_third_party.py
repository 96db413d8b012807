"""A verifier of another package and roles of any name count as the built-in ones do: in ledger, plots, tables and chain totals."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.analysis.compare.compare import compare
from pipeline.analysis.compare.runs import RunTable, read_runs
from pipeline.analysis.compare.tables import markdown
from pipeline.analysis.ledger import ledger
from pipeline.analysis.quality.step_counts import count_steps
from pipeline.analysis.summary import summarize
from pipeline.report.report import report
from pipeline.report.run_sections import ReportOptions
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.store.query import Query
from tests.support.third_party import installed

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def picked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of the graph of another package; its stage is installed as long as this module is tested."""
    folder = tmp_path_factory.mktemp("third_party")
    rows = [{"problem": f"What is {i} + 1?", "answer": str(i + 1), "problem_id": f"p{i}"} for i in range(16)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with installed(folder) as graph:
        options = RunOptions(graph=graph, input=folder / "problems.jsonl", output=folder / "run", batch_size=8)
        assert run(options).exit_code == 0
        yield folder / "run"


def statistics_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())["engine_statistics"]
    return found


def test_its_tokens_are_verification_and_no_waste(picked: Path) -> None:
    found = ledger(picked)
    critic = found.engines["critic"]
    judged = sum(row["decision"] in ("accepted", "fallback") for row in pq.read_table(picked / "steps").to_pylist())
    assert {purpose: tokens for purpose, tokens in critic.output.items() if tokens} == {"verification": judged}
    assert found.output("verification") == judged == statistics_of(picked)["critic"]["output_tokens"]
    for role, engine in found.engines.items():
        assert (engine.output["unrecorded"], sum(engine.output.values())) == (0, statistics_of(picked)[role]["output_tokens"])


def test_its_verdicts_are_counted_on_their_own_scale(picked: Path) -> None:
    scores = count_steps(Query(picked)).scores
    assert list(scores) == ["pick"]
    pick = scores["pick"]
    assert (pick.scale.name, pick.scale.unit, pick.edges[0]) == ("margin", "percent", 0.0)
    assert pick.edges[-1] <= 100
    assert int(pick.accepted.sum()) == summarize(picked).accepted_steps > 0
    assert sum(share.count for share in pick.right) == pick.accepted.sum()


def test_the_page_has_its_plots_and_its_words(picked: Path) -> None:
    page = report([picked], ReportOptions(chains=3, bins=20))
    assert "Acceptance by the verifier&#39;s value (pick)" in page
    assert "How often what was accepted is right (pick)" in page
    assert "margin, percent" in page
    assert "pick: candidate 1 of 3, " in page


def test_tables_name_the_roles_as_the_graph_does(picked: Path) -> None:
    table = markdown(compare(read_runs([picked])))
    assert "large-model" in table
    for role in ("small", "large", "critic"):
        assert f"| {role} | {role}-model |" in table


def test_the_chains_totals_of_all_roles_are_what_the_engines_counted(picked: Path) -> None:
    totals: dict[str, list[int]] = {}
    for row in pq.read_table(picked / "chains").to_pylist():
        for role, read, sampled in zip(row["engines"], row["input_tokens"], row["output_tokens"], strict=True):
            sums = totals.setdefault(role, [0, 0])
            sums[0], sums[1] = sums[0] + read, sums[1] + sampled
    counted = statistics_of(picked)
    assert totals == {role: [counted[role]["input_tokens"], counted[role]["output_tokens"]] for role in ("large", "small", "critic")}
    summary = summarize(picked)
    assert {role: [each.input_tokens, each.output_tokens] for role, each in summary.engines.items()} == totals
    assert 0 < (summary.draft_share or 0) < 1


def test_the_run_that_drafts_nothing_is_the_baseline_whatever_its_name(table: Callable[..., RunTable]) -> None:
    drafts = table("picked", [2.0, 2.0], drafters=("small",))
    alone = table("large-alone", [4.0, 4.0], drafters=())
    assert compare([drafts, alone]).baseline == "large-alone"
    assert compare([drafts, alone, table("target", [4.0, 4.0])]).baseline == "target"
    assert compare([drafts, table("other", [1.0, 1.0], drafters=("small",))]).baseline == "picked"


def test_models_are_named_by_role_with_those_that_draft_last(picked: Path) -> None:
    [run] = read_runs([picked])
    assert run.roles == ("large", "critic", "small")
    assert run.drafters == ("small",)
    assert list(run.models.values()) == ["large-model", "critic-model", "small-model"]
