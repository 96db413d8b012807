"""The formats: that texts stay texts, and the tree line by line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.drawing.counts import count_run
from pipeline.drawing.diagram import Diagram, diagram
from pipeline.drawing.mermaid import mermaid
from pipeline.drawing.run_plan import engines_of
from pipeline.drawing.text import text
from pipeline.graph.plan import Plan
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT
from tests.support.plans import NASTY

Load = Callable[..., Plan]
GRAPHS = sorted(path.stem for path in (ROOT / "graphs").glob("*.yaml"))


def drawn(plan: Plan) -> Diagram:
    return diagram(plan, engines_of(plan))


def test_in_mermaid_texts_of_others_are_texts(nasty: Plan) -> None:
    source = mermaid(drawn(nasty))
    for label in re.findall(r'"([^"\n]*)"', source):
        plain = label.replace("<br/>", "\n")
        assert not set(plain) & set("<>&{}`\\'")
        assert "$$" not in plain
        read = re.sub(r"#(\d+);", lambda found: chr(int(found[1])), plain).replace("\u200b", "")
        assert "#" not in re.sub(r"#\d+;", "", plain)
        if "onerror" in read:
            assert NASTY in read
    assert source.count("onerror") == 2
    assert all(line.count('"') in (0, 2) for line in source.splitlines())


@pytest.mark.parametrize("name", GRAPHS)
def test_mermaid_has_every_box_and_arrow_once(plan: Load, name: str) -> None:
    page, source = drawn(plan(name)), mermaid(drawn(plan(name)))
    assert source.startswith("flowchart TD\n")
    assert len(re.findall(r"^ +n\d+[\[{(]", source, re.MULTILINE)) == len(page.boxes)
    arrows = re.findall(r"^  n\d+ (?:-->|-\.->|==>)(?:\|\"[^\"]*\"\|)? n\d+$", source, re.MULTILINE)
    assert len(arrows) == len(page.arrows)
    assert len(re.findall(r"^  classDef role\d fill:#\w{6},stroke:#\w{6}", source, re.MULTILINE)) == len(page.engines)


def test_roles_look_the_same_on_every_drawing(plan: Load) -> None:
    assert list(engines_of(plan("speccot"))) == list(engines_of(plan("specreason"))) == ["target", "draft"]


def test_the_tree_of_a_graph(plan: Load) -> None:
    speccot = plan("speccot")
    assert (
        text(speccot, engines_of(speccot))
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


def test_the_tree_says_what_runs_at_the_same_time_and_what_instead(nasty: Plan) -> None:
    lines = text(nasty, engines_of(nasty)).splitlines()
    place = lines.index("├─ at the same time")
    assert [line[:10].rstrip() for line in lines[place + 1 : place + 3]] == ["│  ├─ ○ on", "│  └─ ● tw"]
    assert "├─ either" in lines
    assert "  ◆ third" in {line[:9] for line in lines}


def test_the_tree_of_a_run_has_its_numbers_in_columns(plan: Load, run_folder: Path) -> None:
    speccot = load_plan(ROOT / "graphs/speccot.yaml")
    lines = text(speccot, engines_of(speccot), count_run(run_folder, speccot, "r")).splitlines()
    [heading] = [line for line in lines if line.endswith("calls  failed  in flight  waiting")]
    [guidance] = [line for line in lines if "guidance" in line]
    assert lines[1] == "run r: 12 chains"
    assert guidance[: heading.index("calls") + len("calls")].endswith(" 12")
    assert len(guidance) == len(heading)
    assert "│     ├─ thought_closed           12 (100.0%)" in lines
