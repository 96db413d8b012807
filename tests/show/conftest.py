"""What pages show in these tests: small simulated runs, a folder of them, one with hostile text; and plans to draw."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from pipeline.show.report import report
from tests.support.paths import ROOT
from tests.support.shown_runs import SHOWN, hostile_run, shown_run

Draw = Callable[..., Plan]
NASTY = '"];a-->b;<img src=x onerror=y>&lt;\\N}}{{#quot;`$$'


GRAPH = """
name: nasty
prompts: {{problem: {problem}}}
stages:
  guide: {{kind: generate, engine: third, unit: tokens, max_tokens: 8}}
  one: {{kind: draft, engine: draft, unit: step, candidates: 2, max_tokens: 9, after: guide}}
  two: {{kind: draft, engine: target, unit: step, candidates: 2, max_tokens: 9, after: guide}}
  verify: {{kind: choose, engine: target, after: [one, two]}}
  polish: {{kind: generate, engine: target, unit: step, max_tokens: 9, after: verify, when: verify.accepted}}
  fallback: {{kind: generate, engine: target, unit: step, max_tokens: 9, after: verify, when: verify.rejected}}
  answer: {{kind: answer, engine: target, after: [polish, fallback]}}
"""


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty chains of SpecCoT on simulated engines, and one that failed."""
    return shown_run(tmp_path_factory.mktemp("report"), batch_size=8)


@pytest.fixture(scope="session")
def alone(ran: Path) -> Path:
    """The same problems solved by the target alone."""
    return shown_run(ran.parent, "target", "alone")


@pytest.fixture(scope="session")
def routed(ran: Path) -> Path:
    """The first two problems where a gate decides which model writes a step."""
    return shown_run(ran.parent, "routed", "routed", limit=2)


@pytest.fixture(scope="session")
def hostile(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(ran, tmp_path_factory.mktemp("hostile") / "<b>run")


@pytest.fixture(scope="session")
def page_of() -> Callable[..., str]:
    """The page of run folders, as the command makes it."""
    return lambda *runs: report(runs)


@pytest.fixture
def shown() -> str:
    """Hostile text as a reader sees it."""
    return SHOWN


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By SpecCoT, by the target alone, over problems of which simulated models know nothing, of hostile text, and one that is damaged."""
    folder = tmp_path_factory.mktemp("view") / "runs"
    folder.mkdir()
    ran = shown_run(folder, name="speccot", batch_size=8)
    shown_run(folder, "target", "alone")
    hostile_run(ran, folder / "sweep" / "<b>run")
    (folder / "real").mkdir()
    problems = "".join(f'{{"problem": "Who was number {i}?", "answer": "x^{i}", "problem_id": "q{i}"}}\n' for i in range(5))
    (folder / "real" / "problems.jsonl").write_text(problems)
    shown_run(folder / "real", name="made up", limit=5)
    damaged = shutil.copytree(ran, folder / "damaged")
    part = next((damaged / "chains").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-40] + bytes(40))
    (folder / "unreadable").mkdir()
    (folder / "unreadable" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="session")
def plan() -> Draw:
    """`plan(NAME, settings)`: the plan of a checked-in graph."""

    def load(name: str, *settings: str) -> Plan:
        return load_plan(ROOT / f"graphs/{name}.yaml", settings=settings)

    return load


@pytest.fixture
def nasty(tmp_path: Path) -> Plan:
    """Two drafts at the same time, then one of two stages; texts that no format takes as they are."""
    path = tmp_path / "nasty.yaml"
    path.write_text(GRAPH.format(problem="'{{problem}}" + NASTY + "'"))
    models = {"draft": NASTY, "target": "bundled:tiny-target", "third": "bundled:tiny-target"}
    return load_plan(path, {role: {"backend": "torch", "model": model} for role, model in models.items()})
