"""What earlier versions did not write is filled in from what they wrote; what is there stays as it is."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.capabilities import SCALE_BY_KIND, SCALE_COLUMNS, is_share, read_steps, scale_of, with_purpose
from pipeline.analysis.ledger import ledger
from pipeline.analysis.quality.step_counts import count_steps
from pipeline.reasoning.chain import Scale
from pipeline.report.chain_list import read_chain_list
from tests.support.runs import solve

NEW = {"calls": ["purpose"], "steps": [*SCALE_COLUMNS, "score_options"], "chains": ["engines", "input_tokens", "output_tokens"]}


def as_of_earlier(folder: Path) -> None:
    """Take the columns out of a run folder that earlier versions did not write."""
    for table, names in NEW.items():
        for part in (folder / table).glob("*.parquet"):
            pq.write_table(pq.read_table(part).drop_columns(names), part)


@pytest.mark.parametrize("graph", ["speccot", "specreason", "likelihood", "target"])
def test_a_run_of_an_earlier_version_says_the_same(tmp_path: Path, graph: str) -> None:
    folder = solve(tmp_path, graph=graph).folder

    def found() -> Any:
        counts = count_steps(folder, read_chain_list(folder).grades)
        scores = {kind: (each.accepted.tolist(), each.edges.tolist(), each.scale) for kind, each in counts.scores.items()}
        return ledger(folder), scores, [batch.select(list(SCALE_COLUMNS)) for batch in read_steps(folder, ["step_index"])]

    now = found()
    as_of_earlier(folder)
    assert found() == now


def test_purposes_of_an_earlier_version() -> None:
    kinds = ["generate", "draft", "choose", "generate", "likelihood", "score", "answer", "picked"]
    table = pa.table({"kind": kinds, "step_index": [0, 1, 1, 1, 2, 2, 3, 3]})
    expected = ["guide", "draft", "judge", "write", "judge", "judge", "answer", "write"]
    assert with_purpose(table).column("purpose").to_pylist() == expected
    encoded = table.set_column(0, "kind", table.column("kind").dictionary_encode())
    assert with_purpose(encoded).column("purpose").to_pylist() == expected
    assert with_purpose(table.append_column("purpose", [["judge"] * 8])).column("purpose").to_pylist() == ["judge"] * 8


def test_what_counts_as_a_share() -> None:
    assert is_share(SCALE_BY_KIND["choose"])
    assert not is_share(SCALE_BY_KIND["score"])
    assert not is_share(Scale("yes or no", 0.0, 1.0, integers=True))


def test_scales_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    pq.write_table(pa.table({"verify_kind": ["choose", None, "picked"]}), tmp_path / "steps/part-00000.parquet")
    [batch] = read_steps(tmp_path, [])
    rows = batch.to_pylist()
    assert scale_of(rows[0]) == SCALE_BY_KIND["choose"]
    assert (rows[0]["score_of_candidates"], rows[2]["score_of_candidates"]) == (True, False)
    assert {rows[1][name] for name in SCALE_COLUMNS} == {None}
    assert scale_of(rows[2]) == Scale("value")
