"""The counters that every engine keeps of its calls, on a clock that the test moves by hand."""

import pytest

from pipeline.engine import EngineStatistics, Speculation, Usage
from pipeline.engines.meter import UsageMeter


class HandClock:
    def __init__(self) -> None:
        self.time = 100.0
        self.stopped = False

    def __call__(self) -> float:
        if self.stopped:
            raise RuntimeError("no event loop is running")
        return self.time


def test_usages_add_up() -> None:
    meter = UsageMeter()
    meter.count(Usage(input_tokens=10, cached_input_tokens=4, output_tokens=3))
    meter.count(Usage(input_tokens=20, output_tokens=7))
    statistics = meter.statistics(running=2, waiting=1, kv_cache_usage=0.5, busy_s=1.5, restarts=3)
    assert (statistics.requests, statistics.input_tokens, statistics.cached_input_tokens, statistics.output_tokens) == (2, 30, 4, 10)
    assert (statistics.running, statistics.waiting, statistics.kv_cache_usage) == (2, 1, 0.5)
    assert (statistics.busy_s, statistics.restarts) == (1.5, 3)


def test_what_no_request_stated_is_unknown_and_sums_are_of_those_that_stated_it() -> None:
    silent, both = UsageMeter(), UsageMeter()
    for meter in (silent, both):
        meter.count(Usage(input_tokens=20, output_tokens=7))
        assert meter.statistics().cached_input_tokens is None
    both.count(Usage(input_tokens=10, cached_input_tokens=0, output_tokens=3))
    assert both.statistics().cached_input_tokens == 0
    together = both.statistics(kv_cache_usage=0.5, running=2).plus(silent.statistics(running=3))
    assert (together.cached_input_tokens, together.kv_cache_usage, together.input_tokens, together.running) == (0, 0.5, 50, 2)
    assert silent.statistics().plus(silent.statistics()).cached_input_tokens is None
    assert silent.statistics().plus(both.statistics(), -1).cached_input_tokens is None


def test_totals_of_speculation_are_added_by_position() -> None:
    one = EngineStatistics(speculation=Speculation(drafts=3, draft_tokens=9, accepted_tokens=5, accepted_by_position=(3, 2)))
    both = EngineStatistics().plus(one).plus(one)
    assert both.plus(one, -1) == one
    assert both.speculation is not None
    assert (both.speculation.drafts, both.speculation.accepted_by_position) == (6, (6, 4))


def test_time_counts_while_any_call_is_open() -> None:
    clock = HandClock()
    meter = UsageMeter(clock)
    meter.begin()  # 100 to 103, overlapped by 101 to 105
    clock.time = 101.0
    meter.begin()
    assert (meter.open_calls, meter.busy_s) == (2, 1.0)
    clock.time = 103.0
    meter.end()
    clock.time = 105.0
    meter.end()
    clock.time = 110.0  # idle
    assert (meter.open_calls, meter.busy_s) == (0, 5.0)
    meter.begin()
    clock.time = 112.0
    assert meter.statistics().busy_s == 7.0


@pytest.mark.parametrize("open_calls", [0, 1])
def test_where_the_clock_stands_still_it_is_as_of_the_last_change(open_calls: int) -> None:
    clock = HandClock()
    meter = UsageMeter(clock)
    meter.begin()
    clock.time = 104.0
    meter.end()
    for _ in range(open_calls):
        meter.begin()
    clock.stopped = True
    assert meter.statistics().busy_s == 4.0
