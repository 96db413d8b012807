"""Every sentence that refuses a run, or its resumption, before an engine starts: what was given, and what is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import GraphError, InputError, UsageError
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan, prepare, resume_options
from pipeline.run.run import run
from pipeline.stages.build import builders_of
from pipeline.store.folder import LOCK, hold
from tests.support.killed import cut
from tests.support.paths import SIM
from tests.support.runs import options_of, write_problems

TOYS = (
    "problems.jsonl, row 1: the bundled toy models solve only the problems of `arith`; pass --model ROLE=NAME for each role, or --engines"
)
MIXED = "engines on simulated time: draft; on real time: target; simulate all of them or none"

NEW: list[tuple[dict[str, Any], str]] = [
    ({"graph": Path("specot")}, "no graph is named `specot` and there is no such file; did you mean `speccot`?"),
    ({"engines": Path("mixed.yaml")}, MIXED),
    ({"engines": Path("replay:/nowhere")}, "/nowhere/run.json: cannot be read: no such file or directory; expected a run folder"),
    ({"engines": None}, TOYS),
    ({"random": "2", "limit": 2}, "--random 2 and --limit 2: give only one of them"),
    ({"columns": {"problem": "riddle"}}, "no column `riddle`"),
    ({"replicas": 2, "schedule": "lockstep"}, "--schedule lockstep cannot be combined with --replicas: it synchronises all chains in one"),
    ({"resume": True, "output": None}, "--resume: name the run folder with --output"),
    ({"output": Path("full")}, "full: already exists; choose another directory with --output"),
    ({"output": Path("/proc/x")}, "/proc/x: cannot be "),
]

RESUMED: list[tuple[dict[str, Any], str]] = [
    ({"resume": False}, "already contains a run; add --resume to resume it, or choose another directory with --output"),
    ({"settings": ("candidates=3",)}, "cannot be resumed: param candidates is 3, was 5; start a new run"),
    ({"seed": 1}, "seed is 1, was 0; start a new run"),
    ({"columns": {"problem": "problem"}}, "columns is {'problem': 'problem'}, was {}"),
    ({"settings": ("engines.target.model=other",)}, "engines.target.model is other, was QwQ-32B; start a new run"),
    ({"input": ("full/mine.txt",)}, "cannot be resumed: --input is "),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with problems, an engines file of two kinds of time, a folder of somebody's, and half of a run."""
    place = tmp_path_factory.mktemp("refused")
    write_problems(place, 8)
    (place / "mixed.yaml").write_text(SIM.read_text().partition("target:")[0] + 'target: {backend: torch, model: "bundled:tiny-target"}\n')
    (place / "full").mkdir()
    (place / "full/mine.txt").write_text("mine")
    cut(run(options(place, output=place / "whole")).folder, place / "run", 0.5)
    return place


def options(place: Path, **changes: Any) -> RunOptions:
    given: dict[str, Any] = {"graph": Path("speccot"), "engines": SIM, "input": (str(place / "problems.jsonl"),), "samples": 2}
    return RunOptions(**given | {"batch_size": 4, "output": place / "new"} | changes)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}


@pytest.mark.parametrize(("changes", "sentence"), NEW, ids=lambda value: str(value)[:40])
def test_a_run_is_refused_in_one_sentence(place: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sentence: str) -> None:
    monkeypatch.chdir(place)
    before = content(place)
    with pytest.raises(UsageError) as raised:
        run(options(place, **changes))
    assert sentence in str(raised.value)
    assert content(place) == before


@pytest.mark.parametrize(("changes", "sentence"), RESUMED, ids=lambda value: str(value)[:40])
def test_a_run_is_not_resumed_as_another_one(place: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sentence: str) -> None:
    monkeypatch.chdir(place)
    before = content(place)
    with pytest.raises(UsageError) as raised:
        run(options(place, **{"output": place / "run", "resume": True} | changes))
    assert sentence in str(raised.value)
    assert content(place) == before


def test_a_folder_in_use_and_one_without_a_run_are_refused(place: Path) -> None:
    with hold(place / "run"), pytest.raises(UsageError, match="this process is at work in it; wait for the end of its earlier run"):
        run(resume_options(place / "run"))
    with pytest.raises(InputError, match=r"run\.json: cannot be read: no such file or directory; expected a run folder"):
        resume_options(place / "nothing")


def test_problems_that_are_lost_are_missed(place: Path, tmp_path: Path) -> None:
    cut(place / "whole", tmp_path / "run", 0.9)
    (tmp_path / "run/problems.parquet").unlink()
    with pytest.raises(InputError, match=r"lacks its problems\.parquet; put it back from a copy"):
        run(resume_options(tmp_path / "run"))


@pytest.mark.parametrize(
    "chosen", [{"engines": Path("tiny")}, {"engines": SIM}, {"settings": ("engines.*.model=some/model",)}, {"input": ("arith",)}]
)
def test_who_names_engines_models_or_the_bundled_problems_is_not_asked_about_toys(tmp_path: Path, chosen: dict[str, Any]) -> None:
    given = options(tmp_path, **{"engines": None, "input": (str(write_problems(tmp_path)),), "output": tmp_path / "run"} | chosen)
    with prepare(given, load_plan(given.graph, given.bound_engines, given.settings)) as found:
        assert not found.nothing_to_do


class Twice(SimTokenizer):
    def render(self, messages: Any) -> str:
        return 2 * super().render(messages)


@pytest.mark.parametrize(
    ("tokenizer", "flaw"),
    [(object(), "its tokenizer has no `special_ids`"), (Twice(), "its chat template: shows a message of the chat 2")],
)
def test_tokenizers_of_one_s_own_are_told_what_they_lack(tokenizer: Any, flaw: str) -> None:
    with pytest.raises(GraphError, match=f"engine 'draft': {flaw}"):
        builders_of(load_plan(Path("speccot"), SIM), {"draft": tokenizer})


def test_a_server_s_run_is_not_resumed(place: Path, tmp_path: Path) -> None:
    cut(place / "whole", tmp_path / "run", 0.5)
    card = json.loads((tmp_path / "run/run.json").read_text())
    card["options"]["served"] = True
    (tmp_path / "run/run.json").write_text(json.dumps(card))
    with pytest.raises(UsageError, match="is the run of a server, which cannot be resumed"):
        run(structs.replace(options(place, output=tmp_path / "run"), resume=True))


def test_a_second_run_in_the_same_second_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = options_of(tmp_path, graph="target", output=None)
    with prepare(chosen, load_plan(chosen.graph, chosen.engines)):
        assert run(chosen).exit_code == 0
        assert len([*(tmp_path / "runs").iterdir()]) == 2


@pytest.mark.parametrize("resume", [False, True])
def test_a_process_that_was_killed_before_its_run_had_begun_leaves_a_place_for_one(resume: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).write_text("1\n")
    (folder / ".0123456789abcdef.tmp").write_text("{")
    assert run(options_of(tmp_path, graph="target", resume=resume)).done == 12
