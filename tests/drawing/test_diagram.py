"""Boxes and arrows: every way that the runtime can take, and no other."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.drawing.counts import count_run
from pipeline.drawing.diagram import Diagram, diagram
from pipeline.drawing.run_plan import engines_of
from pipeline.graph.plan import Plan

Load = Callable[..., Plan]


def draw(plan: Plan) -> Diagram:
    return diagram(plan, engines_of(plan))


def ways(drawn: Diagram) -> set[tuple[str, str, str]]:
    """Tail, head and words of every arrow, by the titles of the boxes."""
    titles = {box.key: box.title for box in drawn.boxes}
    assert len(titles) == len(drawn.boxes)
    return {(titles[arrow.tail], titles[arrow.head], ", ".join(arrow.lines)) for arrow in drawn.arrows}


def test_a_loop_begins_a_round_or_ends_and_a_verdict_leads_two_ways(plan: Load) -> None:
    drawn = draw(plan("speccot"))
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
    assert {arrow.way for arrow in drawn.arrows if arrow.head == "/reason"} == {"next", "again"}
    [head] = [box for box in drawn.boxes if box.shape == "loop"]
    assert head.lines == ("until", "thought_closed, max_steps 256", "token_budget 8,192, context_length")
    assert {box.title for box in drawn.boxes if box.loop == "reason"} == {"reason", "draft", "verify", "fallback"}


def test_what_is_accepted_goes_past_a_stage_that_waits_for_a_rejection(plan: Load) -> None:
    assert {each for each in ways(draw(plan("scot"))) if each[0] in ("verify", "fallback")} == {
        ("verify", "fallback", "rejected"),
        ("verify", "answer", "accepted"),
        ("fallback", "answer", ""),
    }


def test_a_verdict_that_never_rejects_leads_one_way(plan: Load) -> None:
    assert ("verify", "answer", "") in ways(draw(plan("best-of-n")))


def test_the_first_steps_are_written_without_drafting(plan: Load) -> None:
    assert ("reason", "fallback", "the first 4 steps") in ways(draw(plan("specreason", "first_steps=4")))
    assert not [each for each in ways(draw(plan("specreason"))) if "first" in each[2]]


def test_stages_of_one_level_part_and_join(nasty: Plan) -> None:
    assert {each for each in ways(draw(nasty)) if "end" not in each} == {
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
    lines = {box.title: box.lines for box in draw(plan("speccot", "candidates=1")).boxes}
    assert lines["draft"] == ("unit=step candidates=1 max_tokens=256 temperature=0.6",)
    assert lines["fallback"] == ("unit=step max_tokens=256 temperature=0.6", "when verify rejected")
    assert lines["verify"] == ("unit=step",)
    assert {box.title: box.lines for box in draw(plan("best-of-n")).boxes}["verify"] == ("unit=thought reject=false",)


def test_a_run_puts_its_numbers_on_boxes_and_arrows(plan: Load, run_folder: Path) -> None:
    speccot = plan("speccot")
    drawn = diagram(speccot, {}, count_run(run_folder, speccot, "r"))
    decisions = pq.read_table(run_folder / "steps")["decision"].to_pylist()
    accepted, rejected = decisions.count("accepted"), decisions.count("fallback")
    share = accepted / (accepted + rejected)
    found = ways(drawn)
    assert ("verify", "reason", f"accepted, {accepted:,} ({share:.1%})") in found
    assert ("verify", "fallback", f"rejected, {rejected:,} ({1 - share:.1%})") in found
    assert ("reason", "answer", "thought_closed 12 (100.0%)") in found
    numbers = {box.title: box.numbers for box in drawn.boxes}
    assert numbers["problem"] == ("12 chains",)
    assert numbers["reason"] == (f"{(accepted + rejected) / 12:.2f} rounds a chain",)
    assert numbers["fallback"][0] == f"{rejected:,} calls"
