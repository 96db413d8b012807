"""What the driver knows of one replica."""

import pytest

from pipeline.cluster.member import MOST_LOSSES, Member
from pipeline.cluster.messages import OpenReplica, Orders, Report
from pipeline.engine import EngineStatistics


class Wire:
    """A link that carries nothing."""

    node, address = "node-7", "10.0.0.7"

    async def order(self, orders: Orders) -> None: ...

    async def report(self) -> Report:
        return Report()


def spent(tokens: int) -> dict[str, EngineStatistics]:
    counts = dict.fromkeys(("running", "waiting", "requests", "input_tokens", "cached_input_tokens"), 0)
    return {"target": EngineStatistics(**counts, output_tokens=tokens, kv_cache_usage=0.0, busy_s=0.0)}


def started() -> Member:
    member = Member(3)
    member.start(Wire())
    return member


def test_chains_on_the_way_take_room() -> None:
    member = started()
    member.hear(Wire(), Report(wants=5, received=2))
    member.sent = 4
    assert member.wants == 3
    member.sent = 9
    assert member.wants == 0


def test_a_replica_that_was_lost_has_no_room_and_is_not_reachable() -> None:
    member = started()
    member.hear(Wire(), Report(wants=5, live=2, opened=OpenReplica(facts={})))
    assert (member.reachable, member.opened, member.live) == (True, True, 2)
    member.lose("it died", for_good=False)
    assert (member.reachable, member.opened, member.wants, member.live) == (False, False, 0, 0)
    member.start(Wire())
    assert (member.reachable, member.opened, member.starts) == (True, False, 2)


def test_it_is_dropped_after_losses_in_a_row_or_for_good() -> None:
    member = started()
    for _ in range(MOST_LOSSES - 1):
        member.lose("it died", for_good=False)
    assert not member.dropped
    member.chain_over(None)
    for _ in range(MOST_LOSSES - 1):
        member.lose("it died", for_good=False)
        assert not member.dropped
    member.lose("it died again", for_good=False)
    assert (member.dropped, member.state.what) == (True, "dropped: it died again")
    other = started()
    other.lose("wrong model", for_good=True)
    assert other.dropped


def test_failures_are_counted_until_a_chain_ends_well() -> None:
    member = started()
    for _ in range(3):
        member.chain_over("no answer")
    assert (member.strikes, member.last_error) == (3, "no answer")
    member.chain_over(None)
    assert member.strikes == 0


def test_statistics_and_pauses_of_all_its_starts_are_kept() -> None:
    member = started()
    member.hear(Wire(), Report(statistics=spent(10), pauses=2))
    member.lose("it died", for_good=False)
    member.start(Wire())
    assert [each["target"].output_tokens for each in member.statistics] == [10]
    member.hear(Wire(), Report(statistics=spent(5), pauses=1))
    member.hear(Wire(), Report(pauses=4))
    assert [each["target"].output_tokens for each in member.statistics] == [10, 5]
    assert member.pauses == 6
    assert (member.record.node, member.record.address, member.record.starts, member.record.losses) == ("node-7", "10.0.0.7", 2, ["it died"])


def test_its_speed_is_what_its_engines_write_for_each_live_chain() -> None:
    member = started()
    for now, tokens, live in ((0.0, 0, 0), (2.0, 400, 4), (4.0, 800, 4), (6.0, 800, 0)):
        member.hear(Wire(), Report(statistics=spent(tokens), live=live))
        member.measure(now)
    assert member.load(4, 8).tokens_per_s == pytest.approx(50.0)
    member.start(Wire())
    assert member.load(0, 8).tokens_per_s is None


@pytest.mark.anyio
async def test_waking_it_twice_or_before_it_waits_is_heard_once() -> None:
    member = Member(0)
    member.wake()
    member.wake()
    await member.wait()
    assert not member._news.is_set()
