"""Whole runs on replicas that are well: the options of a run, how it is stopped, and how it goes on with other replicas or without any."""

from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from msgspec import structs

from pipeline.errors import Interrupted, UsageError
from pipeline.session.execute import SessionResult
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.session.stop import Stop
from pipeline.store.run_file import RunFile
from tests.support.fated_replicas import Fate, Fleet, always, at_first, check_totals, check_whole, on_replicas, options_of, places
from tests.support.hanging_together import check_hangs_together
from tests.support.killed import cut
from tests.support.runs import rows, said, write_problems

How = Literal["drain", "abort"]


def stopping(how: How, at_s: float) -> Callable[..., Coroutine[Any, Any, None]]:
    """A task beside a run that stops it."""

    async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await anyio.sleep(at_s)
        getattr(stop, how)()

    return attend


def session_s(result: SessionResult) -> float:
    found = result.run.sessions[-1].wall_time_s
    assert found is not None
    return found


@pytest.mark.parametrize(("count", "batch_size"), [(1, 2), (2, 4), (4, 1), (9, 3)])
def test_a_run_on_any_number_of_replicas_says_what_one_process_does(
    problems: Path, calm: SessionResult, tmp_path: Path, count: int, batch_size: int
) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=count, batch_size=batch_size))
    check_whole(result, calm)
    assert [(each.starts, each.losses, each.dropped) for each in result.run.sessions[-1].replicas] == [(1, [], False)] * count
    assert len({row["chain_id"] for row in rows(result, "calls")}) == 8
    assert {row["request_id"] for row in rows(result, "calls")} == {row["request_id"] for row in rows(calm, "calls")}


def test_one_replica_takes_as_long_as_one_process_and_a_report(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems))
    assert session_s(result) == pytest.approx(session_s(calm) + 0.1)


def test_engines_report_what_the_calls_cost(problems: Path, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3))
    for role, spent in result.run.sessions[-1].engine_statistics.items():
        calls = [row for row in rows(result, "calls") if row["engine"] == role]
        assert (spent.requests, spent.output_tokens) == (len(calls), sum(row["output_tokens"] for row in calls))


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 3},
        {"order": "longest", "samples": 2},
        {"schedule": "sequential", "batch_size": 64},
        {"admission": "batch"},
        {"settings": ("engines.*.text.steps_mean=3", "engines.target.kv_cache_tokens=1500"), "batch_size": 6},
        {"graph": "best-of-n"},
        {"graph": "specreason"},
        {"graph": "target"},
    ],
    ids=str,
)
@pytest.mark.slow
def test_no_option_makes_a_difference_to_what_is_said(problems: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    alone = run(options_of(tmp_path, "alone", problems, **options))
    check_whole(on_replicas(options_of(tmp_path, "run", problems, replicas=3, **options), at_first(r0=Fate(at_s=1.5))), alone)


def test_under_the_sequential_schedule_each_replica_has_one_chain_at_a_time(problems: Path, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=4, schedule="sequential", batch_size=64))
    assert [each.chains for each in result.run.sessions[-1].replicas] == [2, 2, 2, 2]
    for replica in range(4):
        spans = sorted((row["start_unix_ns"], row["end_unix_ns"]) for row in rows(result, "chains") if row["replica"] == replica)
        assert spans[0][1] <= spans[1][0]


@pytest.mark.slow
def test_chains_that_switch_their_mode_end_and_hang_together_on_replicas_that_die(problems: Path, tmp_path: Path) -> None:
    options = options_of(tmp_path, "run", problems, replicas=3)
    options = structs.replace(options, settings=(*options.settings, "speculate=auto"))
    result = on_replicas(options, at_first(r0=Fate(at_s=1.0), r1=Fate(at_s=1.7)))
    assert (result.exit_code, result.done) == (0, 8)
    check_hangs_together(tmp_path / "run", 8)
    check_totals(result)


def test_bad_rows_are_rows_of_the_run(tmp_path: Path) -> None:
    bad = (b'{"problem_id": "no problem"}', b'{"problem_id": "p1", "problem": 3}')
    problems = write_problems(tmp_path, 4, bad)
    alone = run(options_of(tmp_path, "alone", problems))
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2))
    check_whole(result, alone)
    assert (result.exit_code, result.done, result.failed) == (3, 4, 2)
    assert result.run.totals.errors == {"BadRow": {"no stage": 2}}


def test_lockstep_is_refused(problems: Path, tmp_path: Path) -> None:
    lockstep = options_of(tmp_path, "run", problems, schedule="lockstep")
    words = r"^--schedule lockstep cannot be combined with --cluster: it synchronises all chains in one process; use pipelined$"
    with pytest.raises(UsageError, match=words):
        on_replicas(lockstep)
    with pytest.raises(UsageError, match=words):
        run(structs.replace(lockstep, cluster="ray"))


@pytest.mark.slow
@pytest.mark.parametrize("at_s", [0.5, 1.7])
def test_a_run_that_drains_ends_what_is_in_flight_and_starts_nothing(
    problems: Path, calm: SessionResult, tmp_path: Path, at_s: float
) -> None:
    options, fleet = options_of(tmp_path, "run", problems, replicas=2), Fleet(always())
    drained = on_replicas(options, fleet, attend=stopping("drain", at_s))
    assert (drained.exit_code, drained.run.status) == (130, "interrupted")
    assert fleet.starts == {0: [0.0], 1: [0.0]}
    assert [each.losses for each in drained.run.sessions[-1].replicas] == [[], []]
    begun = {row["chain_id"] for row in rows(drained, "calls")}
    assert {row["chain_id"] for row in rows(drained, "chains")} == begun < set(said(calm))
    check_totals(drained)
    assert {chain: words for chain, words in said(calm).items() if chain in begun} == said(drained)
    check_whole(on_replicas(structs.replace(options, resume=True, replicas=1)), calm)


