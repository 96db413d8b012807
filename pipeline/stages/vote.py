"""`vote`: takes a candidate whose answer most candidates give (self-consistency), without a call to any engine."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from pipeline.grading.answers import Canonical, canonical
from pipeline.grading.stated import stated
from pipeline.reasoning.chain import Scale
from pipeline.stages.function_judge import kind_of

Votes = Annotated[int, Meta(ge=1, le=10_000, description="Minimum number of votes for the winner; with fewer, all are rejected.")]


def majority_vote(problem: str, thought: str, candidates: Sequence[str], *, least_votes: Votes = 1) -> tuple[int | None, float]:
    """Accept the first candidate whose answer is the most frequent one, if that has `least_votes`.

    A candidate's answer is the one that it marks, else its last number or formula; candidates with neither do not vote. Equal answers count
    as one (Wang et al., Self-Consistency Improves Chain of Thought Reasoning, section 2).
    """
    answers = [_answer(text) for text in candidates]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return None, 0.0
    winner, most = votes.most_common(1)[0]
    share = most / len(candidates)
    return (answers.index(winner) if most >= least_votes else None), share


def _answer(text: str) -> Canonical | None:
    """The answer that a candidate gives; None where it gives none."""
    said = stated(text)
    return None if said is None else canonical(said.text)


KIND = kind_of(majority_vote, "vote", Scale("share of votes", 0.0, 1.0), distinct=False)
