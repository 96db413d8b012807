"""The figures of a run that the papers print, with intervals: tables of runs enter, a `Compared` for each run leaves.

A figure is computed, and its data read, on first use.
"""

from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.by_problem import Quality
from pipeline.analysis.quality.estimates import NOTHING, Estimate, factor, gain, outcomes, ratio, share
from pipeline.analysis.quality.reward_agreement import Agreement, agreement
from pipeline.analysis.quality.samples import interval_of
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.analysis.resources import answers

PLAIN = ("pooled", "graph", "models", "schedule", "batch_size", "simulated", "params", "samples", "failed", "cancelled")
"""Fields of a `RunTable` that are written with its figures."""


class Figures:
    """Figures that are worked out when they are first asked for: the cached properties of a class whose names are public."""

    def as_dict(self) -> dict[str, Any]:
        """All figures by their names."""
        names = [name for name, each in vars(type(self)).items() if isinstance(each, cached_property) and not name.startswith("_")]
        return {name: getattr(self, name) for name in names}


class Difference(Figures):
    """How one run differs from another: in accuracy on the problems that both have, in all else on those that both finished."""

    def __init__(self, run: RunTable, base: RunTable) -> None:
        self._run, self._base = run, base
        self._both = _common(run, base, run.finished, base.finished)

    def _pair(self, name: str) -> tuple[Array, Array]:
        """A column of the other run and of this one, over the problems that both finished."""
        ours, theirs = self._both
        return getattr(self._base, name)[theirs], getattr(self._run, name)[ours]

    @cached_property
    def over(self) -> str:
        """Name of the other run."""
        return self._base.name

    @cached_property
    def problems(self) -> int:
        """The number of problems that both finished."""
        return len(self._both[0])

    @cached_property
    def accuracy_gain(self) -> Estimate:
        """Accuracy of this run minus the other's."""
        run, base = self._run, self._base
        ours, theirs = _common(run, base, np.ones(len(run.graded)), np.ones(len(base.graded)))
        return gain(run.right[ours], run.graded[ours], base.right[theirs], base.graded[theirs])

    @cached_property
    def speed_up(self) -> Estimate:
        """Latency of the other run over this one's: r of SpecCoT table 2."""
        return factor(self._pair("latency_s"))

    @cached_property
    def token_factor(self) -> Estimate:
        """The part of `speed_up` that is shorter text: committed tokens of the other over those of this run."""
        return factor(self._pair("tokens"))

    @cached_property
    def rate_factor(self) -> Estimate:
        """The part of `speed_up` that is speed: committed tokens per second of latency in this run over those in the other. The product of
        both factors is `speed_up`."""
        return factor(self._pair("tokens")[::-1], self._pair("latency_s"))

    @cached_property
    def thinking_speed_up(self) -> Estimate:
        """The same of the thinking stage alone: the speed-up of SCoT table 1."""
        ours, theirs = self._both
        return factor((self._base.details.thinking_s[theirs], self._run.details.thinking_s[ours]))


Places = tuple[Array, Array]
"""Indices of the same problems in the arrays of two runs."""


def _common(run: RunTable, base: RunTable, ours: Array, theirs: Array) -> Places:
    """Where the problems are that both runs have; of each run only those that `ours` and `theirs` mark."""
    if run.problem_ids == base.problem_ids:
        same = np.flatnonzero((ours > 0) & (theirs > 0))
        return same, same
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
    class_2: int
    """ThoughtChoices without a right draft."""
    class_2_right: Estimate
    """Share of the class 2 choices in which all drafts were rejected; null where that was no option."""


class StepQuality(Struct, frozen=True):
    """Mean rewards that a process reward model gave to steps, 0 to 1 (SpecCoT table 5)."""

    drafted: Estimate
    """Reward of all candidates: mean over steps of the mean over each step's candidates."""
    selected: Estimate
    """Reward of the selected candidates."""


