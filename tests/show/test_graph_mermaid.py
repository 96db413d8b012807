"""The flowchart: a box a stage, an arrow with the condition, a frame a loop, and texts that stay texts."""

import re
from collections.abc import Callable

import pytest

from pipeline.graph.plan import Plan
from pipeline.show.graph_mermaid import mermaid
from tests.show.conftest import NASTY
from tests.support.paths import ROOT

Load = Callable[..., Plan]
GRAPHS = sorted(path.stem for path in (ROOT / "graphs").glob("*.yaml"))
BOX = re.compile(r'^ +(?:subgraph )?([nl]\d+)[\[(]+"([^"]*)"[\])]+$', re.MULTILINE)
ARROW = re.compile(r'^  ([nl]\d+) -->(?:\|"([^"]*)"\|)? ([nl]\d+)$', re.MULTILINE)


def boxes(source: str) -> dict[str, list[str]]:
    """The lines of each box and frame by its title."""
    found = [re.split(" · |: |<br/>", label, maxsplit=1) for _, label in BOX.findall(source)]
    return {title: lines[0].split("<br/>") if lines else [] for title, *lines in found}


def ways(source: str) -> set[tuple[str, str, str]]:
    """Tail, head and label of every arrow, by the titles of the boxes."""
    titles = dict(zip((key for key, _ in BOX.findall(source)), boxes(source), strict=True))
    return {(titles[tail], titles[head], label) for tail, label, head in ARROW.findall(source)}


def test_arrows_lead_from_what_a_stage_waits_for_and_loops_are_frames(plan: Load) -> None:
    drawn = mermaid(plan("speccot"))
    assert ways(drawn) == {
        ("problem", "guidance", ""),
        ("guidance", "reason", ""),
        ("draft", "verify", ""),
        ("verify", "fallback", "verify.rejected"),
        ("reason", "answer", ""),
    }
    assert boxes(drawn)["reason"] == ["repeat", "until thought_closed, max_steps 256, token_budget 8,192, context_length"]
    [frame] = re.findall(r"^  subgraph .*?^  end$", drawn, re.MULTILINE | re.DOTALL)
    assert list(boxes(frame)) == ["reason", "draft", "verify", "fallback"]


def test_a_condition_is_named_with_its_stage_wherever_that_is(plan: Load) -> None:
    assert {each for each in ways(mermaid(plan("triggered"))) if each[2]} == {
        ("loop", "calm", "loop.passed"),
        ("calm", "plan", "calm.flagged"),
        ("plan", "rescue", "loop.flagged"),
    }


def test_stages_of_one_level_part_and_join(nasty: Plan) -> None:
    assert ways(mermaid(nasty)) == {
        ("problem", "guide", ""),
        ("guide", "one", ""),
        ("guide", "two", ""),
        ("one", "verify", ""),
        ("two", "verify", ""),
        ("verify", "polish", "verify.accepted"),
        ("verify", "fallback", "verify.rejected"),
        ("polish", "answer", ""),
        ("fallback", "answer", ""),
    }


def test_what_is_set_is_said_and_what_goes_without_saying_is_not(plan: Load) -> None:
    lines = boxes(mermaid(plan("speccot", "candidates=1")))
    assert lines["draft"] == ["draft · draft", "unit=step candidates=1 max_tokens=256 temperature=0.6"]
    assert lines["verify"] == ["choose · target", "unit=step"]
    assert boxes(mermaid(plan("best-of-n")))["verify"] == ["choose · target", "unit=thought reject=false"]


def test_in_mermaid_texts_of_others_are_texts(nasty: Plan) -> None:
    source = mermaid(nasty)
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
def test_every_line_of_a_flowchart_is_a_box_an_arrow_a_frame_or_a_role(plan: Load, name: str) -> None:
    first, *lines = mermaid(plan(name)).splitlines()
    assert first == "flowchart TD"
    other = re.compile(r"  (end$|r\d\[|class r\d|classDef role\d fill:#\w{6},stroke:#\w{6})")
    assert [line for line in lines if not (BOX.match(line) or ARROW.match(line) or other.match(line))] == []
    known = [key for key, _ in BOX.findall("\n".join(lines))]
    assert len(set(known)) == len(known)
    assert {key for tail, _, head in ARROW.findall("\n".join(lines)) for key in (tail, head)} <= set(known)
