"""Choices among whole thoughts: the answer of a thought, and the two classes of SCoT 4.4 from a run folder."""

from pathlib import Path
from typing import Literal

from msgspec import structs

from pipeline.analysis.quality.selection import read_choices
from pipeline.graph.plan import Block, LoopNode, Plan
from pipeline.graph.spec import UntilSpec
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.draft import DraftSpec
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow, StepRow
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.traces import CHOOSE, plan_of

THOUGHT = "so {} + 2 = {}.\n\n</think>"


def plan(unit: Literal["step", "thought"] = "thought", *, reject: bool = True) -> Plan:
    """One that drafts and judges in a loop."""
    stages = plan_of(draft=DraftSpec(engine="draft", unit=unit, max_tokens=9), verify=ChooseSpec(engine="target", unit=unit, reject=reject))
    return structs.replace(stages, block=Block(((LoopNode("loop", UntilSpec(thought_closed=True), stages.block, None),),)))


def written(folder: Path, rounds: list[tuple[list[str], int | None, bool | None]]) -> dict[str, int]:
    """A run of one problem for each round: its drafts' answers, the chosen one, the verdict on the chain. 5 is right."""
    store = RunStore(folder)
    for number, (answers, chosen, correct) in enumerate(rounds):
        drafts = tuple(THOUGHT.format(3, answer) if answer[0].isdigit() else answer for answer in answers)
        step = blank(StepRow, chain_id=f"p{number}#0", chosen_candidate=chosen, candidate_texts=drafts, **CHOOSE)
        store.append("steps", [step])
        store.append("chains", [blank(ChainRow, chain_id=f"p{number}#0", grader="math", reference_answer="5", correct=correct)])
    store.close()
    return {f"p{number}#0": number for number in range(len(rounds))}


def placed(run: Path, place: dict[str, int]) -> Query:
    """The run, with the problems of its finished chains as a table."""
    db = Query(run)
    db.register("places", run=db.names * len(place), chain_id=list(place), problem=list(place.values()))
    return db


def test_classes_and_predictions(tmp_path: Path) -> None:
    place = written(
        tmp_path,
        [
            (["5", "5.0", "7"], 1, True),  # class 1, right
            (["5", "6"], 1, False),  # class 1, a wrong draft selected
            (["5"], None, True),  # class 1, all rejected
            (["6", "7"], None, True),  # class 2, right
            (["6"], 0, True),  # class 2, wrong; and the chain was right for all that
        ],
    )
    del place["p2#0"]  # a chain that failed
    found = read_choices(placed(tmp_path, place), plan())
    assert found is not None
    assert found.problem.tolist() == [0, 1, 3, 4]
    assert found.right_drafted.tolist() == [1, 1, 0, 0]
    assert found.picked_right.tolist() == [1, 0, 0, 0]
    assert found.rejected.tolist() == [0, 0, 1, 0]
    assert found.may_reject


def test_what_nobody_knows_is_left_out(tmp_path: Path) -> None:
    unknown = "... I do not know"
    place = written(
        tmp_path,
        [
            ([unknown, "7"], 1, False),  # the first draft may be right
            ([unknown, "5"], 1, True),  # class 1 whatever it is
            ([unknown, "5"], 0, True),  # class 1, and the selected draft is not known
            ([unknown], None, False),
        ],
    )
    found = read_choices(placed(tmp_path, place), plan())
    assert found is not None
    assert (found.problem.tolist(), found.right_drafted.tolist(), found.picked_right.tolist()) == ([1], [1.0], [1.0])


def test_choosers_of_steps_have_none_of_this(tmp_path: Path) -> None:
    place = written(tmp_path, [(["5"], 0, True)])
    assert read_choices(placed(tmp_path, place), plan("step")) is None
    assert read_choices(placed(tmp_path, place), plan_of()) is None
    best_of_n = read_choices(placed(tmp_path, place), plan(reject=False))
    assert best_of_n is not None
    assert not best_of_n.may_reject
