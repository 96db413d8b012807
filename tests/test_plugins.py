"""A package of other people, `tests/support/plugin`: a verifier that asks its own question and an engine that computes in the worker
process. It goes through every command as the built-in kinds and engines do, and roles are those of its graph."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.analysis.steps import count_steps
from pipeline.analysis.summary import summarize
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.installed import installed
from tests.support.killed import cut
from tests.support.paths import ROOT
from tests.support.runs import rows

PLUGIN = ROOT / "tests/support/plugin"
GRAPH = PLUGIN / "critic.yaml"
ROLES = ("apprentice", "master", "referee")

pytestmark = pytest.mark.slow  # each engine is a process


@pytest.fixture
def _plugin() -> Iterator[None]:
    with installed(PLUGIN):
        yield


def command(*arguments: str | Path, code: int = 0) -> str:
    done = pipeline(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def steps_of(run: Path) -> list[tuple[str, int, str, str]]:
    return sorted((row["chain_id"], row["step_index"], row["decision"], row["step_text"]) for row in rows(run, "steps"))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "problems.jsonl"
    path.write_text("".join(json.dumps({"problem": f"What is {i} and {i}?", "answer": "4"}) + "\n" for i in range(200)))
    return path


@pytest.fixture(scope="module")
def solved(problems: Path) -> Path:
    out = problems.parent / "solved"
    with installed(PLUGIN):
        command("run", GRAPH, "--input", problems, "--output", out)
    return out


def test_its_verdicts_lead_the_chains_and_are_in_the_trace(solved: Path) -> None:
    chains, steps, calls = (rows(solved, table) for table in ("chains", "steps", "calls"))
    assert len(chains) == 200
    assert all(row["correct"] for row in chains)
    assert {(row["stage"], row["kind"], row["purpose"], row["engine"]) for row in calls} == {
        ("propose", "draft", "draft", "apprentice"),
        ("judge", "critic", "judge", "referee"),
        ("rewrite", "generate", "write", "master"),
        ("answer", "answer", "answer", "master"),
    }
    assert {row["decision"] for row in steps} == {"accepted", "fallback"}
    for row in steps:
        assert (row["verify_kind"], row["verify_stage"], row["threshold"]) == ("critic", "judge", 50.0)
        assert (row["score_scale"], row["score_low"], row["score_high"]) == ("probability of Y", 0.0, 100.0)
        assert row["score_options"] == ["Y", "N"]
        assert row["score_label"] == ("Y" if row["decision"] == "accepted" else "N")
        assert row["score_value"] == pytest.approx(90 if row["decision"] == "accepted" else 10)


@pytest.mark.usefixtures("_plugin")
def test_totals_of_all_roles_are_those_of_the_engines(solved: Path) -> None:
    run, problems, three = RunFile.read(solved), solved.parent / "problems.jsonl", solved.parent / "three"
    summary = json.loads(command("run", GRAPH, "--input", problems, "--limit", "3", "--json", "--output", three))
    assert set(summary["engines"]) == set(ROLES)
    chains = rows(solved, "chains")
    for role in ROLES:
        place = chains[0]["engines"].index(role)
        counted = run.engine_statistics[role]
        assert sum(row["input_tokens"][place] for row in chains) == counted.input_tokens > 0
        assert sum(row["output_tokens"][place] for row in chains) == counted.output_tokens == run.totals.output_tokens[role] > 0
        assert run.engine_facts[role]["devices"] == ("desk",)


def test_its_run_is_reported_compared_drawn_and_exported(solved: Path, tmp_path: Path) -> None:
    other = solved.parent / "other"
    with installed(PLUGIN):
        settings = ("--set", "engines.master.max_in_flight=1", "--batch-size", "8")
        command("run", GRAPH, "--input", solved.parent / "problems.jsonl", "--output", other, *settings)
        command("view", solved, "-o", tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text()
        assert all(name in page for name in (*ROLES, "probability of Y", "propose", "judge", "rewrite", "verifier&#39;s value (critic)"))
        compared = command("compare", solved, other)
        assert all(name in compared for name in ("solved", "other", *ROLES))
        assert "judge" in command("graph", "show", GRAPH)
        command("export", solved, "--as", "perfetto", "--output", tmp_path / "trace.json")
        assert (tmp_path / "trace.json").stat().st_size > 10_000


def test_its_verdicts_are_counted_on_their_own_scale(solved: Path) -> None:
    [(kind, scores)] = count_steps(Query(solved)).scores.items()
    assert (kind, scores.edges[0], scores.edges[-1]) == ("critic", 0.0, 100.0)
    assert int(scores.accepted.sum()) == summarize(solved).accepted_steps > 0


@pytest.mark.usefixtures("_plugin")
def test_a_run_of_it_goes_on_after_a_kill(solved: Path, tmp_path: Path) -> None:
    cut(solved, tmp_path / "killed", 0.4)
    command("resume", tmp_path / "killed")
    assert RunFile.read(tmp_path / "killed").status == "finished"
    assert steps_of(tmp_path / "killed") == steps_of(solved)


@pytest.mark.usefixtures("_plugin")
def test_its_specs_are_as_strict_as_ours(tmp_path: Path) -> None:
    for setting, flaw in {
        "at_least: many": "$.stages.reason.stages.judge.at_least: expected `float`, got `str`",
        "at_most: 5": "unknown key `at_most`; did you mean `at_least`",
    }.items():
        path = tmp_path / "flawed.yaml"
        text = GRAPH.read_text().replace("kind: critic,", f"kind: critic, {setting},")
        path.write_text(text.replace("scribes.yaml", str(PLUGIN / "scribes.yaml")))
        assert flaw in command("graph", "check", path, code=2)
    assert "expected `int`, got `str`" in command("graph", "check", GRAPH, "--set", "engines.master.max_model_len=long", code=2)


def test_without_the_package_its_graph_is_refused_by_name() -> None:
    assert "unknown backend `scribe`" in command("graph", "check", GRAPH, code=2)
    assert "unknown kind `critic`" in command("graph", "check", GRAPH, "--engines", "sim-2xh100", code=2)


def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pipeline.stages]\nbroken = nowhere:KIND\n")
    with installed(tmp_path):
        done = pipeline("graph", "check", "speccot")
    assert done.returncode == 0
    words = "entry point broken = nowhere:KIND (pipeline.stages) of the installed package broken cannot be loaded"
    assert words in done.stderr
