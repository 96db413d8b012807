"""One run over another, problem by problem. Pure."""

import numpy as np
from msgspec import Struct

from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import Estimate, change, gain, ratio
from pipeline.analysis.time.timeline import Array


class Difference(Struct, frozen=True, kw_only=True):
    """One run over another, on the problems that both finished."""

    over: str
    problems: int
    accuracy_gain: Estimate
    token_change: Estimate
    """Of committed tokens: -0.5 is half as many (SpecCoT 4.2)."""
    thought_change: Estimate
    answer_change: Estimate
    speed_up: Estimate
    """r of SpecCoT table 2: latency of the other over this one's."""
    fallback_change: Estimate
    draft_share_change: Estimate


def differ(run: RunTable, base: RunTable) -> Difference:
    """How `run` differs from `base`, problem by problem."""
    ours, theirs = _paired(run, base)
    tokens, base_tokens = run.thought_tokens + run.answer_tokens, base.thought_tokens + base.answer_tokens
    verified, base_verified = run.accepted + run.fallbacks, base.accepted + base.fallbacks
    return Difference(
        over=base.name,
        problems=len(ours),
        accuracy_gain=gain(run.right[ours], run.graded[ours], base.right[theirs], base.graded[theirs]),
        token_change=change(tokens[ours], base_tokens[theirs]),
        thought_change=change(run.thought_tokens[ours], base.thought_tokens[theirs]),
        answer_change=change(run.answer_tokens[ours], base.answer_tokens[theirs]),
        speed_up=ratio(base.latency_s[theirs], run.latency_s[ours]),
        fallback_change=gain(run.fallbacks[ours], verified[ours], base.fallbacks[theirs], base_verified[theirs]),
        draft_share_change=gain(run.accepted[ours], run.steps[ours], base.accepted[theirs], base.steps[theirs]),
    )


def _paired(run: RunTable, base: RunTable) -> tuple[Array, Array]:
    """Places of the problems that both have."""
    place = {problem: i for i, problem in enumerate(base.problem_ids)}
    common = [(i, place[problem]) for i, problem in enumerate(run.problem_ids) if problem in place]
    both = np.array(common, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
