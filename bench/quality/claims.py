"""What the papers claim, as data: where, in our words, their number, the runs that it takes, and from where on it holds."""

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.quality.judging import (
    Claim,
    Runs,
    best_draft,
    by_target,
    class_2,
    class_gap,
    gain_when_tight,
    over,
    saved_more,
    score_agreement,
    second_thoughts,
    selecting,
    throughput,
)
from pipeline.analysis.compare.cells import number, percent, reward
from pipeline.analysis.quality.estimates import Estimate


def points(e: Estimate) -> str:
    """A difference of shares."""
    return percent(e, sign=True)


def claim(where: str, says: str, theirs: str, runs: tuple[str, ...], measure: Callable[[Runs], Estimate], **more: Any) -> Claim:
    """That a difference of shares is above 0, where nothing else is said."""
    usual: dict[str, Any] = {"is_": "above", "bound": 0, "form": points}
    return Claim(where=where, says=says, theirs=theirs, runs=runs, measure=measure, **(usual | more))


def differs(where: str, says: str, theirs: str, run: str, base: str, of: str, **more: Any) -> Claim:
    """A claim about the `Difference` of one run over another."""
    return claim(where, says, theirs, (run, base), over(run, base, of), **more)


less = partial(differs, is_="below")
more_accurate = partial(differs, of="accuracy_gain")
as_accurate = partial(differs, of="accuracy_gain", bound=-0.01)
faster = partial(differs, of="speed_up", bound=1, form=number, timed=True)
slower = partial(faster, is_="below")

UNTUNED = "Without SCoT's training a bundled target never saw a choice among whole thoughts, as the paper's general models have."
TUNED = "Measured with the adapter of SCoT's training (section 3.4), which SpecCoT's target does not have."
TERSE = "Both models of `tiny` learnt from the same short solutions: neither is wordy, so that there is nothing to save."
PERFECT = "The target of `tiny` solves next to every problem: there is no room above it."
ALL_OR_NOTHING = "The target of `tiny` gives a step all points or none, so that no threshold between differs from another."
SMALL = "A bundled target costs little more a token than its draft, and a CPU gains little from reading many tokens at once."
SIMULATED = "Simulated: QwQ-32B and R1-Distill-Qwen-1.5B on H100s, a roofline with the rates calibrated on A100s (bench/calibration.md)."
SHARED = "The reward model of `tiny` shares five layers with the target that judges."
SAME_LABELS = "The reward model of `wordy` has no weights of the target; both learnt from the same generator what a right step is."
LANGUAGE = "The language of `tiny` has no words of second thoughts."

