"""Whole runs on replicas: their options, how they are stopped and go on, and that nothing is lost or twice whatever becomes of replicas."""

import random
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from pipeline.cluster.fleet import SILENT_S
from pipeline.cluster.fleet_member import MAX_LOSSES
from pipeline.cluster.messages import ReplicaFailure, ReplicaReport
from pipeline.engines.startup import Listener
from pipeline.errors import Interrupted, RunError, UsageError
from pipeline.runtime.clock import backoff_s
from pipeline.session.loop import Stop
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions
from pipeline.session.run import SessionResult, run
from tests.support.fated_replicas import (
    Fate,
    FatedFleet,
    always,
    at_first,
    check_totals,
    check_whole,
    on_replicas,
    options_of,
    places,
    stopping,
)
from tests.support.faulty_engine import Faults
from tests.support.killed import cut
from tests.support.runs import rows, said, write_problems

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("faulty")]  # whole runs

DYING = Faults(dies_after_calls=5)
MUMBLING = Faults(garbage_share=1.0)
DIED = "it died as it was told to"


def pause(number: int, loss: int) -> float:
    return backoff_s(f"replica {number}", loss)


@pytest.mark.parametrize(("count", "batch_size"), [(1, 2), (2, 4), (4, 1), (9, 3)])
def test_a_run_on_any_number_of_replicas_says_what_one_process_does(
    problems: Path, calm: SessionResult, tmp_path: Path, count: int, batch_size: int
) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=count, batch_size=batch_size))
    check_whole(result, calm)
    session = result.run.sessions[-1]
    assert [(each.starts, each.losses, each.dropped) for each in session.replicas] == [(1, [], False)] * count
    assert {row["request_id"] for row in rows(result, "calls")} == {row["request_id"] for row in rows(calm, "calls")}
    for role, spent in session.engine_statistics.items():
        calls = [row for row in rows(result, "calls") if row["engine"] == role]
        assert (spent.requests, spent.output_tokens) == (len(calls), sum(row["output_tokens"] for row in calls))


def test_one_replica_takes_as_long_as_one_process_and_a_report(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems))
    assert result.run.wall_time_s == pytest.approx((calm.run.wall_time_s or 0.0) + 0.1)


def test_the_chains_of_a_small_input_are_spread_evenly(problems: Path, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=4, batch_size=64))
    assert [each.chains for each in result.run.sessions[-1].replicas] == [2, 2, 2, 2]
    assert {len(each) for each in places(result).values()} == {1}


def test_a_replica_that_is_slow_solves_fewer(tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", write_problems(tmp_path, 40), replicas=2), always(r0=Fate(rates=0.2)))
    slow, well = (each.chains for each in result.run.sessions[-1].replicas)
    assert slow + well == 40
    assert slow < well / 2


def test_a_replica_that_joins_late_gets_its_share(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2), always(r1=Fate(late_s=2.0)))
    check_whole(result, calm)
    assert 0 < result.run.sessions[-1].replicas[1].chains < 4


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 3},
        {"schedule": "sequential", "batch_size": 64},
        {"settings": ("engines.*.text.steps_mean=3", "engines.target.kv_cache_tokens=1500"), "batch_size": 6},
        {"graph": "specreason"},
    ],
    ids=str,
)
def test_no_option_makes_a_difference_to_what_is_said(problems: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    alone = run(options_of(tmp_path, "alone", problems, **options))
    check_whole(on_replicas(options_of(tmp_path, "run", problems, replicas=3, **options), at_first(r0=Fate(at_s=1.5))), alone)


def test_bad_rows_are_rows_of_the_run(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 4, (b'{"problem_id": "no problem"}', b'{"problem_id": "p1", "problem": 3}'))
    alone = run(options_of(tmp_path, "alone", problems))
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2))
    check_whole(result, alone)
    assert (result.exit_code, result.done, result.failed) == (3, 4, 2)


