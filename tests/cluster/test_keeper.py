"""Runs whose replicas fail: when that is noticed, what is done about it, and that nothing is lost or twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from pipeline.cluster.keeper import SILENT_S
from pipeline.cluster.member import MOST_LOSSES, STRIKES
from pipeline.cluster.messages import Failure, Report
from pipeline.engines.sim.spec import SimFaultsSpec
from pipeline.errors import RunError, UsageError
from pipeline.runtime.backoff import backoff_s
from pipeline.session.execute import SessionResult
from pipeline.session.observer import Observer
from pipeline.session.run import run
from tests.support.fated_replicas import (
    WELL,
    Fate,
    Fleet,
    always,
    at_first,
    check_totals,
    check_whole,
    on_replicas,
    options_of,
    places,
)
from tests.support.runs import rows

DYING = SimFaultsSpec(dies_after_calls=5)
MUMBLING = SimFaultsSpec(garbage_share=1.0)
DIED = "it died as it was told to"


def pause(number: int, loss: int) -> float:
    return backoff_s(f"replica {number}", loss)


@pytest.mark.parametrize("at_s", [0.0, 0.7, 2.2])
@pytest.mark.parametrize("count", [1, 3])
def test_what_a_replica_had_that_died_goes_on_elsewhere(
    problems: Path, calm: SessionResult, tmp_path: Path, count: int, at_s: float
) -> None:
    fleet, told = Fleet(at_first(r0=Fate(at_s=at_s))), list[str]()
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=count), fleet, Observer(tell=told.append))
    check_whole(result, calm)
    assert fleet.starts[0] == pytest.approx([0.0, at_s + pause(0, 0)], abs=1e-9)
    [lost, *others] = result.run.sessions[-1].replicas
    assert (lost.starts, lost.losses, lost.dropped) == (2, [DIED], False)
    assert [(each.starts, each.losses) for each in others] == [(1, [])] * (count - 1)
    assert told == [f"replica 0 on node node-0: lost, restarting it: {DIED}"]


def test_no_answer_that_was_reported_is_asked_for_again(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), at_first(r0=Fate(at_s=2.0)))
    requests = [row["request_id"] for row in rows(result, "calls") if row["error_type"] is None]
    assert sorted(requests) == sorted(row["request_id"] for row in rows(calm, "calls"))
    assert any(len(set(each)) == 2 for each in places(result).values())


def test_a_replica_that_is_silent_is_lost_after_a_minute(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fleet = Fleet(at_first(r0=Fate(at_s=0.0, ending="hangs")))
    result = on_replicas(options_of(tmp_path, "run", problems), fleet)
    check_whole(result, calm)
    assert fleet.starts[0] == [0.0, SILENT_S + pause(0, 0)]
    assert result.run.sessions[-1].replicas[0].losses == ["it reported nothing for 60 s"]


def test_a_replica_that_is_silent_from_some_moment_on_keeps_its_chains_for_a_minute(
    problems: Path, calm: SessionResult, tmp_path: Path
) -> None:
    fleet = Fleet(at_first(r1=Fate(at_s=2.0, ending="hangs")))
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), fleet)
    check_whole(result, calm)
    lost_s = fleet.starts[1][1] - pause(1, 0)
    assert 2.0 - 2.1 + SILENT_S < lost_s <= 2.0 + SILENT_S
    others = [row["end_unix_ns"] for row in rows(result, "chains") if row["replica"] != 1]
    started = result.run.sessions[-1].started_unix_ns
    assert sum((end - started) / 1e9 < 10 for end in others) >= 4, "the others went on meanwhile"


def test_a_replica_that_takes_no_orders_is_lost_after_a_minute(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fleet = Fleet(at_first(r0=Fate(at_s=0.0, ending="deaf")))
    result = on_replicas(options_of(tmp_path, "run", problems), fleet)
    check_whole(result, calm)
    assert fleet.starts[0] == pytest.approx([0.0, 0.1 + SILENT_S + pause(0, 0)])
    assert result.run.sessions[-1].replicas[0].losses == ["it took no orders for 60 s"]


def test_a_replica_that_cannot_be_started_is_dropped_and_the_others_solve_all(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fleet, told = Fleet(always(r1=Fate(refused=True))), list[str]()
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), fleet, Observer(tell=told.append))
    check_whole(result, calm)
    assert fleet.starts[1] == pytest.approx([0.0, pause(1, 0), pause(1, 0) + pause(1, 1)])
    refused = result.run.sessions[-1].replicas[1]
    assert (refused.node, refused.starts, refused.dropped, refused.chains) == (None, 0, True, 0)
    assert refused.losses == ["there is no room for it"] * MOST_LOSSES
    assert told[-1] == "replica 1: dropped: there is no room for it"
    assert {row["replica"] for row in rows(result, "calls")} == {0, 2}


def test_where_no_replica_starts_nothing_is_begun(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^all 2 replicas were dropped, the last one: there is no room for it$"):
        on_replicas(options_of(tmp_path, "run", problems, replicas=2), lambda number, start: Fate(refused=True))
    with pytest.raises(RunError, match=r"^the replica was dropped: there is no room for it$"):
        on_replicas(options_of(tmp_path, "other", problems), lambda number, start: Fate(refused=True))
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.slow
def test_a_run_whose_replicas_are_all_dropped_fails_and_goes_on_later(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    options = options_of(tmp_path, "run", problems, replicas=2)
    failed = on_replicas(options, lambda number, start: Fate(at_s=0.7))
    words = f"all 2 replicas were dropped, the last one: {DIED}"
    assert (failed.exit_code, failed.run.status, failed.run.error, str(failed.error)) == (1, "failed", words, words)
    assert [(each.starts, each.dropped) for each in failed.run.sessions[-1].replicas] == [(MOST_LOSSES, True)] * 2
    check_totals(failed)
    check_whole(on_replicas(structs.replace(options, resume=True, replicas=3)), calm)


def test_losses_in_a_row_are_counted_from_the_last_chain_that_ended(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems), lambda number, start: Fate(at_s=2.5))
    check_whole(result, calm)
    [replica] = result.run.sessions[-1].replicas
    assert replica.starts == len(replica.losses) + 1 > MOST_LOSSES


def test_chains_of_a_replica_whose_engine_died_go_on_elsewhere(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fate = Fate(engines={"draft": {"faults": DYING, "max_restarts": 0}})
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), always(r0=fate))
    check_whole(result, calm)
    replica = result.run.sessions[-1].replicas[0]
    assert set(replica.losses) == {"engine 'draft' died: as configured by dies_after_calls=5"}
    assert any(row["error_type"] == "EngineDead" for row in rows(result, "calls"))


def test_an_engine_that_a_replica_restarts_itself_loses_no_replica(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fate = Fate(engines={"draft": {"faults": DYING, "max_restarts": 100}})
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2), always(r0=fate))
    check_whole(result, calm)
    assert result.run.sessions[-1].replicas[0].losses == []
    assert result.run.sessions[-1].engine_statistics["draft"].restarts > 0


def test_a_chain_without_an_answer_is_tried_on_another_replica(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), always(r0=Fate(engines={"draft": {"faults": MUMBLING}})))
    check_whole(result, calm)
    flawed = {row["chain_id"] for row in rows(result, "calls") if row["error_type"] == "BadCompletion"}
    assert flawed
    assert {places(result)[chain][0] for chain in flawed} == {0}
    assert {row["replica"] for row in rows(result, "chains")} == {1, 2}
    assert result.run.sessions[-1].replicas[0].chains == 0


def test_a_chain_without_an_answer_anywhere_fails_after_two_replicas(problems: Path, tmp_path: Path) -> None:
    result = on_replicas(
        options_of(tmp_path, "run", problems, replicas=3), lambda number, start: Fate(engines={"draft": {"faults": MUMBLING}})
    )
    assert (result.exit_code, result.failed, result.run.totals.errors) == (3, 8, {"BadCompletion": {"draft": 8}})
    check_totals(result)
    assert {len(each) for each in places(result).values()} == {2}


@pytest.mark.slow
def test_a_replica_is_lost_on_which_chain_after_chain_fails(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fate = Fate(engines={"draft": {"faults": MUMBLING, "max_retries": 0}})
    options = options_of(tmp_path, "run", problems, samples=4, replicas=2, batch_size=8)
    result = on_replicas(options, lambda number, start: fate if (number, start) == (0, 0) else WELL)
    assert (result.exit_code, result.done) == (0, 32)
    [loss] = result.run.sessions[-1].replicas[0].losses
    assert loss.startswith(f"{STRIKES} chains in a row failed on it, the last one because engine 'draft' gave no valid answer")
    check_totals(result)


def test_a_replica_with_another_model_is_dropped_in_a_sentence(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    told: list[str] = []
    fates = always(r1=Fate(late_s=0.5, engines={"target": {"max_model_len": 1000}}))
    fleet = Fleet(fates)
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2), fleet, Observer(tell=told.append))
    check_whole(result, calm)
    what = "engine 'target': max_model_len is 1000 on this replica but 32768 on the others; use the same model everywhere"
    assert told == [f"replica 1 on node node-1: dropped: {what}"]
    assert fleet.starts[1] == [0.0]


def refusing(report: Report) -> Report:
    """A replica on whose node the engines file is wrong."""
    return structs.replace(report, opened=None, failure=Failure(what="no such model", usage=True), over=True)


def test_engines_that_can_be_opened_nowhere_are_an_error_of_the_user(problems: Path, tmp_path: Path) -> None:
    fleet = Fleet(lambda number, start: Fate(forge=refusing))
    with pytest.raises(UsageError, match=r"^no such model$"):
        on_replicas(options_of(tmp_path, "run", problems, replicas=2), fleet)
    assert fleet.starts == {0: [0.0], 1: [0.0]}


def invented(report: Report) -> Report:
    """A step of a chain which the replica does not have."""
    return structs.replace(report, steps=[structs.replace(step, chain_id="p999#0") for step in report.steps])


def repeated(report: Report) -> Report:
    """The end of every chain twice."""
    return structs.replace(report, chains=[*report.chains, *report.chains])


def foreign(report: Report) -> Report:
    """Calls of an engine which the graph does not have."""
    return structs.replace(report, calls=[structs.replace(call, engine="judge") for call in report.calls])


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (invented, "it reported a row of chain 'p999#0', which it does not have"),
        (repeated, "it reported that a chain has ended twice"),
        (foreign, "it reported a call of engine 'judge', which the graph does not have"),
    ],
)
def test_a_replica_whose_report_cannot_be_true_is_lost(
    problems: Path, calm: SessionResult, tmp_path: Path, forge: Callable[[Report], Report], why: str
) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2), at_first(r0=Fate(forge=forge)))
    check_whole(result, calm)
    assert result.run.sessions[-1].replicas[0].losses == [why]


def test_a_replica_that_joins_late_gets_its_share(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2), always(r1=Fate(late_s=2.0)))
    check_whole(result, calm)
    assert 0 < result.run.sessions[-1].replicas[1].chains < 4
    assert min(row["submit_unix_ns"] for row in rows(result, "calls") if row["replica"] == 1) >= result.run.started_unix_ns + 2 * 10**9


class Hoard:
    """A sink of rows that has no more memory after some of them."""

    def __init__(self, rows: int) -> None:
        self._left = rows

    def call(self, row: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise MemoryError

    step = chain = call

    async def room(self) -> None: ...


@pytest.mark.slow
def test_a_driver_that_has_no_more_memory_ends_in_a_sentence_and_goes_on_later(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    options = options_of(tmp_path, "run", problems, replicas=2)
    result = on_replicas(options, observer=Observer(sink=Hoard(40)))
    assert (result.exit_code, result.run.status) == (1, "failed")
    assert str(result.error).startswith("out of memory; ")
    check_whole(on_replicas(structs.replace(options, resume=True)), calm)


def luck(seed: int) -> Fleet:
    """Replicas that come and go at random: some die, some hang, some are late, slow, refused, or have engines that die."""

    def fate(number: int, start: int) -> Fate:
        draw = random.Random(f"{seed} {number} {start}")
        kinds = ("dies", "dies", "hangs", "deaf") if start < 6 else ()
        if number and draw.random() < 0.15:
            return Fate(refused=True)
        if not kinds or draw.random() < 0.3:
            return Fate(late_s=draw.choice((0.0, 1.0)), rates=draw.choice((1.0, 0.1)))
        faults = SimFaultsSpec(dies_after_calls=draw.randrange(40)) if draw.random() < 0.3 else SimFaultsSpec()
        return Fate(
            at_s=draw.uniform(0.0, 4.0),
            ending=draw.choice(kinds),  # type: ignore[arg-type]
            late_s=draw.choice((0.0, 0.0, 0.5)),
            engines={"draft": {"faults": faults, "max_restarts": draw.choice((0, 1))}},
        )

    return Fleet(fate)


@pytest.fixture(scope="module")
def few(problems: Path, tmp_path_factory: pytest.TempPathFactory) -> SessionResult:
    """Five of the problems are solved by one process."""
    return run(options_of(tmp_path_factory.mktemp("few"), "run", problems, limit=5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_whatever_becomes_of_the_replicas_the_run_says_the_same_in_the_end(
    problems: Path, few: SessionResult, tmp_path: Path, seed: int
) -> None:
    count = 1 + seed % 4
    options = options_of(tmp_path, "run", problems, replicas=count, batch_size=1 + seed % 3, limit=5)
    result = on_replicas(options, luck(seed))
    if result.exit_code == 1:
        assert all(each.dropped for each in result.run.sessions[-1].replicas)
        check_totals(result)
        result = on_replicas(structs.replace(options, resume=True))
    check_whole(result, few)
