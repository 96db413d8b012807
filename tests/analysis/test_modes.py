"""The modes of chains over time, against a plain loop over steps."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.time.modes import ModesOverTime, modes_over_time
from pipeline.store.events import StepRow
from pipeline.store.query import Query
from pipeline.store.run_file import UNKNOWN, ModeChange, Replica, RunFile, Session
from tests.support.rows import blank
from tests.support.traces import S, T, at, write


def run_file(speculate: Any = "auto", **more: Any) -> RunFile:
    plan = structs.replace(UNKNOWN.plan, speculate=speculate)
    return structs.replace(UNKNOWN, plan=plan, sessions=(Session(started_unix_ns=T),), started_unix_ns=T, **more)


def over_time(folder: Path, run: RunFile, bins: int) -> ModesOverTime | None:
    return modes_over_time(Query(folder), run, bins)


def step(mode: str | None, start: float, end: float, tokens: int) -> Any:
    return blank(StepRow, chain_id="a", mode=mode, start_unix_ns=at(start), end_unix_ns=at(end), step_token_ids=(1,) * tokens)


def test_bins_hold_what_a_plain_loop_finds(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    told = [(*sorted(random.integers(0, 41, 2) / 10), int(random.integers(50))) for _ in range(40)]
    found = over_time(write(tmp_path, steps=[step("direct", start, end + 0.1, tokens) for start, end, tokens in told]), run_file(), 7)
    assert found is not None
    width = found.edges_s[1]
    for place, (low, high) in enumerate(pairwise(found.edges_s)):
        inside = [max(0.0, min(end + 0.1, high) - max(start, low)) for start, end, _ in told]
        assert found.modes["direct"].chains[place] * width == pytest.approx(sum(inside))
        rates = [tokens / (end + 0.1 - start) for start, end, tokens in told]
        assert found.modes["direct"].tokens_per_s[place] * width == pytest.approx(sum(map(float.__mul__, inside, map(float, rates))))


def test_a_chain_is_in_the_mode_of_its_step(tmp_path: Path) -> None:
    steps = [step("direct", 0.0, 2.0, 100), step("speculative", 2.0, 4.0, 60), step("speculative", 1.0, 4.0, 30), step(None, 0.0, 4.0, 9)]
    change = ModeChange(unix_ns=T + S, what="speculation on", speculating=2, live=2, speculative=30.0, direct=None)
    found = over_time(write(tmp_path, steps=steps), run_file(mode_changes=(change,)), 4)
    assert found is not None
    direct, speculative = found.modes["direct"], found.modes["speculative"]
    assert direct.chains == pytest.approx([1, 1, 0, 0])
    assert speculative.chains == pytest.approx([0, 1, 2, 2])
    assert direct.tokens_per_s == pytest.approx([50, 50, 0, 0])
    assert speculative.tokens_per_s == pytest.approx([0, 10, 40, 40])
    assert (direct.steps, direct.tokens, direct.chain_s) == (1, 100, pytest.approx(2))
    assert (speculative.steps, speculative.tokens, speculative.chain_s) == (2, 90, pytest.approx(5))
    assert [(each.at_s, each.what, each.speculative, each.direct) for each in found.changes] == [(1.0, "speculation on", 30.0, None)]


def test_decisions_of_several_replicas_come_in_the_order_of_time(tmp_path: Path) -> None:
    told = [ModeChange(unix_ns=T + second * S, what="on", speculating=1, live=1) for second in (2, 1)]
    session = Session(started_unix_ns=T, replicas=[Replica(starts=1), Replica(starts=1)])
    run = structs.replace(run_file(mode_changes=tuple(told)), sessions=(session,))
    found = over_time(write(tmp_path, steps=[step("direct", 0.0, 2.0, 1)]), run, 2)
    assert found is not None
    assert ([each.at_s for each in found.changes], found.replicas) == ([1, 2], 2)


def test_pauses_between_sessions_are_no_time_of_a_mode(tmp_path: Path) -> None:
    steps = [step("direct", 0.0, 1.0, 10), step("speculative", 11.0, 12.0, 10)]
    ended = Session(started_unix_ns=T, ended_unix_ns=at(1.0))
    run = structs.replace(run_file(), sessions=(ended, Session(started_unix_ns=at(11.0))))
    found = over_time(write(tmp_path, steps=steps), run, 2)
    assert found is not None
    assert found.edges_s[-1] == pytest.approx(2)
    assert found.modes["direct"].chains == pytest.approx([1, 0])
    assert found.modes["speculative"].chains == pytest.approx([0, 1])


@pytest.mark.parametrize("speculate", [None, "always", "never"])
def test_a_run_of_one_mode_has_none_over_time(tmp_path: Path, speculate: Any) -> None:
    assert over_time(write(tmp_path, steps=[step("direct", 0.0, 1.0, 1)]), run_file(speculate), 4) is None


def test_a_run_without_steps_has_none(tmp_path: Path) -> None:
    assert over_time(write(tmp_path, steps=[]), run_file(), 4) is None
