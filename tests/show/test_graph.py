"""Drawings of a graph: the tree line by line, the flowchart as boxes and arrows, and texts that stay texts."""

import re
from pathlib import Path

import pytest

from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from pipeline.show.graph_mermaid import mermaid
from pipeline.show.graph_text import engines_of, text
from tests.support.paths import ROOT

NASTY = '"];a-->b;<img src=x onerror=y>&lt;\\N}}{{#quot;`$$'
ESCAPED = "#34;];a--#62;b;#60;img src=x onerror=y#62;#38;lt;#92;N#125;#125;#123;#123;#35;quot;#96;$\u200b$"
GRAPHS = sorted(path.stem for path in (ROOT / "graphs").glob("*.yaml"))
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
    return load_plan(ROOT / f"graphs/{name}.yaml", settings=settings)


@pytest.fixture
def nasty(tmp_path: Path) -> Plan:
    """Two drafts at the same time, then one of two stages; texts that no format takes as they are."""
    path = tmp_path / "nasty.yaml"
    path.write_text(GRAPH.format(problem="'{{problem}}" + NASTY + "'"))
    models = {"draft": NASTY, "target": "bundled:tiny-target", "third": "bundled:tiny-target"}
    return load_plan(path, {role: {"backend": "torch", "model": model} for role, model in models.items()})


def test_the_tree_of_a_graph() -> None:
    speccot = plan("speccot")
    expected = f"""speccot, digest {speccot.digest}
  ● target  torch bundled:tiny-target
  ○ draft   torch bundled:tiny-draft

● guidance: generate, unit=tokens max_tokens=8 temperature=0.6
↻ reason: repeat
├── ○ draft: draft, unit=step candidates=5 max_tokens=256 temperature=0.6
├── ● verify: choose, unit=step
│   ├── accepted
│   └── rejected → fallback
├── ● fallback: generate, unit=step max_tokens=256 temperature=0.6, when verify rejected
└── until
    ├── thought_closed
    ├── max_steps 256
    ├── token_budget 8,192
    └── context_length
● answer: answer, max_tokens=1,024 budget=thought token_budget=8,192 temperature=0.6
"""
    assert text(speccot) == expected
    assert list(engines_of(plan("specreason"))) == ["target", "draft"], "a role looks the same on every drawing"
    assert "  prompts published" in text(plan("scot", "prompts=published")).splitlines()


def test_the_tree_says_what_runs_at_the_same_time_and_what_instead(nasty: Plan) -> None:
    lines = text(nasty).splitlines()
    place = lines.index("at the same time")
    assert [line[:8] for line in lines[place + 1 : place + 3]] == ["├── ○ on", "└── ● tw"]
    assert "either" in lines
    assert "  ◆ third" in {line[:9] for line in lines}


def test_arrows_lead_from_what_a_stage_waits_for_and_loops_are_frames() -> None:
    lines = [line.strip() for line in mermaid(plan("speccot")).splitlines()]
    assert [line for line in lines if "-->" in line] == ["n0 --> n1", "n1 --> l0", "n2 --> n3", 'n3 -->|"verify.rejected"| n4', "l0 --> n5"]
    place = lines.index('n1["guidance · generate · target<br/>unit=tokens max_tokens=8 temperature=0.6"]')
    until = "thought_closed, max_steps 256, token_budget 8,192, context_length"
    assert lines[place + 1] == f'subgraph l0["reason: repeat<br/>until {until}"]'
    assert [line[:5] for line in lines[place + 2 : place + 7]] == ['n2["d', 'n3["v', 'n4["f', "end", 'n5["a']
    assert "class r0,n1,n3,n4,n5 role0" in lines


def test_stages_of_one_level_part_and_join_and_texts_of_others_are_texts(nasty: Plan) -> None:
    source = mermaid(nasty)
    arrows = [line.strip() for line in source.splitlines() if "-->" in line]
    parted, joined = ["n1 --> n2", "n1 --> n3", "n2 --> n4", "n3 --> n4"], ["n5 --> n7", "n6 --> n7"]
    chosen = ['n4 -->|"verify.accepted"| n5', 'n4 -->|"verify.rejected"| n6']
    assert arrows == ["n0 --> n1", *parted, *chosen, *joined]
    assert source.count(ESCAPED) == 2, "the problem and a model"


def test_every_line_of_a_flowchart_is_a_box_an_arrow_a_frame_or_a_role(nasty: Plan) -> None:
    label = r'"([^"<>&{}`\\\x27$#]|#\d+;|<br/>|\$\u200b\$)*"'
    box, arrow = rf" +(subgraph )?[nlr]\d+[\[(]+{label}[\])]+", rf"  [nl]\d+ -->(\|{label}\|)? [nl]\d+"
    other = r"  (end|class r\d\S* role\d|classDef role\d fill:#\w{6},stroke:#\w{6},color:#24292f)"
    for each in (nasty, *map(plan, GRAPHS)):
        first, *lines = mermaid(each).splitlines()
        assert first == "flowchart TD"
        assert [line for line in lines if not re.fullmatch(f"{box}|{arrow}|{other}", line)] == []
