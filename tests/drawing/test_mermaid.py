"""The flowchart: every way that the runtime can take and no other, and texts that stay texts."""

import re
from collections.abc import Callable

import pytest

from pipeline.drawing.mermaid import mermaid
from pipeline.graph.loader import load_graph
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from tests.support.paths import ROOT
from tests.support.plans import NASTY

Load = Callable[..., Plan]
GRAPHS = sorted(path.stem for path in (ROOT / "graphs").glob("*.yaml"))
BOX = re.compile(r'^ +(n\d+)[\[{(]+"([^"]*)"[\]})]+$', re.MULTILINE)
ARROW = re.compile(r'^  (n\d+) (-->|-\.->|==>)(?:\|"([^"]*)"\|)? (n\d+)$', re.MULTILINE)


def boxes(source: str) -> dict[str, list[str]]:
    """The lines of each box by its title."""
    found = [label.split("<br/>") for _, label in BOX.findall(source)]
    return {title.partition(" · ")[0]: lines for title, *lines in found}


def ways(source: str) -> set[tuple[str, str, str]]:
    """Tail, head and words of every arrow, by the titles of the boxes."""
    titles = {key: re.split(" · |<br/>", label)[0] for key, label in BOX.findall(source)}
    return {(titles[tail], titles[head], words.replace("<br/>", ", ")) for tail, _, words, head in ARROW.findall(source)}


def test_a_loop_begins_a_round_or_ends_and_a_verdict_leads_two_ways(plan: Load) -> None:
    drawn = mermaid(plan("speccot"))
    assert ways(drawn) == {
        ("problem", "guidance", ""),
        ("guidance", "reason", ""),
        ("reason", "draft", "next step"),
        ("draft", "verify", ""),
        ("verify", "fallback", "rejected"),
        ("verify", "reason", "accepted"),
        ("fallback", "reason", ""),
        ("reason", "answer", "until"),
        ("answer", "end", ""),
    }
    [head] = re.findall(r"(n\d+)\{\{", drawn)
    assert {link for _, link, _, to in ARROW.findall(drawn) if to == head} == {"-->", "-.->"}
    assert boxes(drawn)["reason"] == ["until", "thought_closed, max_steps 256", "token_budget 8,192, context_length"]
    [frame] = re.findall(r"^  subgraph .*?^  end$", drawn, re.MULTILINE | re.DOTALL)
    assert boxes(frame).keys() == {"reason", "draft", "verify", "fallback"}


def test_what_is_accepted_goes_past_a_stage_that_waits_for_a_rejection(plan: Load) -> None:
    assert {each for each in ways(mermaid(plan("scot"))) if each[0] in ("verify", "fallback")} == {
        ("verify", "fallback", "rejected"),
        ("verify", "answer", "accepted"),
        ("fallback", "answer", ""),
    }


def test_a_verdict_that_never_rejects_leads_one_way(plan: Load) -> None:
    assert ("verify", "answer", "") in ways(mermaid(plan("best-of-n")))


def test_what_a_gate_lets_pass_goes_past_what_looks_at_drafts_after_it(plan: Load) -> None:
    assert {each for each in ways(mermaid(plan("gated"))) if each[0] in ("gate", "verify", "fallback")} == {
        ("gate", "verify", "flagged"),
        ("gate", "reason", "passed"),
        ("verify", "fallback", "rejected"),
        ("verify", "reason", "accepted"),
        ("fallback", "reason", ""),
    }


def test_of_two_gates_the_second_sees_only_what_the_first_leaves_to_it(plan: Load) -> None:
    assert {each for each in ways(mermaid(plan("triggered"))) if each[0] in ("loop", "calm", "plan", "rescue")} == {
        ("loop", "calm", "passed"),
        ("loop", "rescue", "flagged"),
        ("calm", "plan", "flagged"),
        ("calm", "reason", "passed"),
        ("plan", "reason", ""),
        ("rescue", "reason", ""),
    }


TWO_GATES = {
    "draft": {"kind": "draft", "engine": "draft", "unit": "step", "candidates": 1, "max_tokens": 64},
    "one": {"kind": "gate", "after": "draft", "threshold": -0.1},
    "two": {"kind": "gate", "after": "one", "statistic": "min", "threshold": -1.0},
    "verify": {"kind": "score", "engine": "target", "after": "two", "when": "two.flagged"},
    "fallback": {"kind": "generate", "engine": "target", "unit": "step", "after": "verify", "when": "verify.rejected", "max_tokens": 64},
    "polish": {"kind": "generate", "engine": "target", "unit": "step", "after": "fallback", "when": "one.flagged", "max_tokens": 64},
}


def test_a_second_gate_without_a_condition_is_not_reached_where_the_first_made_a_step() -> None:
    reason = {"kind": "repeat", "until": {"token_budget": 500}, "stages": TWO_GATES}
    stages = {"reason": reason, "answer": {"kind": "answer", "engine": "target", "after": "reason"}}
    graph = load_graph({"name": "mine", "stages": stages}, stage_specs(), engine_specs(), engines=ROOT / "graphs/engines/sim-2xh100.yaml")
    assert {each for each in ways(mermaid(graph)) if each[0] not in ("problem", "reason", "answer")} == {
        ("draft", "one", ""),
        ("one", "two", "flagged"),
        ("one", "reason", "passed"),
        ("two", "verify", "flagged"),
        ("two", "polish", "passed"),
        ("verify", "fallback", "rejected"),
        ("verify", "polish", "accepted"),
        ("fallback", "polish", ""),
        ("polish", "reason", ""),
    }


def test_the_first_steps_are_written_without_drafting(plan: Load) -> None:
    assert ("reason", "fallback", "the first 4 steps") in ways(mermaid(plan("specreason", "first_steps=4")))
    assert not [each for each in ways(mermaid(plan("specreason"))) if "first" in each[2]]


def test_stages_of_one_level_part_and_join(nasty: Plan) -> None:
    assert {each for each in ways(mermaid(nasty)) if "end" not in each} == {
        ("problem", "guide", ""),
        ("guide", "one", ""),
        ("guide", "two", ""),
        ("one", "verify", ""),
        ("two", "verify", ""),
        ("verify", "polish", "accepted"),
        ("verify", "fallback", "rejected"),
        ("polish", "answer", ""),
        ("fallback", "answer", ""),
    }


def test_what_decides_about_a_stage_is_said_and_what_goes_without_saying_is_not(plan: Load) -> None:
    lines = boxes(mermaid(plan("speccot", "candidates=1")))
    assert lines["draft"] == ["unit=step candidates=1 max_tokens=256 temperature=0.6"]
    assert lines["fallback"] == ["unit=step max_tokens=256 temperature=0.6", "when verify rejected"]
    assert lines["verify"] == ["unit=step"]
    assert boxes(mermaid(plan("best-of-n")))["verify"] == ["unit=thought reject=false"]


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
    other = re.compile(r"  (subgraph l\d|end$|r\d\[|class r\d|classDef role\d fill:#\w{6},stroke:#\w{6})")
    assert [line for line in lines if not (BOX.match(line) or ARROW.match(line) or other.match(line))] == []
    known = [key for key, _ in BOX.findall("\n".join(lines))]
    assert len(set(known)) == len(known)
    assert {key for tail, _, _, head in ARROW.findall("\n".join(lines)) for key in (tail, head)} == set(known)