CLAIMS = (
    faster("SpecCoT 4.2, table 2", "faster than the target alone", "r = 1.7 to 4.1", "speccot", "target", note=SMALL),
    faster(
        "SpecCoT 4.2, table 2",
        "faster than the target alone, one problem at a time",
        "r = 2.0 to 3.3 (QwQ-32B)",
        "sim-speccot-2",
        "sim-target-2",
        timed=False,
        note=SIMULATED,
    ),
    less(
        "SpecCoT 4.2",
        "fewer committed tokens than the target alone",
        "-50.2 % (GSM8K, QwQ-32B)",
        "speccot",
        "target",
        "token_change",
        lacks=TERSE,
    ),
    as_accurate("SpecCoT 4.2, figure 3", "accuracy no more than a point below the target's", "comparable", "speccot", "target"),
    more_accurate("SpecCoT 4.2, figure 3", "accuracy above the draft's", "on all benchmarks", "speccot", "draft"),
    more_accurate(
        "SpecCoT 4.3, figure 4a", "more accurate with the target's first tokens than without", "on three data sets", "speccot", "guidance-0"
    ),
    less(
        "SpecCoT 4.3, figure 4b",
        "with 10 candidates the fallback rate is below that with 1",
        "a substantial decrease",
        "candidates-10",
        "candidates-1",
        "fallback_change",
        lacks="The target of `tiny` never saw more than 5 candidates.",
    ),
    less("SpecCoT 4.3, figure 4b", "and with 5 candidates", "a substantial decrease", "candidates-5", "candidates-1", "fallback_change"),
    claim(
        "SpecCoT 4.4.3, table 4",
        "from 2 to 4 GPUs the target alone saves a larger share of its time",
        "35.3 % against 19.3 % (GSM8K, QwQ-32B)",
        ("sim-target-2", "sim-target-4", "sim-speccot-2", "sim-speccot-4"),
        saved_more,
        note=SIMULATED,
    ),
    claim(
        "SpecCoT A.1, table 5",
        "selected steps are better than the drafts they were selected from",
        "+0.023 (GSM8K)",
        ("speccot",),
        selecting,
        form=lambda e: reward(e, sign=True),
        lacks=SHARED,
        note=SAME_LABELS,
    ),
    claim(
        "SpecCoT A.1",
        "fallback steps hold more words of second thoughts than drafts",
        "no number",
        ("speccot",),
        second_thoughts,
        form=lambda e: number(e, sign=True),
        lacks=LANGUAGE,
    ),
    claim(
        "SpecCoT A.2, table 6",
        "at batch size 128 less wall time than at 1",
        "2.45 times",
        ("speccot-b1", "speccot-b128"),
        throughput,
        bound=1,
        form=number,
        timed=True,
    ),
    faster(
        "SpecCoT A.3",
        "faster with the draft model inside the target's engine too",
        "r = 1.11 and 1.20 (3.33 to 3.01 s, 15.68 to 13.07 s)",
        "speccot-decode",
        "vllm-speccot",
        note=SMALL,
    ),
    claim(
        "SCoT 3.2, figure 2",
        "with the best of its 5 drafts the draft model is more accurate than with one",
        "close to the 32B model",
        ("best-of-n", "draft"),
        best_draft,
    ),
    more_accurate(
        "SpecCoT 2.3, figure 1a", "and so it is with the one of 5 that the target picks", "no number", "best-of-n", "draft", note=TUNED
    ),
    more_accurate(
        "SpecCoT 2.3, figure 1b",
        "the draft model alone is more accurate behind the target's first tokens",
        "no number",
        "guided-draft",
        "draft",
    ),
    faster(
        "SCoT 4.2, table 1",
        "the thinking stage is faster than the target's alone",
        "r = 1.90 to 2.92",
        "scot",
        "target",
        of="thinking_speed_up",
        note=SMALL,
    ),
    claim(
        "SCoT 4.2, table 1",
        "less than half of the thinking tokens are the target's",
        "7.5 to 45.9 % by its figures",
        ("scot",),
        by_target,
        is_="below",
        bound=0.5,
        form=percent,
    ),
    as_accurate("SCoT 4.2, figure 4", "accuracy no more than a point below the target's", "near it on all data sets", "scot", "target"),
    more_accurate("SCoT 4.2, figure 4", "accuracy above the draft's", "clearly superior", "scot", "draft"),
    more_accurate("SCoT 4.3", "more accurate with 5 drafts than with one", "on all data sets", "scot", "scot-single"),
    more_accurate(
        "SCoT 4.3",
        "more accurate with the tuned target's choice than with the untuned one's",
        "on all data sets",
        "scot",
        "scot-untuned",
        lacks="The untuned target of `tiny` rejects every draft and solves next to every problem itself: there is no room above it.",
        note=UNTUNED,
    ),
    more_accurate("SCoT 4.3", "more accurate with error correction than without", "on all data sets", "scot", "best-of-n"),
    claim("SCoT 4.4", "class 1 is predicted better than class 2", "class 2: about half, tuned", ("scot",), class_gap),
    claim(
        "SCoT 4.4",
        "an untuned target hardly ever (below 5 %) says that no draft is right where none is",
        "0 % of class 2",
        ("scot-untuned",),
        class_2,
        is_="below",
        bound=0.05,
        form=percent,
        lacks=UNTUNED,
        lacked_by=("tiny", "wordy"),
    ),
    less(
        "SCoT 4.5, table 3",
        "shorter answers than the target alone",
        "-14 % (GSM8K, 314 to 270 tokens)",
        "scot",
        "target",
        "answer_change",
        lacks="An answer of `tiny` is a box and nothing else.",
    ),
    faster("SpecReason 5.2, figure 3", "faster than the target alone", "r = 1.4 to 3.0", "specreason", "target", note=SMALL),
    more_accurate(
        "SpecReason 5.2, figure 3", "more accurate than the target alone", "+0.4 to +9.0 points", "specreason", "target", lacks=PERFECT
    ),
    less(
        "SpecReason 5.2, figure 4a",
        "shorter thoughts than the target alone",
        "1.2 to 2.0 times shorter",
        "specreason",
        "target",
        "thought_change",
        lacks=TERSE,
    ),
    claim(
        "SpecReason 5.2, figure 4b",
        "the gain in accuracy over the target is larger with a tight token budget",
        "+16.2 points at 4,096 tokens, +4.7 at 8,192 (AIME)",
        ("specreason-tight", "target-tight", "specreason", "target"),
        gain_when_tight,
        lacks=TERSE,
    ),
    less(
        "SpecReason 5.3, figure 5",
        "at threshold 7 fewer steps by the draft than at 3",
        "fewer are accepted",
        "specreason",
        "threshold-3",
        "draft_share_change",
        lacks=ALL_OR_NOTHING,
    ),
    slower(
        "SpecReason 5.3, figure 5",
        "at threshold 7 slower than at 3",
        "r = 0.52 (MATH, 35.7 to 69.2 s)",
        "specreason",
        "threshold-3",
        lacks=ALL_OR_NOTHING,
    ),
    more_accurate(
        "SpecReason 5.3, figure 5",
        "at threshold 7 more accurate than at 3",
        "+4.3 points (MATH)",
        "specreason",
        "threshold-3",
        lacks=ALL_OR_NOTHING,
    ),
    more_accurate(
        "SpecReason 5.3, figure 6",
        "more accurate when the target writes the first steps",
        "33.2 to 37.3 % (n = 0 to 40)",
        "first-2",
        "specreason",
        lacks=PERFECT,
    ),
    slower("SpecReason 5.3, figure 6", "and slower", "r = 0.92 (270.4 to 292.6 s)", "first-2", "specreason"),
    claim(
        "SpecReason 5.4, figure 7",
        "scores of drafted steps agree with the rewards of a reward model (correlation above 0.5)",
        "a strong correlation",
        ("specreason",),
        score_agreement,
        bound=0.5,
        form=lambda e: number(e, sign=True),
        lacks=SHARED,
        note=SAME_LABELS,
    ),
    faster(
        "SpecReason 5.2", "SpecReason+Decode faster than SpecReason", "r = 1.6 to 2.2", "specreason-decode", "vllm-specreason", note=SMALL
    ),
    faster(
        "SpecReason 5.2",
        "SpecReason+Decode faster than speculative decoding alone",
        "8.8 to 58.0 % less latency",
        "specreason-decode",
        "speculative-decoding",
        note=SMALL,
    ),
)
