"""`vote`: takes a candidate whose answer most candidates give (self-consistency), without a call to any engine."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar

from msgspec import Meta

from pipeline.data.problems import Problem
from pipeline.grading.answers import Canonical, canonical
from pipeline.grading.stated import stated
from pipeline.graph.spec import StageSpec
from pipeline.reasoning.chain import Scale
from pipeline.stages.base import StageKind
from pipeline.stages.function_judge import FunctionJudge


class VoteSpec(StageSpec, frozen=True, kw_only=True, tag="vote"):
    """Accept the first candidate whose answer is the most frequent one. No engine is called."""

    judges: ClassVar[bool] = True

    least_votes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Minimum number of votes for the winner; with fewer, all are rejected."""


def majority_vote(problem: Problem, candidates: Sequence[str], *, least_votes: int) -> tuple[int | None, float]:
    """The first candidate whose answer is the most frequent one, if that has `least_votes`, and its share of the candidates.

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
    return None if said is None else canonical(said)


def _build(name: str, spec: VoteSpec, *others: object) -> FunctionJudge:
    counted = partial(majority_vote, least_votes=spec.least_votes)
    return FunctionJudge(name, spec, counted, Scale("share of votes", 0.0, 1.0), in_thread=False)


KIND = StageKind(spec=VoteSpec, build=_build)
