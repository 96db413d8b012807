"""Drawings of a graph: the tree line by line, the flowchart as boxes and arrows, and texts that stay texts."""

import re
from pathlib import Path

import pytest

from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from pipeline.show.graph_mermaid import mermaid
from pipeline.show.graph_text import engines_of, text
from tests.support.paths import ROOT

GRAPHS = sorted(path.stem for path in (ROOT / "graphs").glob("*.yaml"))
BOX = re.compile(r'^ +(?:subgraph )?([nl]\d+)[\[(]+"([^"]*)"[\])]+$', re.MULTILINE)
ARROW = re.compile(r'^  ([nl]\d+) -->(?:\|"([^"]*)"\|)? ([nl]\d+)$', re.MULTILINE)
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


def plan(name: str, *settings: str) -> Plan:
    """The plan of a checked-in graph."""
    return load_plan(ROOT / f"graphs/{name}.yaml", settings=settings)


@pytest.fixture
def nasty(tmp_path: Path) -> Plan:
    """Two drafts at the same time, then one of two stages; texts that no format takes as they are."""
    path = tmp_path / "nasty.yaml"
    path.write_text(GRAPH.format(problem="'{{problem}}" + NASTY + "'"))
    models = {"draft": NASTY, "target": "bundled:tiny-target", "third": "bundled:tiny-target"}
    return load_plan(path, {role: {"backend": "torch", "model": model} for role, model in models.items()})


def boxes(source: str) -> dict[str, list[str]]:
    """The lines of each box and frame by its title."""
    found = [re.split(" · |: |<br/>", label, maxsplit=1) for _, label in BOX.findall(source)]
    return {title: lines[0].split("<br/>") if lines else [] for title, *lines in found}


def ways(source: str) -> set[tuple[str, str, str]]:
    """Tail, head and label of every arrow, by the titles of the boxes."""
    titles = dict(zip((key for key, _ in BOX.findall(source)), boxes(source), strict=True))
    return {(titles[tail], titles[head], label) for tail, label, head in ARROW.findall(source)}


def test_the_tree_of_a_graph() -> None:
    speccot = plan("speccot")
    assert (
        text(speccot)
        == f"""speccot, digest {speccot.digest}
  ● target  torch bundled:tiny-target
  ○ draft   torch bundled:tiny-draft

├─ ● guidance: generate, unit=tokens max_tokens=8 temperature=0.6
├─ ↻ reason: repeat
│  ├─ ○ draft: draft, unit=step candidates=5 max_tokens=256 temperature=0.6
│  ├─ ● verify: choose, unit=step
│  │  ├─ accepted
│  │  └─ rejected → fallback
│  ├─ ● fallback: generate, unit=step max_tokens=256 temperature=0.6, when verify rejected
│  └─ until
│     ├─ thought_closed
│     ├─ max_steps 256
│     ├─ token_budget 8,192
│     └─ context_length
└─ ● answer: answer, max_tokens=1,024 budget=thought token_budget=8,192 temperature=0.6
"""
    )
    assert list(engines_of(plan("specreason"))) == ["target", "draft"], "a role looks the same on every drawing"
    assert "  prompts published" in text(plan("scot", "prompts=published")).splitlines()


def test_the_tree_says_what_runs_at_the_same_time_and_what_instead(nasty: Plan) -> None:
    lines = text(nasty).splitlines()
    place = lines.index("├─ at the same time")
    assert [line[:10].rstrip() for line in lines[place + 1 : place + 3]] == ["│  ├─ ○ on", "│  └─ ● tw"]
    assert "├─ either" in lines
    assert "  ◆ third" in {line[:9] for line in lines}


def test_arrows_lead_from_what_a_stage_waits_for_and_loops_are_frames() -> None:
    drawn = mermaid(plan("speccot"))
    assert ways(drawn) == {
        ("problem", "guidance", ""),
        ("guidance", "reason", ""),
        ("draft", "verify", ""),
        ("verify", "fallback", "verify.rejected"),
        ("reason", "answer", ""),
    }
    assert boxes(drawn)["reason"] == ["repeat", "until thought_closed, max_steps 256, token_budget 8,192, context_length"]
    assert boxes(drawn)["verify"] == ["choose · target", "unit=step"]
    [frame] = re.findall(r"^  subgraph .*?^  end$", drawn, re.MULTILINE | re.DOTALL)
    assert list(boxes(frame)) == ["reason", "draft", "verify", "fallback"]


def test_stages_of_one_level_part_and_join_and_texts_of_others_are_texts(nasty: Plan) -> None:
    source = mermaid(nasty)
    parted = {("guide", each, "") for each in ("one", "two")} | {(each, "verify", "") for each in ("one", "two")}
    joined = {("verify", "polish", "verify.accepted"), ("verify", "fallback", "verify.rejected")}
    assert ways(source) == parted | joined | {("problem", "guide", ""), ("polish", "answer", ""), ("fallback", "answer", "")}
    for label in re.findall(r'"([^"\n]*)"', source):
        plain = label.replace("<br/>", "\n")
        assert not set(plain) & set("<>&{}`\\'")
        assert "$$" not in plain
        assert "#" not in re.sub(r"#\d+;", "", plain)
        read = re.sub(r"#(\d+);", lambda found: chr(int(found[1])), plain).replace("\u200b", "")
        assert "onerror" not in read or NASTY in read
    assert source.count("onerror") == 2
    assert all(line.count('"') in (0, 2) for line in source.splitlines())


@pytest.mark.parametrize("name", GRAPHS)
def test_every_line_of_a_flowchart_is_a_box_an_arrow_a_frame_or_a_role(name: str) -> None:
    first, *lines = mermaid(plan(name)).splitlines()
    assert first == "flowchart TD"
    other = re.compile(r"  (end$|r\d\[|class r\d|classDef role\d fill:#\w{6},stroke:#\w{6})")
    assert [line for line in lines if not (BOX.match(line) or ARROW.match(line) or other.match(line))] == []
    known = [key for key, _ in BOX.findall("\n".join(lines))]
    assert len(set(known)) == len(known)
    assert {key for tail, _, head in ARROW.findall("\n".join(lines)) for key in (tail, head)} <= set(known)