def test_starts_of_engines_are_heard_until_some_are_open_and_what_they_print_always(problems: Path, tmp_path: Path) -> None:
    heard, names = list[tuple[str, str]](), list[str]()

    class Ear(Listener):
        def phase(self, role: str, phase: str) -> None:
            heard.append((role, phase))

        output = phase

    def forge(report: ReplicaReport) -> ReplicaReport:
        said = [("target", "loading")] if report.opened else []
        return structs.replace(report, phases=said, lines=[(role, "hello") for role, _ in said])

    def starting(specs: Mapping[str, Any]) -> nullcontext[Listener]:
        names.extend(specs)
        return nullcontext(Ear())

    fates = always(r0=Fate(forge=forge), r1=Fate(late_s=2.0, forge=forge))
    on_replicas(options_of(tmp_path, "run", problems, replicas=2), fates, Observer(starting=starting))
    assert sorted(names) == [f"{role} of replica {number}" for role in ("draft", "target") for number in (0, 1)]
    assert heard == [("target of replica 0", "loading"), ("target of replica 0", "hello"), ("target of replica 1", "hello")]


def test_lockstep_is_refused(problems: Path, tmp_path: Path) -> None:
    lockstep = options_of(tmp_path, "run", problems, schedule="lockstep")
    words = r"^--schedule lockstep cannot be combined with --replicas: it synchronises all chains in one process; use pipelined$"
    with pytest.raises(UsageError, match=words):
        on_replicas(lockstep)


@pytest.mark.parametrize("at_s", [0.5, 1.7])
def test_a_run_that_drains_ends_what_is_in_flight_and_starts_nothing(
    problems: Path, calm: SessionResult, tmp_path: Path, at_s: float
) -> None:
    options, fleet = options_of(tmp_path, "run", problems, replicas=2), FatedFleet(always())
    drained = on_replicas(options, fleet, attend=stopping("drain", at_s))
    assert (drained.exit_code, drained.run.status) == (130, "interrupted")
    assert fleet.starts == {0: [0.0], 1: [0.0]}
    begun = {row["chain_id"] for row in rows(drained, "calls")}
    assert {row["chain_id"] for row in rows(drained, "chains")} == begun < set(said(calm))
    check_totals(drained)
    check_whole(on_replicas(structs.replace(options, resume=True, replicas=1)), calm)


def test_a_replica_that_is_lost_while_the_run_drains_is_not_waited_for(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    options, fleet = options_of(tmp_path, "run", problems, replicas=2), FatedFleet(at_first(r0=Fate(at_s=0.7)))
    drained = on_replicas(options, fleet, attend=stopping("drain", 0.5))
    assert (drained.exit_code, fleet.starts) == (130, {0: [0.0], 1: [0.0]})
    check_totals(drained)
    check_whole(on_replicas(structs.replace(options, resume=True)), calm)


def test_a_run_drains_while_a_replica_starts(problems: Path, tmp_path: Path) -> None:
    fleet = FatedFleet(always(r1=Fate(late_s=100.0)))
    drained = on_replicas(options_of(tmp_path, "run", problems, replicas=2), fleet, attend=stopping("drain", 0.5))
    assert drained.exit_code == 130
    assert (drained.run.sessions[-1].wall_time_s or 0.0) < 5
    assert drained.run.sessions[-1].replicas[1].starts == 0


@pytest.mark.parametrize("at_s", [0.3, 1.7])
@pytest.mark.parametrize("fates", [always(), always(r0=Fate(at_s=0.9, ending="hangs"))], ids=["well", "one hangs"])
def test_a_run_that_is_aborted_keeps_what_is_recorded_and_goes_on_later(
    problems: Path, calm: SessionResult, tmp_path: Path, fates: Any, at_s: float
) -> None:
    options = options_of(tmp_path, "run", problems, replicas=2)
    aborted = on_replicas(options, fates, attend=stopping("abort", at_s))
    assert (aborted.exit_code, aborted.run.status) == (130, "interrupted")
    check_totals(aborted)
    check_whole(on_replicas(structs.replace(options, resume=True, replicas=3)), calm)


def test_a_run_that_is_stopped_before_a_replica_is_open_has_not_begun(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        on_replicas(options_of(tmp_path, "run", problems, replicas=2), attend=stopping("abort", 0.05))
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.parametrize(("first", "then"), [(3, 2), (None, 2), (2, None)])
def test_a_run_that_was_killed_goes_on_with_other_replicas_or_without(
    problems: Path, calm: SessionResult, tmp_path: Path, first: int | None, then: int | None
) -> None:
    whole = solved(options_of(tmp_path, "whole", problems), first)
    cut(whole.folder, tmp_path / "run", 0.6)
    result = solved(options_of(tmp_path, "run", problems, resume=True), then)
    check_whole(result, calm)
    recorded = {row["replica"] for row in rows(result, "calls")}
    assert (None in recorded) == (None in (first, then))
    assert [len(session.replicas) for session in result.run.sessions] == [first or 0, then or 0]


def solved(options: RunOptions, replicas: int | None) -> SessionResult:
    return run(options) if replicas is None else on_replicas(structs.replace(options, replicas=replicas))


def test_a_display_sees_every_replica(problems: Path, tmp_path: Path) -> None:
    """What each one does, at three moments, and that its counts are those of the rows."""
    views: list[View] = []
    seen: list[list[str]] = []

    @contextmanager
    def watch(view: View) -> Any:
        views.append(view)
        yield

    async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        for at_s in (0.5, 1.0, 2.5):
            await anyio.sleep(at_s - anyio.current_time())
            seen.append([each.what for each in views[0].replicas()])
            assert 0 < views[0].progress.live == sum(each.live for each in views[0].replicas()) <= 3 * 2

    fates = at_first(r0=Fate(at_s=0.9), r1=Fate(late_s=1.5))
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), fates, Observer(watch=watch), attend)
    assert seen == [["solving", "starting", "solving"], [f"lost: {DIED}", "starting", "solving"], ["solving"] * 3]
    states, calls = views[0].replicas(), rows(result, "calls")
    assert [each.done for each in states] == [each.chains for each in result.run.sessions[-1].replicas]
    for state in states:
        sampled = sum(row["output_tokens"] for row in calls if row["replica"] == state.number)
        assert sum(state.output_tokens.values()) == sampled
    assert sum(views[0].progress.output_tokens.values()) == sum(row["output_tokens"] for row in calls)