@pytest.mark.slow
def test_a_replica_that_is_lost_while_the_run_drains_is_not_waited_for(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    options, fleet = options_of(tmp_path, "run", problems, replicas=2), Fleet(at_first(r0=Fate(at_s=0.7)))
    drained = on_replicas(options, fleet, attend=stopping("drain", 0.5))
    assert (drained.exit_code, fleet.starts) == (130, {0: [0.0], 1: [0.0]})
    check_totals(drained)
    check_whole(on_replicas(structs.replace(options, resume=True)), calm)


def test_a_run_drains_while_a_replica_starts(problems: Path, tmp_path: Path) -> None:
    fleet = Fleet(always(r1=Fate(late_s=100.0)))
    drained = on_replicas(options_of(tmp_path, "run", problems, replicas=2), fleet, attend=stopping("drain", 0.5))
    assert drained.exit_code == 130
    assert session_s(drained) < 5
    assert (drained.run.sessions[-1].replicas[1].starts, drained.run.sessions[-1].replicas[1].node) == (0, None)


@pytest.mark.slow
@pytest.mark.parametrize("at_s", [0.3, 1.7])
def test_a_run_that_is_aborted_keeps_what_is_recorded_and_goes_on_later(
    problems: Path, calm: SessionResult, tmp_path: Path, at_s: float
) -> None:
    options = options_of(tmp_path, "run", problems, replicas=2)
    aborted = on_replicas(options, attend=stopping("abort", at_s))
    assert (aborted.exit_code, aborted.run.status) == (130, "interrupted")
    assert session_s(aborted) == pytest.approx(at_s - 0.1)
    check_totals(aborted)
    assert aborted.run.totals.chains_cancelled == 4  # two of each replica; the chain that each kept ahead has not begun
    check_whole(on_replicas(structs.replace(options, resume=True, replicas=3)), calm)


@pytest.mark.slow
def test_replicas_that_do_not_end_are_waited_for_ten_seconds(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    clock: list[float] = []

    async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            await anyio.sleep(1.0)
            stop.abort()
            await anyio.sleep_forever()
        finally:
            clock.append(anyio.current_time())

    options = options_of(tmp_path, "run", problems, replicas=2)
    aborted = on_replicas(options, always(r0=Fate(at_s=0.9, ending="hangs")), attend=attend)
    assert clock == [11.0]
    assert session_s(aborted) == pytest.approx(0.9)
    check_totals(aborted)
    check_whole(on_replicas(structs.replace(options, resume=True)), calm)


def test_a_run_that_is_stopped_before_a_replica_is_open_has_not_begun(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        on_replicas(options_of(tmp_path, "run", problems, replicas=2), attend=stopping("abort", 0.05))
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.slow
def test_a_run_that_is_cancelled_as_a_whole_waits_for_nobody(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await anyio.sleep(1.0)
        raise RuntimeError("the display broke")

    options = options_of(tmp_path, "run", problems, replicas=2)
    with pytest.raises(ExceptionGroup, match="unhandled"):
        on_replicas(options, always(r0=Fate(at_s=0.9, ending="hangs")), attend=attend)
    check_whole(on_replicas(structs.replace(options, resume=True)), calm)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.8])
@pytest.mark.parametrize(("first", "then"), [(3, 2), (None, 2), (2, None)])
def test_a_run_that_was_killed_goes_on_with_other_replicas_or_without(
    problems: Path, calm: SessionResult, tmp_path: Path, first: int | None, then: int | None, share: float
) -> None:
    whole = solved(options_of(tmp_path, "whole", problems), first)
    cut(whole.folder, tmp_path / "run", share)
    result = solved(options_of(tmp_path, "run", problems, resume=True), then)
    check_whole(result, calm)
    assert len(result.run.sessions) == 2
    recorded = {row["replica"] for row in rows(result, "calls")}
    assert (None in recorded) == (None in (first, then))
    assert [len(session.replicas) for session in result.run.sessions] == [first or 0, then or 0]


def solved(options: RunOptions, replicas: int | None) -> SessionResult:
    return run(options) if replicas is None else on_replicas(structs.replace(options, replicas=replicas))


def test_a_display_sees_every_replica(problems: Path, tmp_path: Path) -> None:
    """What each one does, at three moments."""
    views: list[View] = []
    seen: list[list[str]] = []

    @contextmanager
    def watch(view: View) -> Any:
        views.append(view)
        yield

    async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        for at_s in (0.5, 1.0, 2.0):
            await anyio.sleep(at_s - anyio.current_time())
            seen.append([each.what for each in views[0].replicas()])

    fates = at_first(r0=Fate(at_s=0.9), r1=Fate(late_s=1.5))
    on_replicas(options_of(tmp_path, "run", problems, replicas=3), fates, Observer(watch=watch), attend)
    assert seen == [
        ["solving", "starting", "solving"],
        ["lost: it died as it was told to", "starting", "solving"],
        ["solving", "solving", "solving"],
    ]
    assert [each.done for each in views[0].replicas()] == [each.chains for each in RunFile.read(tmp_path / "run").sessions[-1].replicas]


def test_the_chains_of_a_small_input_are_spread_evenly(problems: Path, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=4, batch_size=64))
    assert [each.chains for each in result.run.sessions[-1].replicas] == [2, 2, 2, 2]
    assert {len(each) for each in places(result).values()} == {1}
