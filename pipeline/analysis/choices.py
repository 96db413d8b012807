"""Choices among graded texts: the majority vote over the samples of a problem, and a verifier's choice among whole drafted thoughts (SCoT
4.4). Answers and steps enter, votes and outcomes leave.

Answers that `canonical` makes equal are one answer, and so are the right ones. A draft is graded by the answer that its thought states; one
that states none is neither right nor wrong, and where that leaves open whether any draft is right, or the selected one, the choice is left
out.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from pipeline.grading.answers import Kind, as_kind, canonical, form_of, is_percentage
from pipeline.grading.grader import Grader
from pipeline.grading.stated import stated
from pipeline.graph.plan import Plan, StageNode
from pipeline.store.query import Query

THOUGHTS = """
SELECT chosen_candidate, candidate_texts, grader, reference_answer FROM steps JOIN chains USING (chain_id)
WHERE score_of_candidates AND len(candidate_texts) > 0 AND reference_answer IS NOT NULL AND finished
"""

Sample: TypeAlias = tuple[bool, str | None]
"""Whether a graded chain is right, and its answer; without one it does not count in the majority vote."""


class Answer(Struct, frozen=True):
    """One answer to a problem, however its samples wrote it."""

    text: str
    """As the first of them wrote it."""
    votes: int
    first: int
    """Index of the first sample that gave it."""
    correct: bool


def ballot(samples: Sequence[Sample]) -> list[Answer]:
    """The answers of one problem's samples, those with most votes first, and among equally frequent ones the one given first."""
    places: dict[Hashable, list[int]] = {}
    for place, (correct, answer) in enumerate(samples):
        if answer is not None:
            places.setdefault(correct or (canonical(answer), is_percentage(answer)), []).append(place)
    found = [Answer(str(samples[first][1]), 1 + len(more), first, samples[first][0]) for first, *more in places.values()]
    return sorted(found, key=lambda answer: (-answer.votes, answer.first))


def majority(problems: Iterable[Sequence[Sample]]) -> float | None:
    """The share of problems whose most frequent answer is right; None without problems."""
    votes = [any(answer.correct for answer in ballot(samples)[:1]) for samples in problems]
    return sum(votes) / len(votes) if votes else None


class ThoughtChoice(Struct, frozen=True):
    """A verifier's choice among whole thoughts about a problem with a reference answer."""

    right_drafted: bool
    """Whether a draft is right (SCoT 4.4: class 1; else class 2)."""
    rejected: bool
    """Whether all drafts were rejected."""
    picked_right: bool
    """Whether a right draft was selected."""
    may_reject: bool
    """Whether the verifier could reject all drafts."""


def draft_is_right(thought: str, kind: Kind, reference: str, grader: Grader) -> bool | None:
    """Whether the answer that a drafted thought states is right; None where it states none, or it cannot be graded."""
    said = stated(thought, form_of(kind, reference))
    return None if said is None else grader.grade(kind, said, reference).correct


def read_choices(folders: Iterable[Path], plan: Plan) -> list[ThoughtChoice]:
    """The choices of the finished chains of runs with this `plan`; none where it judges steps, or nothing."""
    judges = [node.spec for node in plan.stages() if node.spec.judges]
    if not judges or not _drafts_thoughts(plan):
        return []
    may_reject = any(spec.may_reject for spec in judges)
    with Grader() as grader:  # starts no process but for answers that `quick_grade` cannot decide
        return [choice for folder in folders for choice in _choices(folder, grader, may_reject=may_reject)]


def _drafts_thoughts(plan: Plan) -> bool:
    """Whether all drafts are whole thoughts: drafted outside loops, or by stages whose unit is the thought."""
    top = [node.spec for level in plan.block.levels for node in level if isinstance(node, StageNode)]
    drafts = [node.spec for node in plan.stages() if node.spec.drafts]
    return all(any(spec is each for each in top) or getattr(spec, "unit", None) == "thought" for spec in drafts)


def _choices(folder: Path, grader: Grader, *, may_reject: bool) -> Iterator[ThoughtChoice]:
    with Query(folder) as db:
        for chosen, texts, kind, reference in db.stream(THOUGHTS):
            right = [draft_is_right(text, as_kind(kind), reference, grader) for text in texts]
            if (None in right and True not in right) or (chosen is not None and right[chosen] is None):
                continue
            yield ThoughtChoice(True in right, chosen is None, chosen is not None and right[chosen] is True, may_reject)
