"""Tables of steps and drafts: fallback of the pairs, selection, quality, lengths, second thoughts. Pure."""

from pipeline.analysis.compare.cells import Table, number, percent, reward
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.compare.systems import pair, system

LENGTHS = ("drafted", "longest", "accepted", "rejected", "fallback")
REFLECTIVE = ("drafted", "accepted", "fallback")


def pairs(c: Comparison) -> Table:
    """Fallback rate, tokens and time of pairs of models: SpecCoT table 3."""
    columns = ("run", "system", "models", "accuracy", "tokens", "time s", "fallback", "steps by the draft")
    rows = [
        (
            run.run,
            system(run),
            pair(run),
            percent(run.accuracy),
            number(run.tokens),
            number(run.latency_s),
            percent(run.fallback_rate),
            percent(run.draft_share),
        )
        for run in c.runs
        if run.fallback_rate.value is not None
    ]
    return Table("Fallback of the pairs (SpecCoT table 3), and steps by the draft (SpecReason 5.2)", columns, tuple(rows))


def selection(c: Comparison) -> Table:
    """How well whole thoughts are chosen: SCoT 4.4."""
    columns = ("run", "system", "class 1", "a right draft selected", "by chance", "class 2", "all rejected", "agreement")
    rows = []
    for run in c.runs:
        if chosen := run.selection:
            first, blind = percent(chosen.class_1_right), percent(chosen.by_chance)
            second, agreement = percent(chosen.class_2_right), percent(chosen.agreement)
            rows.append((run.run, system(run), f"{chosen.class_1:,}", first, blind, f"{chosen.class_2:,}", second, agreement))
    note = (
        "Class 1: at least one of the drafted thoughts comes to the right answer; class 2: none does. By chance: share of the drafts "
        "that are right. Agreement: selected drafts whose own answer, as found in the thought, has the verdict that the chain got."
    )
    return Table("Selection among whole thoughts, by class (SCoT 4.4)", columns, tuple(rows), note)


def quality(c: Comparison) -> Table:
    """Rewards of drafted and selected steps: SpecCoT table 5."""
    columns = ("run", "system", "reward model", "drafts", "drafts of steps with a selection", "selected", "gain", "fallback steps")
    rows = []
    for run in c.runs:
        if q := run.quality:
            gain = reward(q.gain, sign=True)
            rows.append(
                (run.run, system(run), q.model, reward(q.drafted), reward(q.selected_from), reward(q.selected), gain, reward(q.fallback))
            )
    note = (
        "Rewards, 0 to 1. The gain is that of selecting, on the same steps: selected less the mean of the candidates it was selected from."
    )
    return Table("Quality of drafted and of selected steps (SpecCoT table 5)", columns, tuple(rows), note)


def draft_lengths(c: Comparison) -> Table:
    """Tokens of drafts: SCoT tables 1 and 2."""
    runs = [run for run in c.runs if "drafted" in run.text_tokens]
    kinds = [kind for kind in LENGTHS if any(kind in run.text_tokens for run in runs)]
    rows = [(run.run, system(run), *(number(run.text_tokens[kind]) if kind in run.text_tokens else "-" for kind in kinds)) for run in runs]
    note = (
        "Of all candidates, of the longest of each round, of accepted ones, of those turned down all together, of what was written instead."
    )
    return Table("Tokens of a drafted step or thought (SCoT tables 1 and 2)", ("run", "system", *kinds), tuple(rows), note)


def reflective(c: Comparison) -> Table:
    """Words of second thoughts: SpecCoT A.1."""
    runs = [run for run in c.runs if "drafted" in run.reflective]
    kinds = [kind for kind in REFLECTIVE if any(kind in run.reflective for run in runs)]
    rows = [
        (
            run.run,
            system(run),
            *(number(run.reflective[kind]) if kind in run.reflective else "-" for kind in kinds),
            number(run.reflective_gain, sign=True),
        )
        for run in runs
    ]
    return Table("Words of second thoughts per 1,000 words (SpecCoT A.1)", ("run", "system", *kinds, "fallback over drafts"), tuple(rows))
