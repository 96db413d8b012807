"""The figures of a run that the papers print, with intervals: tables of runs enter, a `Compared` for each run leaves. Pure."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate, change, difference, estimate, gain, outcomes, ratio, share
from pipeline.analysis.quality.option_mass import OptionMass, option_mass
from pipeline.analysis.quality.reward_agreement import Agreement, agreement
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.analysis.quality.step_quality import Quality
from pipeline.analysis.quality.step_texts import Texts
from pipeline.analysis.resources import answers
from pipeline.graph.spec import Param

THINKING = ("drafting", "verification", "target")
"""What a chain does in its thinking stage; see `thinking.KINDS`."""


class Difference(Struct, frozen=True, kw_only=True):
    """How one run differs from another: in accuracy on the problems that both have, in all else on those that both finished."""

    over: str
    """Name of the other run."""
    problems: int
    """How many both finished."""
    accuracy_gain: Estimate
    """Accuracy of this run less that of the other."""
    token_change: Estimate
    """Relative change of committed tokens: -0.5 is half as many (SpecCoT 4.2)."""
    thought_change: Estimate
    """Relative change of the tokens of thoughts."""
    answer_change: Estimate
    """Relative change of the tokens after the thought."""
    speed_up: Estimate
    """Latency of the other over that of this run: r of SpecCoT table 2."""
    thinking_speed_up: Estimate
    """The same of the thinking stage alone: the speed-up of SCoT table 1."""
    fallback_change: Estimate
    """Fallback rate of this run less that of the other."""
    draft_share_change: Estimate
    """Share of steps by the draft in this run, less that in the other."""


def differ(run: RunTable, base: RunTable) -> Difference:
    """How `run` differs from `base`, problem by problem."""
    ours, theirs = _paired(run, base, np.ones(len(run.graded)), np.ones(len(base.graded)))
    right = gain(run.right[ours], run.graded[ours], base.right[theirs], base.graded[theirs])
    ours, theirs = _paired(run, base, run.finished, base.finished)
    tokens, base_tokens = run.thought_tokens + run.answer_tokens, base.thought_tokens + base.answer_tokens
    verified, base_verified = run.accepted + run.fallbacks, base.accepted + base.fallbacks
    return Difference(
        over=base.name,
        problems=len(ours),
        accuracy_gain=right,
        token_change=change(tokens[ours], base_tokens[theirs]),
        thought_change=change(run.thought_tokens[ours], base.thought_tokens[theirs]),
        answer_change=change(run.answer_tokens[ours], base.answer_tokens[theirs]),
        speed_up=ratio(base.latency_s[theirs], run.latency_s[ours]),
        thinking_speed_up=ratio(base.thinking_s[theirs], run.thinking_s[ours]),
        fallback_change=gain(run.fallbacks[ours], verified[ours], base.fallbacks[theirs], base_verified[theirs]),
        draft_share_change=gain(run.accepted[ours], run.steps[ours], base.accepted[theirs], base.steps[theirs]),
    )


def _paired(run: RunTable, base: RunTable, ours: Array, theirs: Array) -> tuple[Array, Array]:
    """Indices of the problems that both have, in the arrays of each run; of each only those that `ours` and `theirs` mark."""
    place = {problem: i for i, problem in enumerate(base.problem_ids) if theirs[i]}
    common = [(i, place[problem]) for i, problem in enumerate(run.problem_ids) if ours[i] and problem in place]
    both = np.array(common, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class Selection(Struct, frozen=True):
    """How well a verifier chose among whole drafted thoughts (SCoT 4.4)."""

    class_1: int
    """ThoughtChoices with at least one right draft."""
    class_1_right: Estimate
    """Share of the class 1 choices in which a right draft was selected."""
    by_chance: Estimate
    """Share of the drafts in class 1 choices that are right: the expected `class_1_right` of a random choice."""
    class_2: int
    """ThoughtChoices without a right draft."""
    class_2_right: Estimate
    """Share of the class 2 choices in which all drafts were rejected; null where that was no option."""
    agreement: Estimate
    """Share of selected drafts whose answer, as found in the thought, was graded as the chain's answer was."""
    unknown: int
    """ThoughtChoices in neither class: drafts state no answer, so that nobody knows whether any is right, or the selected one."""


class StepQuality(Struct, frozen=True):
    """Mean rewards that a process reward model gave to steps, 0 to 1 (SpecCoT table 5)."""

    model: str
    """The reward model."""
    drafted: Estimate
    """Reward of all candidates: mean over steps of the mean over each step's candidates."""
    selected_from: Estimate
    """The same mean over steps of which a candidate was selected."""
    selected: Estimate
    """Reward of the selected candidates."""
    gain: Estimate
    """`selected` less `selected_from`: what selecting adds, on the same steps."""
    fallback: Estimate
    """Reward of steps that the target wrote after rejecting all candidates."""