@pytest.mark.parametrize("at_s", [0.0, 0.7, 2.2])
@pytest.mark.parametrize("count", [1, 3])
def test_what_a_replica_had_that_died_goes_on_elsewhere(
    problems: Path, calm: SessionResult, tmp_path: Path, count: int, at_s: float
) -> None:
    fleet, told = FatedFleet(at_first(r0=Fate(at_s=at_s))), list[str]()
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
    fleet = FatedFleet(at_first(r0=Fate(at_s=0.0, ending="hangs")))
    result = on_replicas(options_of(tmp_path, "run", problems), fleet)
    check_whole(result, calm)
    assert fleet.starts[0] == [0.0, SILENT_S + pause(0, 0)]
    assert result.run.sessions[-1].replicas[0].losses == ["it reported nothing for 60 s"]


def test_a_replica_that_cannot_be_started_is_dropped_and_the_others_solve_all(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fleet, told = FatedFleet(always(r1=Fate(refused=True))), list[str]()
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), fleet, Observer(tell=told.append))
    check_whole(result, calm)
    assert fleet.starts[1] == pytest.approx([0.0, pause(1, 0), pause(1, 0) + pause(1, 1)])
    refused = result.run.sessions[-1].replicas[1]
    assert (refused.node, refused.starts, refused.dropped, refused.chains) == (None, 0, True, 0)
    assert told[-1] == "replica 1: dropped: there is no room for it"


