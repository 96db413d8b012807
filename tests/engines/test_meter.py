"""The counters that every engine keeps of its calls, on a clock that the test moves by hand, and their sums."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine import EngineStatistics, Speculation, Usage
from pipeline.engines.meter import UsageMeter


def test_time_counts_while_any_call_is_open() -> None:
    now = 100.0
    meter = UsageMeter(lambda: now)
    for then, count in ((100.0, meter.begin), (101.0, meter.begin), (103.0, meter.end), (105.0, meter.end)):
        now = then
        count()
    now = 110.0
    assert (meter.open_calls, meter.busy_s) == (0, 5.0)
    meter.begin()
    now = 112.0
    assert meter.statistics().busy_s == 7.0


def test_what_no_request_stated_is_unknown_and_sums_are_of_those_that_stated_it() -> None:
    silent, both = UsageMeter(), UsageMeter()
    for meter in (silent, both):
        meter.count(Usage(input_tokens=20, output_tokens=7))
        assert meter.statistics().cached_input_tokens is None
    both.count(Usage(input_tokens=10, cached_input_tokens=4, output_tokens=3))
    found = both.statistics().plus(silent.statistics())
    assert (found.requests, found.input_tokens, found.cached_input_tokens, found.output_tokens) == (3, 50, 4, 17)
    assert silent.statistics().plus(both.statistics(), -1).cached_input_tokens is None


NUMBERS = st.integers(0, 9)
SPECULATION = st.builds(Speculation, accepted_by_position=st.lists(NUMBERS, min_size=2, max_size=2).map(tuple))
TOTALS = st.builds(EngineStatistics, requests=NUMBERS, restarts=NUMBERS, written_tokens=NUMBERS, speculation=SPECULATION)


@given(one=TOTALS, other=TOTALS)
def test_what_is_added_can_be_taken_away(one: EngineStatistics, other: EngineStatistics) -> None:
    assert one.plus(other).plus(other, -1).requests == one.requests
    assert one.plus(other).plus(other, -1).speculation == one.speculation
    assert EngineStatistics().plus(one).written_tokens == one.written_tokens
