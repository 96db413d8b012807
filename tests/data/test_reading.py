"""An input is read once: which rows leave, under which ids, and what is said about them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.data.reading import HEAD_ROWS, InputReading, read_files
from pipeline.errors import BadRow, InputError, UsageError
from pipeline.options import RowSample, RowSet, Shard, row_sample, shard_of


def rows_of(count: int, **more: Any) -> list[Record]:
    return [{"problem": str(row), **more} for row in range(1, count + 1)]


def numbers(records: list[Record], part: RowSet) -> list[int]:
    return [item.row for item, _ in InputReading("p", records, part=part)]


def wrong(records: list[Record], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        list(InputReading("p", records, **options))
    return str(caught.value)


def test_each_row_leaves_with_all_of_its_columns_in_its_order() -> None:
    records: list[Record] = [{"problem": "x", "level": 3, "when": {"a": [1]}}, Flaw("broken"), {"problem": None, "level": 4}]
    reading = InputReading("p", records)
    (good, first), (bad, second), (empty, third) = reading
    assert good == Problem(1, "1", "x", None)
    assert [each and json.loads(each) for each in (first, second, third)] == [records[0], None, records[2]]
    assert [str(each) for each in (bad, empty) if isinstance(each, BadRow)] == ["p, row 2: broken", "p, row 3: has no `problem`"]
    assert reading.remarks == ["p: 2 of 3 rows hold no problem and will fail; row 2: broken"]


def test_a_row_that_no_file_can_hold_spoils_no_other() -> None:
    items = [item for item, _ in InputReading("p", [{"problem": "a\ud800"}, {"problem": "x", "note": 2**70}, {"problem": "y", "note": 1j}])]
    assert "cannot be written as JSON" in str(items[0])
    assert [item.problem for item in items[1:] if isinstance(item, Problem)] == ["x", "y"]


def test_the_digest_is_of_all_rows_whatever_is_asked_for() -> None:
    def digest(records: list[Record], **options: Any) -> str:
        reading = InputReading("p", records, **options)
        list(reading)
        return reading.sha256

    whole = digest(rows_of(50))
    parts = [RowSet(limit=3), RowSet(sample=RowSample(5)), RowSet(shard=Shard(1, 2))]
    assert {digest(rows_of(50), part=part) for part in parts} == {whole}
    assert len({whole, digest(rows_of(49)), digest(rows_of(50, level=1)), digest(rows_of(50)[::-1])}) == 4


def test_a_limit_bounds_what_is_solved_and_not_what_is_read() -> None:
    assert numbers(rows_of(9), RowSet(limit=2)) == list(range(1, 10))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(-3, 3))
def test_a_sample_is_drawn_in_order_and_is_part_of_a_larger_one(few: int, more: int, seed: int) -> None:
    drawn = [numbers(rows_of(60), RowSet(sample=RowSample(count, seed))) for count in sorted((few, more))]
    assert set(drawn[0]) <= set(drawn[1])
    assert [len(each) for each in drawn] == sorted((few, more))
    assert all(each == sorted(set(each)) for each in drawn)


def test_samples_of_two_seeds_differ_and_a_larger_one_than_the_input_is_refused() -> None:
    assert numbers(rows_of(200), RowSet(sample=RowSample(9, 1))) != numbers(rows_of(200), RowSet(sample=RowSample(9, 2)))
    assert wrong(rows_of(2), part=RowSet(sample=RowSample(3))) == "p: a sample of 3 rows was requested, but it has 2"


@given(st.integers(1, 7), st.permutations(range(30)))
def test_shards_share_no_problem_whatever_the_order_of_the_rows(count: int, order: list[int]) -> None:
    records: list[Record] = [{"problem": "x", "problem_id": f"p{number}"} for number in order]
    shards = [[item.problem_id for item, _ in InputReading("p", records, part=RowSet(shard=Shard(index, count)))] for index in range(count)]
    assert sorted(name for shard in shards for name in shard) == sorted(f"p{number}" for number in range(30))
    assert all(Shard(index, count).holds(name) for index, shard in enumerate(shards) for name in shard)


def test_ids_are_the_column_of_them_or_row_numbers() -> None:
    def ids(*given: Any) -> list[str]:
        return [item.problem_id for item, _ in InputReading("p", [{"problem": "x", "problem_id": each} for each in given])]

    assert ids("a", None, " ", 7, 2.0) == ["a", "(row 2)", "(row 3)", "7", "2"]
    assert [item.problem_id for item, _ in InputReading("p", rows_of(2))] == ["1", "2"]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30))
def test_two_rows_with_one_id_are_refused(ids: list[int]) -> None:
    records: list[Record] = [{"problem": "x", "nr": each} for each in ids]
    pairs = [(ids.index(each) + 1, place + 1) for place, each in enumerate(ids) if each in ids[:place]]
    if not pairs:
        assert len(list(InputReading("p", records, {"problem_id": "nr"}))) == len(ids)
        return
    said = wrong(records, columns={"problem_id": "nr"})
    assert any(said.startswith(f"p, row {again}: its `nr` is that of row {row} already; ids must differ") for row, again in pairs)


def test_an_input_without_problems_is_refused() -> None:
    assert wrong([]) == "p: holds no rows"
    assert wrong([Flaw("broken")] * 9) == "p: no row holds a problem; row 1: broken"


def test_a_column_of_the_first_rows_counts_for_all() -> None:
    records = [*rows_of(HEAD_ROWS), {"problem": "x", "answer": "late"}, {"question": "y"}]
    *_, late, other = (item for item, _ in InputReading("p", records))
    assert late == Problem(HEAD_ROWS + 1, str(HEAD_ROWS + 1), "x", None)
    assert str(other) == f"p, row {HEAD_ROWS + 2}: has no `problem`"


def test_several_files_are_one_input(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"problem": "a1"}\nnot json\n')
    (tmp_path / "b.csv").write_text("problem,answer\nb1,1\nb2,2\n")
    reading = read_files([tmp_path, tmp_path / "b.csv"])
    assert [(item.row, getattr(item, "problem", None)) for item, _ in reading] == [
        (1, "a1"), (2, None), (3, "b1"), (4, "b2"), (5, "b1"), (6, "b2"),
    ]  # fmt: skip
    assert reading.name == f"{tmp_path} and 1 more"


def test_what_is_a_sample_or_a_shard() -> None:
    assert [row_sample(text) for text in ("5", "5:-3")] == [RowSample(5, 0), RowSample(5, -3)]
    assert (str(row_sample("5:-3")), str(shard_of("2/3"))) == ("5:-3", "2/3")
    for text in ("0", "-1", "x", "5:", "5:x"):
        with pytest.raises(UsageError, match="expected N or N:SEED"):
            row_sample(text)
    for text in ("3", "3/3", "1/0", "-1/2", "a/b", "1/2/3"):
        with pytest.raises(UsageError, match="expected INDEX/COUNT"):
            shard_of(text)