class Compared(Struct, frozen=True, kw_only=True):
    """The figures of one run, and how it differs from the baseline. Tokens and seconds are means over problems."""

    run: str
    """Its name."""
    dataset: str = ""
    """The name of what it solved; see `compare.datasets`."""
    pooled: tuple[str, ...] = ()
    """The runs that it pools, which differ in their seeds alone; empty for one run."""
    graph: str
    models: dict[str, str]
    """By role."""
    schedule: str
    batch_size: int
    resources: str
    simulated: bool
    answers: str | None = None
    """`simulated` or `recorded` where models did not give its answers; see `resources.answers`."""
    fit_error: float | None = None
    """Of simulated engines with fitted rates: the greatest error of their calls' times, as the mean of |ln|."""
    params: dict[str, Param]
    problems: int
    """Problems with a finished chain."""
    samples: int
    """Chains for each problem."""
    failed: int
    """Chains that failed: they count as wrong, and are in no other figure."""
    cancelled: int
    """Chains that were cancelled, which are in no figure."""
    accuracy: Estimate
    """pass@1, with the same interval as in summaries (`samples.interval`)."""
    pass_at: dict[str, float]
    """pass@k by k; see `samples.pass_at`."""
    majority_accuracy: float | None
    """Share of problems whose most frequent answer is right, 0 to 1; null with one sample a problem."""
    tokens: Estimate
    """Committed tokens, of thought and answer."""
    thought_tokens: Estimate
    """Tokens of the thought."""
    answer_tokens: Estimate
    """Tokens sampled after the thought (SCoT table 3)."""
    output_tokens: dict[str, Estimate]
    """Tokens sampled by each role, whatever became of them."""
    speculated_tokens: dict[str, int]
    """Tokens that token-level speculation inside an engine proposed, by role, over the whole run."""
    accepted_speculated_tokens: dict[str, int]
    """Those of them that were accepted."""
    latency_s: Estimate
    """Seconds of a problem, from admission to the end; at larger batch sizes this includes waiting for other chains."""
    thinking_s: Estimate
    """Seconds from the first call of a problem to the end of its thought (SCoT 4.2)."""
    thinking_shares: dict[str, Estimate]
    """Shares of the time of thinking, 0 to 1: `drafting`, `verification`, and `target`, by the engine that writes (SCoT 4.2)."""
    target_thought_tokens: Estimate
    """Tokens of the thought that were not drafted, per problem: those of the target in SCoT table 1."""
    longest_draft_tokens: Estimate
    """Tokens of the longest candidate of each round, added up over a problem: those of the draft in SCoT table 1."""
    fallback_rate: Estimate
    """Steps written by a fallback over steps that were verified (SpecCoT 4.4.2)."""
    draft_share: Estimate
    """Steps by the draft over all steps (SpecReason 5.2)."""
    wall_time_s: float | None
    """Wall time of the whole run; the mean of pooled ones. Null if chains failed, as their time does not measure speed."""
    generated_tokens_per_s: float | None
    """Tokens that all roles sampled, whatever became of them, over wall time."""
    kept_tokens_per_s: float | None
    """Kept tokens, those of thoughts and answers, over wall time (SpecCoT table 6)."""
    text_tokens: dict[str, Estimate]
    """Tokens of a text by its kind: `drafted`, `longest` of a round, `accepted`, `rejected`, `fallback`."""
    reflective: dict[str, Estimate]
    """Words of second thoughts (`step_texts.REFLECTIVE`) per 1,000 words, by kind of text (SpecCoT A.1)."""
    reflective_gain: Estimate
    """`reflective` of fallback steps less that of drafts."""
    selection: Selection | None
    """Null for runs that do not choose among whole thoughts."""
    quality: StepQuality | None
    """Null for runs without a rewards table."""
    option_mass: OptionMass | None
    """Probability on the valid options of verifications; null without any that says."""
    agreement: Agreement | None
    """Scores of speculated steps against rewards; null for runs without both (SpecReason figure 7)."""
    over_baseline: Difference


