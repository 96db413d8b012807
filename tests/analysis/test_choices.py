"""Votes over samples against a comparison of every answer with every other, and choices among whole thoughts (SCoT 4.4)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.analysis.choices import Sample, ThoughtChoice, ballot, majority, read_choices
from pipeline.grading.answers import is_percentage, same_answer
from pipeline.graph.plan import Block, LoopNode, Plan
from pipeline.graph.spec import UntilSpec
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.draft import DraftSpec
from pipeline.store.rows import ChainRow, StepRow
from tests.support.rows import blank
from tests.support.traces import CHOOSE, plan_of, write

THOUGHT = "so {} + 2 = {}.\n\n</think>"
WRONG = ["7", "7.0", "14/2", "50", "50%", "0.5", "1/2", r"50\%", "(B)", "B", "", " ", "$", "x", "x ", "1,000", "1000"]
answers = st.one_of(st.sampled_from(["5", "5.0"]), st.none(), st.sampled_from(WRONG)).map(lambda said: (said in ("5", "5.0"), said))


@given(st.lists(answers, max_size=24))
def test_a_ballot_groups_what_is_the_same_and_the_most_frequent_answer_wins(samples: Sequence[Sample]) -> None:
    groups: list[list[int]] = []
    for place, (correct, said) in enumerate(samples):
        if said is None:
            continue
        for group in groups:
            was_correct, first = samples[group[0]]
            alike = same_answer(said, str(first)) and is_percentage(said) == is_percentage(str(first))
            if (correct and was_correct) or (alike and correct == was_correct):
                group.append(place)
                break
        else:
            groups.append([place])
    expected = sorted((-len(group), group[0]) for group in groups)
    assert [(-answer.votes, answer.first) for answer in ballot(samples)] == expected
    won = bool(expected) and samples[expected[0][1]][0]  # of a tie the answer that was given first
    assert (majority([samples, samples]), majority([])) == (float(won), None)


def plan(unit: Literal["step", "thought"] = "thought", *, reject: bool = True) -> Plan:
    """One that drafts and judges in a loop."""
    stages = plan_of(draft=DraftSpec(engine="draft", unit=unit, max_tokens=9), verify=ChooseSpec(engine="target", unit=unit, reject=reject))
    return structs.replace(stages, block=Block(((LoopNode("loop", UntilSpec(thought_closed=True), stages.block, None),),)))


def test_classes_and_predictions(tmp_path: Path) -> None:
    """5 is right; what nobody knows, and chains that failed, are left out."""
    unknown = "... I do not know"
    rounds: list[tuple[list[str], int | None, tuple[bool, bool, bool] | None]] = [
        (["5", "5.0", "7"], 1, (True, False, True)),  # class 1, right
        (["5", "6"], 1, (True, False, False)),  # class 1, a wrong draft selected
        (["5"], None, (True, True, False)),  # class 1, all rejected
        (["6", "7"], None, (False, True, False)),  # class 2, right
        (["6"], 0, (False, False, False)),  # class 2, wrong
        (["5"], 0, None),  # a chain that failed
        ([unknown, "7"], 1, None),  # the first draft may be right
        ([unknown, "5"], 1, (True, False, True)),  # class 1 whatever it is
        ([unknown, "5"], 0, None),  # class 1, and the selected draft is not known
    ]
    steps, chains = list[Any](), list[Any]()
    for number, (said, chosen, _) in enumerate(rounds):
        drafts = tuple(THOUGHT.format(3, answer) if answer[0].isdigit() else answer for answer in said)
        steps.append(blank(StepRow, chain_id=f"p{number}#0", chosen_candidate=chosen, candidate_texts=drafts, **CHOOSE))
        stop = "error" if number == 5 else "thought_closed"
        chains.append(blank(ChainRow, chain_id=f"p{number}#0", grader="math", reference_answer="5", stop_reason=stop))
    run = write(tmp_path, steps=steps, chains=chains)
    assert read_choices([run], plan()) == [ThoughtChoice(*outcome, may_reject=True) for _, _, outcome in rounds if outcome]
    assert {choice.may_reject for choice in read_choices([run], plan(reject=False))} == {False}
    assert read_choices([run], plan("step")) == read_choices([run], plan_of()) == []
