"""Which chain begins next."""

from collections.abc import Sequence

from pipeline.data.problems import Problem
from pipeline.data.requests.chat import ChainSettings
from pipeline.errors import BadRow
from pipeline.runtime.admission.order import InputOrder, Item, LongestFirst, SampleCounts, Start, StartOrder

PROBLEMS: list[Item] = [Problem(row, name, text, None) for row, (name, text) in enumerate((("a", "xx"), ("b", "xxxx"), ("c", "x")), 1)]


def taken(order: StartOrder) -> list[Start]:
    found = []
    while (start := order.take()) is not None:
        found.append(start)
    return found


def named(starts: Sequence[Start]) -> list[tuple[str, int, int]]:
    return [(start.item.problem_id, start.sample_index, start.order) for start in starts]


def never(order: int) -> bool:
    return False


def test_in_the_order_of_the_input_samples_stand_side_by_side() -> None:
    order = InputOrder(SampleCounts(2, 2), {2}.__contains__)
    order.add(PROBLEMS[:2])
    assert named(taken(order)) == [("a", 0, 0), ("a", 1, 1), ("b", 1, 3)]
    order.add(PROBLEMS[2:])
    assert named(taken(order)) == [("c", 0, 4), ("c", 1, 5)]


def test_longest_texts_first_and_every_problem_before_second_samples() -> None:
    order = LongestFirst(SampleCounts(2, 2), {4}.__contains__, {})
    order.add(PROBLEMS)
    starts = taken(order)
    assert named(starts) == [("b", 0, 2), ("a", 0, 0), ("b", 1, 3), ("a", 1, 1), ("c", 1, 5)]
    assert [start.expected_length for start in starts[:2]] == [4, 2]


def test_an_earlier_run_tells_how_long_to_expect_and_what_it_lacks_is_its_mean() -> None:
    order = LongestFirst(SampleCounts(1, 1), never, {"c": [100, 200], "a": [50]})
    order.add([*PROBLEMS, BadRow("file", 4, "is bad", "(row 4)")])
    starts = taken(order)
    assert named(starts) == [("c", 0, 2), ("b", 0, 1), ("(row 4)", 0, 3), ("a", 0, 0)]
    assert [start.expected_length for start in starts] == [150, 100, 100, 50]


def test_second_samples_go_by_the_thoughts_of_the_first_ones() -> None:
    order = LongestFirst(SampleCounts(2, 2), never, {})
    order.add(PROBLEMS)
    for tokens in (10, 30, 20):
        start = order.take()
        assert start is not None
        order.ended(start, tokens)
    assert named(taken(order)) == [("a", 1, 1), ("c", 1, 5), ("b", 1, 3)]


def test_a_problem_may_say_how_many_chains_it_has() -> None:
    items: list[Item] = [Problem(row, str(row), "x", None, settings=ChainSettings(samples=own)) for row, own in ((1, 1), (2, None), (3, 3))]
    counts = SampleCounts(2, 3)
    for order in (InputOrder(counts, never), LongestFirst(counts, never, {})):
        order.add(items)
        places = [("1", 0, 0), ("2", 0, 3), ("2", 1, 4), ("3", 0, 6), ("3", 1, 7), ("3", 2, 8)]
        assert sorted(named(taken(order))) == places
