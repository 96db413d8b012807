"""How well a verifier chooses among whole drafted thoughts: steps and chains of runs enter, an outcome for each chain leaves.

A draft is graded by the answer that its thought states, found by `grading.stated`; one that states none is neither right nor wrong, and
where that leaves open whether any draft is right, or the selected one, the choice is left out.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.grading.answers import Kind, as_kind, form_of
from pipeline.grading.grader import Grader
from pipeline.grading.stated import stated
from pipeline.graph.plan import Plan, StageNode
from pipeline.store.query import Query

SQL = """
SELECT places.problem, chains.sample_index, step_index, chosen_candidate, candidate_texts, grader, reference_answer
FROM steps JOIN places USING (run, chain_id) JOIN chains USING (run, chain_id)
WHERE score_of_candidates AND len(candidate_texts) > 0 AND reference_answer IS NOT NULL
"""


class ThoughtChoices(Struct, frozen=True):
    """ThoughtChoices among whole thoughts, for problems with a reference answer; the arrays have one element for each choice."""

    problem: Array
    """Index of its problem."""
    right_drafted: Array
    """1 where a draft is right (SCoT 4.4: class 1), else 0 (class 2)."""
    rejected: Array
    """1 where all drafts were rejected, else 0."""
    picked_right: Array
    """1 where a right draft was selected, else 0."""
    may_reject: bool
    """Whether the verifier could reject all drafts."""


def draft_is_right(thought: str, kind: Kind, reference: str, grader: Grader) -> bool | None:
    """Whether the answer that a drafted thought states is right; None where it states none, or it cannot be graded."""
    said = stated(thought, form_of(kind, reference))
    return None if said is None else grader.grade(kind, said, reference).correct


def read_choices(db: Query, plan: Plan) -> ThoughtChoices | None:
    """The choices of the chains in `places`, see `by_problem.place_chains`, whose `plan` judges whole thoughts; None for plans that judge
    steps or nothing."""
    judges = [node.spec for node in plan.stages() if node.spec.judges]
    if not judges or not _drafts_thoughts(plan):
        return None
    with Grader() as grader:  # starts no process but for answers that `quick_grade` cannot decide
        found = list(_choices(db, grader))
    rows = sorted((row for row in found if row is not None), key=itemgetter(0))
    right_drafted, rejected, picked_right = np.array([row[1:] for row in rows], float).reshape(-1, 3).T
    problem, may_reject = np.array([row[0][0] for row in rows], int), any(spec.may_reject for spec in judges)
    return ThoughtChoices(problem, right_drafted, rejected, picked_right, may_reject)


def _drafts_thoughts(plan: Plan) -> bool:
    """Whether all drafts are whole thoughts: drafted outside loops, or by stages whose unit is the thought."""
    top = [node.spec for level in plan.block.levels for node in level if isinstance(node, StageNode)]
    drafts = [node.spec for node in plan.stages() if node.spec.drafts]
    return all(any(spec is each for each in top) or getattr(spec, "unit", None) == "thought" for spec in drafts)


def _choices(db: Query, grader: Grader) -> Iterator[tuple[Any, ...] | None]:
    """Where each choice was made, and its row of the arrays; None where nobody knows if a draft, or the selected one, is right."""
    for problem, sample, step, chosen, texts, kind, reference in db.stream(SQL):
        right = [draft_is_right(text, as_kind(kind), reference, grader) for text in texts]
        if (None in right and True not in right) or (chosen is not None and right[chosen] is None):
            yield None
            continue
        yield (problem, sample, step), float(True in right), float(chosen is None), float(chosen is not None and right[chosen] is True)
