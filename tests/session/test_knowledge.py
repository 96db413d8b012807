"""What `speculate: auto` learns in one run and begins the next one with: from a run, from the cache, and where that is refused."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.session import knowledge
from pipeline.session.run import SessionResult
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


def test_a_run_begins_with_what_another_has_learnt_and_can_be_repeated(learnt: Path, tmp_path: Path) -> None:
    second = auto(tmp_path, "second", speculate_from=str(learnt))
    assert second.run.speculation is not None
    assert second.run.speculation.begun_from == second.run.options["speculate_from"] == str(learnt)
    assert second.run.speculation.begun_with["direct"]
    assert "check" not in [change.what for change in second.run.mode_changes]
    again = auto(tmp_path, "again", speculate_from=f"{tmp_path / 'second'}:start")
    assert again.run.wall_time_s == second.run.wall_time_s
    assert [(change.what, change.live) for change in again.run.mode_changes] == [
        (change.what, change.live) for change in second.run.mode_changes
    ]


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


def test_a_damaged_cache_is_no_knowledge(cache: Path, tmp_path: Path) -> None:
    first = auto(tmp_path, "first", speculate_from="cache").run.speculation
    assert first is not None
    knowledge.file_of(first.digest).write_text('{"direct": "fast"}')
    second = auto(tmp_path, "second", speculate_from="cache").run.speculation
    assert second is not None
    assert second.begun_with == {}


@pytest.mark.parametrize(
    ("settings", "source", "sentence"),
    [
        (
            (*AUTO, "engines.target.device.overhead_s=0.01"),
            "{run}",
            "had other engines or another loop: engines.target.device.overhead_s was 0.0032, is 0.01; name a run with the same",
        ),
        ((*AUTO, "step_tokens=100"), "{run}", "stages.draft.max_tokens was 256, is 100; name a run with the same"),
        ((), "{run}", "this run decides nothing by it; add --set speculate=auto"),
        (AUTO, "{run}:start", "that run began with nothing; name a finished run with speculate=auto, or use `nothing`"),
        (AUTO, "{run}/nowhere", "run.json"),
    ],
)
def test_what_was_learnt_elsewhere_is_refused_before_the_run(
    learnt: Path, tmp_path: Path, settings: tuple[str, ...], source: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        auto(tmp_path, "refused", settings=settings, speculate_from=source.format(run=learnt))
    assert sentence in str(caught.value)
    assert not (tmp_path / "refused" / "run.json").exists()


def test_the_target_alone_begins_with_nothing(tmp_path: Path) -> None:
    assert solve(tmp_path, graph="target", speculate_from="cache").run.speculation is None