def test_where_no_replica_starts_nothing_is_begun(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^all 2 replicas were dropped, the last one: there is no room for it$"):
        on_replicas(options_of(tmp_path, "run", problems, replicas=2), lambda number, start: Fate(refused=True))
    assert not (tmp_path / "run/run.json").exists()


def test_a_run_whose_replicas_are_all_dropped_fails_and_goes_on_later(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    options = options_of(tmp_path, "run", problems, replicas=2)
    failed = on_replicas(options, lambda number, start: Fate(at_s=0.7))
    words = f"all 2 replicas were dropped, the last one: {DIED}"
    assert (failed.exit_code, failed.run.status, failed.run.error, str(failed.error)) == (1, "failed", words, words)
    assert [(each.starts, each.dropped) for each in failed.run.sessions[-1].replicas] == [(MAX_LOSSES, True)] * 2
    check_totals(failed)
    check_whole(on_replicas(structs.replace(options, resume=True, replicas=3)), calm)


def test_losses_in_a_row_are_counted_from_the_last_chain_that_ended(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems), lambda number, start: Fate(at_s=2.5))
    check_whole(result, calm)
    [replica] = result.run.sessions[-1].replicas
    assert len(replica.losses) >= replica.starts - 1 >= MAX_LOSSES


def test_chains_of_a_replica_whose_engine_died_go_on_elsewhere(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    fate = Fate(engines={"draft": {"faults": DYING, "max_restarts": 0}})
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), always(r0=fate))
    check_whole(result, calm)
    assert set(result.run.sessions[-1].replicas[0].losses) == {"engine 'draft' died: as configured by dies_after_calls=5"}


def test_a_chain_without_an_answer_is_tried_on_another_replica(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), always(r0=Fate(engines={"draft": {"faults": MUMBLING}})))
    check_whole(result, calm)
    flawed = {row["chain_id"] for row in rows(result, "calls") if row["error_type"] == "BadCompletion"}
    assert {places(result)[chain][0] for chain in flawed} == {0}
    assert {row["replica"] for row in rows(result, "chains")} == {1, 2}


def test_a_chain_without_an_answer_anywhere_fails_after_two_replicas(problems: Path, tmp_path: Path) -> None:
    mumbling = Fate(engines={"draft": {"faults": MUMBLING}})
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), lambda number, start: mumbling)
    assert (result.exit_code, result.failed, result.run.totals.errors) == (3, 8, {"BadCompletion": {"draft": 8}})
    check_totals(result)
    assert {len(each) for each in places(result).values()} == {2}


def test_a_replica_with_another_model_is_dropped_in_a_sentence(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    told: list[str] = []
    fates = always(r1=Fate(late_s=0.5, engines={"target": {"max_model_len": 1000}}))
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2), fates, Observer(tell=told.append))
    check_whole(result, calm)
    what = "engine 'target': max_model_len is 1000 on this replica but 32768 on the others; use the same model everywhere"
    assert told == [f"replica 1 on node node-1: dropped: {what}"]


def refusing(report: ReplicaReport) -> ReplicaReport:
    """A replica on whose node the engines file is wrong."""
    return structs.replace(report, opened=None, failure=ReplicaFailure(what="no such model", usage=True), over=True)


def test_engines_that_can_be_opened_nowhere_are_an_error_of_the_user(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no such model$"):
        on_replicas(options_of(tmp_path, "run", problems, replicas=2), lambda number, start: Fate(forge=refusing))


def luck(seed: int) -> FatedFleet:
    """Replicas that come and go at random: some die, some hang, some are late, slow, refused, or have engines that die."""

    def fate(number: int, start: int) -> Fate:
        draw = random.Random(f"{seed} {number} {start}")
        if number and draw.random() < 0.15:
            return Fate(refused=True)
        if start >= 6 or draw.random() < 0.3:
            return Fate(late_s=draw.choice((0.0, 1.0)), rates=draw.choice((1.0, 0.1)))
        faults = Faults(dies_after_calls=draw.randrange(40)) if draw.random() < 0.3 else Faults()
        return Fate(
            at_s=draw.uniform(0.0, 4.0),
            ending=draw.choice(("dies", "hangs")),  # type: ignore[arg-type]
            late_s=draw.choice((0.0, 0.0, 0.5)),
            engines={"draft": {"faults": faults, "max_restarts": draw.choice((0, 1))}},
        )

    return FatedFleet(fate)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_becomes_of_the_replicas_the_run_says_the_same_in_the_end(
    problems: Path, calm: SessionResult, tmp_path: Path, seed: int
) -> None:
    options = options_of(tmp_path, "run", problems, replicas=1 + seed % 4, batch_size=1 + seed % 3)
    result = on_replicas(options, luck(seed))
    if result.exit_code == 1:
        assert all(each.dropped for each in result.run.sessions[-1].replicas)
        check_totals(result)
        result = on_replicas(structs.replace(options, resume=True))
    check_whole(result, calm)
