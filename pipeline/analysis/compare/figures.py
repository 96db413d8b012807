"""One run as the figures that the papers print, and how it differs from another one, with intervals. Pure: tables of runs enter."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate, change, difference, estimate, gain, mean, outcomes, ratio, share
from pipeline.analysis.quality.selection import Choices
from pipeline.analysis.quality.step_quality import Quality
from pipeline.analysis.quality.step_texts import Texts
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


class Selection(Struct, frozen=True):
    """Choices among whole drafted thoughts (SCoT 4.4)."""

    class_1: int
    """Choices with at least one right draft."""
    class_1_right: Estimate
    """Of those: a right draft was selected."""
    by_chance: Estimate
    """Of those: share of the drafts that are right, what a blind choice would come to."""
    class_2: int
    """Choices without a right draft."""
    class_2_right: Estimate
    """Of those: all were turned down. Null where that was no option."""
    agreement: Estimate
    """Of selected drafts: the answer found in the thought has the same verdict as the chain."""


class StepQuality(Struct, frozen=True):
    """Rewards of a process reward model, 0 to 1 (SpecCoT table 5)."""

    model: str
    drafted: Estimate
    """Mean over all steps of the mean over their candidates."""
    selected_from: Estimate
    """The same over steps of which a candidate was selected."""
    selected: Estimate
    """That candidate's."""
    gain: Estimate
    """`selected` less `selected_from`: what selecting adds, on the same steps."""
    fallback: Estimate
    """Of the steps that the target wrote instead."""


class Compared(Struct, frozen=True, kw_only=True):
    """One run, and how it differs from the baseline. Tokens and seconds are means over problems."""

    run: str
    graph: str
    models: dict[str, str]
    schedule: str
    batch_size: int
    resources: str
    simulated: bool
    params: dict[str, bool | int | float | str]
    problems: int
    samples: int
    failed: int
    accuracy: Estimate
    """pass@1, with the interval that summaries say (`samples.interval`)."""
    pass_at: dict[str, float]
    majority_accuracy: float | None
    tokens: Estimate
    """Committed: thought and answer."""
    thought_tokens: Estimate
    answer_tokens: Estimate
    """Sampled after the thought (SCoT table 3)."""
    output_tokens: dict[str, Estimate]
    """Sampled by each role, whatever became of them."""
    speculated_tokens: dict[str, int]
    """Proposed inside each engine that speculates, over the whole run."""
    accepted_speculated_tokens: dict[str, int]
    latency_s: Estimate
    """Per problem, from admission to the end; at larger batches it holds the waiting for others."""
    fallback_rate: Estimate
    """Steps written by a fallback over steps that were verified (SpecCoT 4.4.2)."""
    draft_share: Estimate
    """Steps by the draft over all steps (SpecReason 5.2)."""
    wall_time_s: float
    tokens_per_s: float | None
    """Committed tokens over wall time (SpecCoT table 6)."""
    text_tokens: dict[str, Estimate]
    """Tokens of a text by its kind: `drafted`, `longest` of a round, `accepted`, `rejected`, `fallback`."""
    reflective: dict[str, Estimate]
    """Words of second thoughts per 1,000 words, by kind of text (SpecCoT A.1)."""
    reflective_gain: Estimate
    """Of fallback steps over drafts."""
    selection: Selection | None
    quality: StepQuality | None
    over_baseline: Difference


def figures(run: RunTable, base: RunTable) -> Compared:
    """The figures of `run`, and how they differ from those of `base`."""
    tokens = run.thought_tokens + run.answer_tokens
    verified = run.accepted + run.fallbacks
    return Compared(
        run=run.name,
        graph=run.graph,
        models=run.models,
        schedule=run.schedule,
        batch_size=run.batch_size,
        resources=run.resources.label,
        simulated=run.simulated,
        params=run.params,
        problems=len(run.problem_ids),
        samples=run.samples,
        failed=run.failed,
        accuracy=_accuracy(run),
        pass_at={str(k): value for k, value in run.sample_statistics.pass_at.items()},
        majority_accuracy=run.sample_statistics.majority,
        tokens=mean(tokens),
        thought_tokens=mean(run.thought_tokens),
        answer_tokens=mean(run.answer_tokens),
        output_tokens={role: mean(each) for role, each in run.output_tokens.items()},
        speculated_tokens={role: count.proposed for role, count in run.speculation.items()},
        accepted_speculated_tokens={role: count.accepted for role, count in run.speculation.items()},
        latency_s=mean(run.latency_s),
        fallback_rate=share(run.fallbacks, verified),
        # Of graphs that draft nothing 0 would be no finding.
        draft_share=share(run.accepted, run.steps) if verified.any() else NOTHING,
        wall_time_s=run.wall_time_s,
        tokens_per_s=float((tokens * run.chains).sum()) / run.wall_time_s if run.wall_time_s else None,
        text_tokens={kind: ratio(text.tokens, text.count) for kind, text in run.texts.items()},
        reflective={kind: _per_1000(text) for kind, text in run.texts.items()},
        reflective_gain=_reflective_gain(run.texts),
        selection=_selection(run.choices) if run.choices else None,
        quality=_quality(run.quality) if run.quality else None,
        over_baseline=differ(run, base),
    )


def _accuracy(run: RunTable) -> Estimate:
    bounds, graded = run.sample_statistics.interval, run.graded.sum()
    return NOTHING if bounds is None else Estimate(float(run.right.sum() / graded), bounds.low, bounds.high)


def _per_1000(text: Texts) -> Estimate:
    return ratio(1000 * text.reflective, text.words)


def _reflective_gain(texts: Mapping[str, Texts]) -> Estimate:
    if not {"fallback", "drafted"} <= texts.keys():
        return NOTHING
    fallback, drafted = texts["fallback"], texts["drafted"]
    return difference(1000 * fallback.reflective, fallback.words, 1000 * drafted.reflective, drafted.words)


def _selection(choices: Choices) -> Selection:
    first = choices.right_drafts > 0
    second, judged = ~first, ~np.isnan(choices.agrees)
    return Selection(
        class_1=int(first.sum()),
        class_1_right=outcomes(choices.problem[first], choices.picked_right[first]),
        by_chance=ratio(np.bincount(choices.problem[first], choices.right_drafts[first]), np.bincount(choices.problem[first])),
        class_2=int(second.sum()),
        class_2_right=outcomes(choices.problem[second], choices.rejected[second]) if choices.may_reject else NOTHING,
        agreement=outcomes(choices.problem[judged], choices.agrees[judged]),
    )


def _quality(q: Quality) -> StepQuality:
    gain = estimate(lambda selected, among, steps: (selected - among) / steps, q.selected, q.selected_from, q.selections)
    return StepQuality(
        q.model,
        ratio(q.drafted, q.steps),
        ratio(q.selected_from, q.selections),
        ratio(q.selected, q.selections),
        gain,
        ratio(q.fallback, q.fallbacks),
    )
