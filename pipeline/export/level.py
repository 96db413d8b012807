"""A number over time: rises and falls enter in any order, the number after each instant leaves in order. Holds what is not yet due."""

from collections.abc import Iterator

import numpy as np

from pipeline.export.source import Array


class Level:
    """A count of things that go on, or that were made so far."""

    def __init__(self) -> None:
        self.value = 0
        """After the last instant that was asked for."""
        self._times, self._steps = np.empty(0, np.int64), np.empty(0, np.int64)

    def change(self, times: Array, steps: int | Array) -> None:
        """It changes by `steps` at `times`, none of them before an instant that was asked for."""
        self._times = np.concatenate([self._times, times])
        self._steps = np.concatenate([self._steps, np.broadcast_to(np.asarray(steps, np.int64), times.shape)])

    def span(self, starts: Array, ends: Array) -> None:
        """One more from each of `starts` to each of `ends`."""
        lasting = ends > starts
        self.change(starts[lasting], 1)
        self.change(ends[lasting], -1)

    def until(self, instant: int) -> Iterator[tuple[int, int]]:
        """Each time before `instant` at which it changed, once, with the number from then on."""
        order = np.argsort(self._times, kind="stable")
        due = int(np.searchsorted(self._times[order], instant))
        now, later = order[:due], order[due:]
        times, values = self._times[now], self.value + np.cumsum(self._steps[now])
        self._times, self._steps = self._times[later], self._steps[later]
        last = np.append(times[1:] != times[:-1], True)[:due]
        for time, value in zip(times[last].tolist(), values[last].tolist(), strict=True):
            if value != self.value:
                self.value = value
                yield time, value