def figures(run: RunTable, base: RunTable) -> Compared:
    """The figures of `run`, and how they differ from those of `base`."""
    tokens = run.thought_tokens + run.answer_tokens
    verified = run.accepted + run.fallbacks
    wall_s = None if run.lost else run.wall_time_s
    thinking = sum((run.kinds_s[kind] for kind in THINKING), np.zeros(len(run.chains)))
    return Compared(
        run=run.name,
        pooled=run.pooled,
        graph=run.graph,
        models=run.models,
        schedule=run.schedule,
        batch_size=run.batch_size,
        resources=run.resources.label,
        simulated=run.simulated,
        answers=answers(run.facts.values()) if run.facts else "simulated" if run.simulated else None,
        fit_error=max((each.fit_error for each in run.facts.values() if each.fit_error is not None), default=None),
        params=run.params,
        problems=int(run.finished.sum()),
        samples=run.samples,
        failed=run.failed,
        cancelled=run.cancelled,
        accuracy=_accuracy(run),
        pass_at={str(k): value for k, value in run.sample_statistics.pass_at.items()},
        majority_accuracy=run.sample_statistics.majority,
        tokens=ratio(tokens, run.finished),
        thought_tokens=ratio(run.thought_tokens, run.finished),
        answer_tokens=ratio(run.answer_tokens, run.finished),
        output_tokens={role: ratio(each, run.finished) for role, each in run.output_tokens.items()},
        speculated_tokens={role: count.proposed for role, count in run.speculation.items()},
        accepted_speculated_tokens={role: count.accepted for role, count in run.speculation.items()},
        latency_s=ratio(run.latency_s, run.finished),
        thinking_s=ratio(run.thinking_s, run.finished),
        thinking_shares={kind: ratio(run.kinds_s[kind], thinking) for kind in THINKING},
        target_thought_tokens=_written(run),
        longest_draft_tokens=ratio(run.texts["longest"].tokens, run.chains) if "longest" in run.texts else NOTHING,
        fallback_rate=share(run.fallbacks, verified),
        # A graph without drafts has no share, rather than a share of 0.
        draft_share=share(run.accepted, run.steps) if verified.any() else NOTHING,
        wall_time_s=wall_s,
        generated_tokens_per_s=_per_s(sum(run.output_tokens.values(), np.zeros(len(run.chains))), run, wall_s),
        kept_tokens_per_s=_per_s(tokens, run, wall_s),
        text_tokens={kind: ratio(text.tokens, text.count) for kind, text in run.texts.items()},
        reflective={kind: _per_1000(text) for kind, text in run.texts.items()},
        reflective_gain=_reflective_gain(run.texts),
        selection=_selection(run.choices) if run.choices else None,
        quality=_quality(run.quality) if run.quality else None,
        option_mass=option_mass(run.masses),
        agreement=agreement(run.scored) if run.scored else None,
        over_baseline=differ(run, base),
    )


def _per_s(tokens: Array, run: RunTable, wall_s: float | None) -> float | None:
    """Tokens of a run over its wall time, the mean one of pooled runs; `tokens` are means over the samples of each problem."""
    return float((tokens * run.chains).sum()) / wall_s / max(1, len(run.pooled)) if wall_s else None


def _accuracy(run: RunTable) -> Estimate:
    bounds, graded = run.sample_statistics.interval, run.graded.sum()
    return NOTHING if bounds is None else Estimate(float(run.right.sum() / graded), bounds.low, bounds.high)


def _written(run: RunTable) -> Estimate:
    """Committed tokens of thoughts less those of accepted candidates, per problem: the mean over its samples."""
    drafted = run.texts["accepted"].tokens if "accepted" in run.texts else np.zeros(len(run.chains))
    return ratio(run.thought_tokens - drafted / np.maximum(run.chains, 1), run.finished)


def _per_1000(text: Texts) -> Estimate:
    return ratio(1000 * text.reflective, text.words)


def _reflective_gain(texts: Mapping[str, Texts]) -> Estimate:
    if not {"fallback", "drafted"} <= texts.keys():
        return NOTHING
    fallback, drafted = texts["fallback"], texts["drafted"]
    return difference(1000 * fallback.reflective, fallback.words, 1000 * drafted.reflective, drafted.words)


def _selection(choices: ThoughtChoices) -> Selection:
    first = choices.right_drafts > 0
    second, judged = ~first, ~np.isnan(choices.agrees)
    return Selection(
        class_1=int(first.sum()),
        class_1_right=outcomes(choices.problem[first], choices.picked_right[first]),
        by_chance=ratio(np.bincount(choices.problem[first], choices.right_drafts[first]), np.bincount(choices.problem[first])),
        class_2=int(second.sum()),
        class_2_right=outcomes(choices.problem[second], choices.rejected[second]) if choices.may_reject else NOTHING,
        agreement=outcomes(choices.problem[judged], choices.agrees[judged]),
        unknown=choices.unknown,
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
