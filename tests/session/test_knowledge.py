"""What `speculate: auto` learns in one run and begins the next one with: from a run, from the cache, and where that is refused."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.bundled import find_file
from pipeline.errors import InputError, UsageError
from pipeline.session import knowledge
from pipeline.session.prepare import load_plan
from pipeline.session.run import SessionResult
from pipeline.store.run_file import Host, SpeculationRecord
from tests.support.runs import solve, write_problems

AUTO = ("speculate=auto",)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has looked at the target alone."""
    folder = tmp_path_factory.mktemp("learnt")
    result = auto(folder, "run")
    assert result.run.speculation is not None
    assert result.run.speculation.begun_with == {}
    assert result.run.speculation.learnt["direct"]
    return folder / "run"


def auto(folder: Path, name: str, settings: tuple[str, ...] = AUTO, **options: Any) -> SessionResult:
    return solve(folder, name, settings=settings, batch_size=4, input=write_problems(folder, 24), **options)


def test_a_run_begins_with_what_another_has_learnt_and_can_be_repeated(
    learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(learnt.parent)
    second = auto(tmp_path, "second", speculate_from=learnt.name)
    assert second.run.speculation is not None
    assert second.run.speculation.begun_from == second.run.options["speculate_from"] == str(learnt)
    assert second.run.speculation.begun_with["direct"]
    assert "check" not in [change.what for change in second.run.mode_changes]
    again = auto(tmp_path, "again", speculate_from=f"{tmp_path / 'second'}:start")
    assert again.run.wall_time_s == second.run.wall_time_s
    assert [(change.what, change.live) for change in again.run.mode_changes] == [
        (change.what, change.live) for change in second.run.mode_changes
    ]


def test_a_resumed_run_needs_no_folder_of_the_run_that_it_began_from() -> None:
    plan = load_plan(find_file("speccot", "graph"), None, AUTO)
    digest = knowledge.digest_of(plan, virtual=True)
    before = SpeculationRecord(digest=digest, begun_from="gone", begun_with={"acceptance": 0.5}, learnt={"acceptance": 0.6})
    assert knowledge.begun_with(plan, "gone", virtual=True, before=before) == structs.replace(before, learnt={})
    with pytest.raises(InputError, match=r"gone/run\.json"):
        knowledge.begun_with(plan, "gone", virtual=True, before=structs.replace(before, digest="of other engines"))


def test_the_cache_keeps_what_runs_learn_by_engines_and_loop_but_simulated_ones_only_when_told(cache: Path, tmp_path: Path) -> None:
    auto(tmp_path, "untold")
    assert not cache.exists()
    first, second = (auto(tmp_path, name, speculate_from="cache").run.speculation for name in ("first", "second"))
    assert first is not None
    assert second is not None
    assert first.begun_with == {}
    assert second.begun_from == str(knowledge.file_of(first.digest))
    assert second.begun_with["direct"] == list(first.learnt["direct"])
    other = auto(tmp_path, "other", settings=(*AUTO, "engines.draft.parameters=2.0e+9"), speculate_from="cache").run.speculation
    assert other is not None
    assert other.begun_with == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"direct": "fast"}',
        '{"direct": [1.0]}',
        '{"direct": [-1, 0, 0]}',
        '{"direct": [0.01, 0, 0], "paces": [{"chains": 4, "seconds": 0, "context": 100, "rounds": 5}]}',
        '{"direct": [0.01, 0, 0], "draft_s": 0.001, "acceptance": 7}',
        "",
    ],
)
def test_a_damaged_cache_is_no_knowledge(cache: Path, tmp_path: Path, text: str) -> None:
    plan = load_plan(find_file("speccot", "graph"), None, AUTO)
    file = knowledge.file_of(knowledge.digest_of(plan, virtual=True))
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = knowledge.begun_with(plan, "cache", virtual=True)
    assert found is not None
    assert (found.begun_from, found.begun_with) == ("", {})


def test_who_has_no_home_folder_begins_with_nothing_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # of no account, as in a container that runs as somebody
    found = knowledge.begun_with(load_plan(find_file("speccot", "graph"), None, AUTO), "cache", virtual=True)
    assert found is not None
    assert found.begun_with == {}
    knowledge.keep(structs.replace(found, learnt={"direct": [1.0, 0.0, 0.0]}), "cache", virtual=True)


def test_measured_speeds_are_kept_by_machine_and_simulated_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Home folders are often shared by machines with different GPUs."""
    plan = load_plan(find_file("speccot", "graph"), None, AUTO)
    here = {virtual: knowledge.digest_of(plan, virtual=virtual) for virtual in (True, False)}
    monkeypatch.setattr(knowledge, "host", lambda: Host(processor="another"))
    assert knowledge.digest_of(plan, virtual=True) == here[True]
    assert knowledge.digest_of(plan, virtual=False) != here[False]


@pytest.mark.parametrize(
    ("settings", "source", "sentence"),
    [
        (
            (*AUTO, "engines.*.device.overhead_s=0.01"),
            "{run}",
            "had other engines, another loop or schedule: engines.draft.device.overhead_s was 0.0032, is 0.01; name a run with the same",
        ),
        ((*AUTO, "step_tokens=100"), "{run}", "stages.draft.max_tokens was 256, is 100; name a run with the same"),
        ((*AUTO, "prompts=short"), "{run}", "prompts.choose.turn was "),
        ((*AUTO, "answer_stable=3"), "{run}", "stages.reason.until.answer_stable was None, is 3; name a run with the same"),
        ((), "{run}", "this run decides nothing by it; add --set speculate=auto"),
        (AUTO, "{run}:start", "that run began with nothing; name a finished run with speculate=auto, or use `nothing`"),
        (AUTO, "{run}/nowhere", "run.json"),
        (AUTO, "s3://bucket/run", "a URL, where only a run folder of this machine can be used; copy the run here and name the copy"),
        (AUTO, "", "--speculate-from '': names no run; name the folder of one, or use `cache` or `nothing`"),
        ((), ":start", "--speculate-from ':start': names no run; name the folder of one"),
    ],
)
def test_what_was_learnt_elsewhere_is_refused_before_the_run(
    learnt: Path, tmp_path: Path, settings: tuple[str, ...], source: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        auto(tmp_path, "refused", settings=settings, speculate_from=source.format(run=learnt))
    assert sentence in str(caught.value)
    assert not (tmp_path / "refused" / "run.json").exists()


def test_what_was_learnt_in_another_schedule_is_refused(learnt: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="schedule was pipelined, is lockstep"):
        auto(tmp_path, "refused", schedule="lockstep", speculate_from=str(learnt))


def test_the_target_alone_begins_with_nothing(tmp_path: Path) -> None:
    assert solve(tmp_path, graph="target", speculate_from="cache").run.speculation is None


def test_what_a_damaged_run_file_knows_is_refused_in_a_sentence(learnt: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(learnt, damaged)
    record = json.loads((damaged / "run.json").read_text())
    record["speculation"]["learnt"]["direct"] = [1.0]
    (damaged / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"run\.json: \$\.speculation"):
        auto(tmp_path, "refused", speculate_from=str(damaged))
