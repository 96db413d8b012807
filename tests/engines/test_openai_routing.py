"""Which replica gets a call, decided line by line."""

from collections.abc import Sequence

from pipeline.engines.openai.routing import SILENT_S, SILENT_TIMES, Router


def test_it_forgets_the_chain_that_asked_longest_ago() -> None:
    router = Router(2, max_chains=2)
    homes = []
    for chain in "abcda":
        home = router.take(chain, 0.0)
        assert home is not None
        router.leave(home)
        homes.append(home)
    assert homes == [0, 1, 0, 0, 1]  # `a` was at home in 0


def shut(router: Router, *replicas: int) -> None:
    for index, replica in enumerate(router.replicas):
        if index in replicas:
            replica.breaker.suspect(0.0, "silence", "is silent")
        elif not replica.breaker.closed:
            replica.breaker.succeed(0.0)


def test_it_sends_a_new_chain_where_least_is_in_flight() -> None:
    router = Router(3)
    assert [router.take(chain, 0.0) for chain in ("a", "b", "c", "")] == [0, 1, 2, 0]
    router.leave(1)
    assert router.take("d", 0.0) == 1
    shut(router, 0, 1)
    assert [router.take(chain, 0.0) for chain in "ab"] == [2, 2]
    shut(router, 0, 1, 2)
    assert router.take("a", 0.0) is None
    shut(router)
    assert router.take("b", 0.0) == 2


def test_a_call_goes_back_where_it_failed_only_if_there_is_no_other() -> None:
    router = Router(3)
    assert router.take("a", 0.0) == 0
    assert router.take("a", 0.0, {0}) == 1
    assert router.take("a", 0.0, {0, 1}) == 2
    assert router.has_other({0, 1})
    assert not router.has_other({0, 1, 2})
    shut(router, 1, 2)
    assert not router.has_other({0})
    assert router.take("a", 0.0, {0, 1, 2}) == 0


def test_where_all_are_left_out_those_that_answer_are_asked_and_the_silent_are_not() -> None:
    router = Router(3)
    shut(router, 0)
    router.replicas[1].breaker.suspect(0.0, "errors", "fails")
    assert router.take("a", 0.0) == 2
    router.replicas[2].breaker.suspect(0.0, "refusal", "wants a key")
    assert {router.take(chain, 0.0) for chain in "bcdef"} == {1, 2}
    assert router.usable
    assert not router.any_closed


def test_a_busy_replica_is_left_alone_for_as_long_as_it_asked() -> None:
    router = Router(2)
    router.replicas[0].busy_until = 10.0
    assert [router.take(chain, 9.9) for chain in "abc"] == [1, 1, 1]
    assert router.take("d", 10.0) == 0
    router.replicas[0].busy_until = router.replicas[1].busy_until = 99.0
    assert router.take("e", 20.0) == 0


def answer(router: Router, index: int, *seconds: float) -> None:
    for took in seconds:
        router.answered(index, 0.0, took)


def test_a_slow_replica_counts_its_calls_as_often_as_it_is_slow() -> None:
    router = Router(2)
    answer(router, 0, 1.0, 1.0, 1.0)
    answer(router, 1, 10.9, 10.9, 10.9)  # (10.9 + 0.1) / (1 + 0.1) = 10
    assert [router.take(str(i), 0.0) for i in range(12)] == [0] * 9 + [1, 0, 0]


def test_a_chain_leaves_a_slow_replica_when_a_faster_one_has_less_to_do() -> None:
    router = Router(2)
    assert [router.take("a", 0.0), router.take("b", 0.0)] == [0, 1]
    router.leave(0), router.leave(1)
    answer(router, 1, 1.0, 1.0, 1.0)
    answer(router, 0, 2.5, 2.5, 2.5)  # not slow enough to lose the prefix
    assert router.take("a", 0.0) == 0
    answer(router, 0, *[9.0] * 30)
    assert router.take("a", 0.0) == 1


def test_differences_of_milliseconds_and_means_over_few_answers_mean_nothing() -> None:
    router = Router(2)
    answer(router, 0, 0.001, 0.001, 0.001)
    answer(router, 1, 0.02, 0.02, 0.02)
    assert [router.take(chain, 0.0) for chain in "abcd"] == [0, 1, 0, 1]
    router = Router(2)
    answer(router, 0, 0.1, 0.1, 0.1)
    answer(router, 1, 9.0)
    assert [router.take(chain, 0.0) for chain in "abcd"] == [0, 1, 0, 1]


def test_a_call_at_a_slow_replica_is_overdue_when_another_one_would_have_answered_it_long_ago() -> None:
    router = Router(2)
    router.take("a", 0.0), router.take("b", 0.0)
    answer(router, 1, 1.0, 1.0, 2.0)
    answer(router, 0, 2.5, 2.5, 2.5)
    assert router.overdue() == []
    answer(router, 0, *[9.0] * 30)
    assert router.overdue() == [(0, SILENT_TIMES * 2.0)]
    shut(router, 1)
    assert router.overdue() == []


def silent(router: Router, times: Sequence[float]) -> list[list[int]]:
    return [router.silent(now) for now in times]


def test_a_replica_is_silent_when_others_answer_and_it_does_not() -> None:
    router = Router(2)
    router.take("a", 0.0), router.take("b", 0.0)
    assert silent(router, [0.0, SILENT_S, 100.0]) == [[], [], []]  # nobody answers
    router.answered(1, 0.0, 1.5)
    limit = SILENT_TIMES * 1.5
    assert silent(router, [limit - 0.1, limit]) == [[], [0]]
    router.skip(50.0)
    assert silent(router, [limit + 40, limit + 50]) == [[], [0]]
    shut(router, 0)
    assert router.silent(limit + 50) == []


def test_a_replica_without_calls_is_not_silent() -> None:
    router = Router(2)
    router.answered(1, 0.0, 0.5)
    assert router.silent(1000.0) == []
    router.take("a", 1000.0)
    router.answered(1, 1000.0, 1000.5)
    assert silent(router, [1000.0 + SILENT_S - 0.1, 1000.0 + SILENT_S]) == [[], [0]]
