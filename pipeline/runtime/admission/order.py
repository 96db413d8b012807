"""Which chain begins next: in the order of the input, or the ones that are expected to think longest first.

Problems enter as they are read, chains leave one at a time. What a chain says depends on neither: its number and its seeds are those of
its place in the input. Decides synchronously; never waits.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from pipeline.data.problems import Problem
from pipeline.errors import BadRow, Withdrawn

Item = Problem | BadRow
IsOver = Callable[[int], bool]
"""Says whether the chain at a place of the run's order was finished in an earlier session."""


class Withdrawal:
    """Ends a chain before its time, whoever asked for it."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        """That in which the chain runs."""
        self.error = Withdrawn("")
        """With what it ends."""

    def withdraw(self, why: str) -> None:
        """End the chain, or let it end as soon as it begins."""
        self.error = Withdrawn(why)
        self.scope.cancel()


class Start(NamedTuple):
    """A chain that is to begin."""

    item: Item
    sample_index: int
    order: int
    """Its `place` in the input."""
    expected_length: float | None = None
    """By what it was chosen: see `LongestFirst`; None in the order of the input."""
    withdrawal: Withdrawal | None = None
    """What may end it early; None: nothing but the end of the run."""
    record: Mapping[str, Any] | None = None
    """The whole row of its problem, where that is a request and in no file."""


class SampleCounts(NamedTuple):
    """How many chains a problem has."""

    each: int
    """Of a problem that does not say it."""
    most: int
    """Of any problem."""

    def of(self, item: Item) -> int:
        """The number of chains of `item`."""
        own = item.settings.samples if isinstance(item, Problem) else None
        return self.each if own is None else own

    def place(self, item: Item, sample_index: int) -> int:
        """The place of a chain in the input: rows first, samples of a row next, with room for those of every row."""
        return (item.row - 1) * self.most + sample_index


class InputOrder:
    """The order of the input: each problem with all of its samples, one problem after the other."""

    reads_all = False
    """True if all problems must be added before the first chain is taken."""

    def __init__(self, samples: SampleCounts, is_over: IsOver) -> None:
        self._samples, self._is_over = samples, is_over
        self._starts: deque[Iterator[Start]] = deque()

    def add(self, items: Sequence[Item]) -> None:
        """Add the next problems of the input."""
        self._starts.append(self._of(items))

    def take(self) -> Start | None:
        """The chain that begins next; None until more are added."""
        while self._starts:
            if (start := next(self._starts[0], None)) is not None:
                return start
            self._starts.popleft()
        return None

    def ended(self, start: Start, thought_tokens: int) -> None:
        """A chain was finished with a thought of that many tokens, which makes no difference here."""

    def _of(self, items: Sequence[Item]) -> Iterator[Start]:
        for item in items:
            for sample_index in range(self._samples.of(item)):
                order = self._samples.place(item, sample_index)
                if not self._is_over(order):
                    yield Start(item, sample_index, order)


class LongestFirst:
    """The order in which chains that are expected to think long begin first, so that they are not what a run ends with.

    The first sample of every problem begins before the second one of any. A first sample is expected to be as long as the problem's
    thoughts of an earlier run, in tokens, and without an earlier run as long as the problem's text, in characters. A further one is
    expected to be as long as the thoughts of the same problem, of the earlier run and of this one, were on average when the samples of
    its number began. A problem of which no thought is known counts as the mean of those of which one is. All problems are held in memory.
    """

    reads_all = True

    def __init__(self, samples: SampleCounts, is_over: IsOver, earlier: Mapping[str, Sequence[int]]) -> None:
        """`earlier`: tokens of the thoughts of an earlier run, by `problem_id`."""
        self._samples, self._is_over = samples, is_over
        self._problems: list[Item] = []
        self._thoughts = {problem_id: [*tokens] for problem_id, tokens in earlier.items()}
        self._has_earlier = bool(earlier)
        self._begun = 0
        """The number of samples of every problem that were put in order."""
        self._starts: deque[Start] = deque()

    def add(self, items: Sequence[Item]) -> None:
        """Add the next problems of the input."""
        self._problems += items

    def take(self) -> Start | None:
        """The chain that begins next; None once all have begun."""
        while not self._starts and self._begun < self._samples.most:
            self._starts.extend(self._in_order(self._begun))
            self._begun += 1
        return self._starts.popleft() if self._starts else None

    def ended(self, start: Start, thought_tokens: int) -> None:
        """A chain was finished with a thought of that many tokens."""
        if start.sample_index + 1 < self._samples.of(start.item):
            self._thoughts.setdefault(start.item.problem_id, []).append(thought_tokens)

    def _in_order(self, sample_index: int) -> list[Start]:
        """The chains of one sample of every problem, the longest first; among equals the longest text, then the order of the input."""
        means = {problem_id: sum(tokens) / len(tokens) for problem_id, tokens in self._thoughts.items()}
        mean = sum(means.values()) / len(means) if means else 0.0
        by_text = not sample_index and not self._has_earlier
        found = []
        for item in self._problems:
            order, text = self._samples.place(item, sample_index), _characters(item)
            if sample_index < self._samples.of(item) and not self._is_over(order):
                expected = float(text) if by_text else means.get(item.problem_id, mean)
                found.append((-expected, -text, Start(item, sample_index, order, expected)))
        return [start for _, _, start in sorted(found, key=lambda each: each[:2])]


StartOrder = InputOrder | LongestFirst
"""Decides which chain begins next."""


def start_order(order: str, samples: SampleCounts, is_over: IsOver, earlier: Mapping[str, Sequence[int]]) -> StartOrder:
    """What decides which chain begins next, by the option `order`; `earlier` are the thoughts of the run that it may name."""
    return InputOrder(samples, is_over) if order == "input" else LongestFirst(samples, is_over, earlier)


def _characters(item: Item) -> int:
    return len(item.problem) if isinstance(item, Problem) else 0