class Compared(Figures):
    """The figures of one run, and how it differs from a base. Tokens and seconds are means over problems."""

    def __init__(self, table: RunTable, base: RunTable, dataset: str = "") -> None:
        self.table = table
        self.dataset = dataset
        """The data set that it solved; see `data_sets`."""
        self.over_baseline = Difference(table, base)

    def as_dict(self) -> dict[str, Any]:
        """All figures by their names, and what was decided about the run."""
        plain = {name: getattr(self.table, name) for name in PLAIN}
        return {"run": self.run, "dataset": self.dataset, **plain, **super().as_dict(), "over_baseline": self.over_baseline.as_dict()}

    @property
    def run(self) -> str:
        """Its name."""
        return self.table.name

    def _mean(self, values: Array) -> Estimate:
        """A figure per finished problem."""
        return ratio(values, self.table.finished)

    @cached_property
    def resources(self) -> str:
        """What its engines computed on."""
        return self.table.resources.label

    @cached_property
    def answers(self) -> str | None:
        """`simulated` or `recorded` where models did not give its answers; see `resources.answers`."""
        return answers(self.table.facts.values()) if self.table.facts else "simulated" if self.table.simulated else None

    @cached_property
    def problems(self) -> int:
        """The number of problems with a finished chain."""
        return int(self.table.finished.sum())

    @cached_property
    def accuracy(self) -> Estimate:
        """pass@1, with the same interval as in summaries (`samples.interval`)."""
        some = self.table.graded > 0
        if not some.any():
            return NOTHING
        bounds = interval_of(self.table.graded[some], self.table.right[some])
        return Estimate(float(self.table.right.sum() / self.table.graded.sum()), bounds.low, bounds.high)

    @cached_property
    def tokens(self) -> Estimate:
        """Committed tokens, of thought and answer."""
        return self._mean(self.table.tokens)

    @cached_property
    def thought_tokens(self) -> Estimate:
        """Tokens of the thought."""
        return self._mean(self.table.thought_tokens)

    @cached_property
    def answer_tokens(self) -> Estimate:
        """Tokens sampled after the thought (SCoT table 3)."""
        return self._mean(self.table.answer_tokens)

    @cached_property
    def latency_s(self) -> Estimate:
        """Seconds of a problem, from admission to the end; at larger batch sizes this includes waiting for other chains."""
        return self._mean(self.table.latency_s)

    @cached_property
    def thinking_s(self) -> Estimate:
        """Seconds from the first call of a problem to the end of its thought (SCoT 4.2)."""
        return self._mean(self.table.details.thinking_s)

    @cached_property
    def target_thought_tokens(self) -> Estimate:
        """Tokens of the thought that were not drafted, per problem: those of the target in SCoT table 1."""
        run, texts = self.table, self.table.details.texts
        drafted = sum((texts[kind].tokens for kind in ("accepted", "unverified") if kind in texts), np.zeros(len(run.chains)))
        return self._mean(run.thought_tokens - drafted / np.maximum(run.chains, 1))

    @cached_property
    def longest_draft_tokens(self) -> Estimate:
        """Tokens of the longest candidate of each round, added up over a problem: those of the draft in SCoT table 1."""
        longest = self.table.details.texts.get("longest")
        return ratio(longest.tokens, self.table.chains) if longest else NOTHING

    @cached_property
    def fallback_rate(self) -> Estimate:
        """Steps written by a fallback over steps that were verified (SpecCoT 4.4.2)."""
        return share(self.table.fallbacks, self.table.verified)

    @cached_property
    def draft_share(self) -> Estimate:
        """Steps by the draft, accepted or unverified, over all steps (SpecReason 5.2); a graph without drafts has no share, rather than a
        share of 0."""
        known = self.table.verified.any() or self.table.unverified.any()
        return share(self.table.by_draft, self.table.steps) if known else NOTHING

    @cached_property
    def unverified_share(self) -> Estimate:
        """Steps that a gate let pass, which nothing verified, over all steps; a graph without a gate has no share."""
        return share(self.table.unverified, self.table.steps) if self.table.gated else NOTHING

    @cached_property
    def wall_time_s(self) -> float | None:
        """Wall time of the whole run; the mean of pooled ones. Null if chains failed, as their time does not measure speed."""
        return None if self.table.lost else self.table.wall_time_s

    @property
    def problems_per_s(self) -> float | None:
        """Problems with a finished chain over wall time."""
        return self.problems / self.wall_time_s if self.wall_time_s else None

    @cached_property
    def kept_tokens_per_s(self) -> float | None:
        """Kept tokens, those of thoughts and answers, over the wall time, the mean one of pooled runs (SpecCoT table 6)."""
        total = float((self.table.tokens * self.table.chains).sum())
        return total / self.wall_time_s / max(1, len(self.table.pooled)) if self.wall_time_s else None

    @cached_property
    def text_tokens(self) -> dict[str, Estimate]:
        """Tokens of a text by its kind: `drafted`, `longest` of a round, `accepted`, `fallback`."""
        return {kind: ratio(text.tokens, text.count) for kind, text in self.table.details.texts.items()}

    @cached_property
    def selection(self) -> Selection | None:
        """Null for runs that do not choose among whole thoughts."""
        return _selection(self.table.details.choices) if self.table.details.choices else None

    @cached_property
    def quality(self) -> StepQuality | None:
        """Null for runs without a rewards table."""
        return _quality(self.table.details.quality) if self.table.details.quality else None

    @cached_property
    def agreement(self) -> Agreement | None:
        """Scores of speculated steps against rewards; null for runs without both (SpecReason figure 7)."""
        return agreement(self.table.details.scored) if self.table.details.scored else None


def _selection(choices: ThoughtChoices) -> Selection:
    first = choices.right_drafted > 0
    second = ~first
    return Selection(
        class_1=int(first.sum()),
        class_1_right=outcomes(choices.problem[first], choices.picked_right[first]),
        class_2=int(second.sum()),
        class_2_right=outcomes(choices.problem[second], choices.rejected[second]) if choices.may_reject else NOTHING,
    )


def _quality(q: Quality) -> StepQuality:
    return StepQuality(ratio(q.drafted, q.steps), ratio(q.selected, q.selections))
