"""What other thresholds would have done in a recorded run: its folder and a choice of values enter, a `Prediction` leaves.

A chain's path is known up to the first decision that differs from the recorded one: until then its prompts, its drafts and its verdicts are
the recorded ones. A chain without such a decision has the recorded answer. All that comes after one is estimated, from the recorded steps
as if they had been met.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.graph.spec import Param
from pipeline.store.query import Query
from pipeline.sweep.knobs import Knob
from pipeline.sweep.trials import TrialAnswer, trial_answers

NOT_TRIED = TrialAnswer(-1.0, math.nan)
GRID = 10
"""Most values of a threshold that are tried, where the user names none."""
CHAINS = """
SELECT chain_id, counted, finished, chain_time_s FROM chains WHERE finished OR counted IS NOT NULL ORDER BY chain_id
"""
STEPS = """
WITH spans AS (
    SELECT chain_id, step_index - (purpose = 'trial')::INT AS step_index, purpose,
           (max(end_unix_ns) - min(submit_unix_ns - client_wait_s * 1e9)) / 1e9 AS s
    FROM calls WHERE purpose <> 'answer' GROUP BY chain_id, calls.step_index, purpose, stage),
costs AS (
    SELECT chain_id, step_index, sum(s) FILTER (purpose = 'draft') AS draft_s, sum(s) FILTER (purpose = 'judge') AS judge_s,
           sum(s) FILTER (purpose IN ('write', 'guide')) AS write_s, sum(s) FILTER (purpose = 'trial') AS trial_s
    FROM spans GROUP BY chain_id, step_index)
SELECT chain_id, step_index, decision IN ('accepted', 'unverified') AS drafted,
       verify_stage IS NOT NULL AND (verify_stage = $judge OR $judge = '') AS judged,
       CASE WHEN verify_kind <> 'choose' OR list_position(score_options, score_label) > 1 THEN score_value END AS score,
       list_contains(gate_stage, $gate) AS gated, gate_value[list_position(gate_stage, $gate)] AS gate,
       coalesce(draft_s, 0.0) AS draft_s, judge_s, write_s, coalesce(trial_s, 0.0) AS trial_s
FROM steps LEFT JOIN costs USING (chain_id, step_index)
WHERE chain_id IN (SELECT chain_id FROM chains WHERE finished) ORDER BY chain_id, step_index
"""


class Prediction(Struct, frozen=True, kw_only=True):
    """What a recorded run says of other values; shares are 0 to 1, and null where nothing is known."""

    chains_known: float
    """Share of the chains that take the recorded path to its end, so that their answers are the recorded ones."""
    changed: float
    """Decisions of a chain that differ from the recorded ones, an early end included, on average; the recorded steps stand for those that
    are met after the first one."""
    unverified: float | None
    """Share of the drafted steps that a gate lets pass; the recorded steps stand for those that are met after such a decision."""
    accepted: float | None
    """Share of the drafted steps that are read that the judge accepts."""
    accuracy_low: float | None
    """Accuracy if every chain that leaves the recorded path is wrong."""
    accuracy_high: float | None
    """Accuracy if every such chain is right."""
    accuracy_tried: float | None
    """Accuracy of the recorded run if its thoughts ended as early as with these values, by the trial answers there: what the early end does
    by itself. Null where none ends earlier, where the recorded run ended some that would go on, and where an answer cannot be graded."""
    chain_s: float | None
    """Mean seconds of a chain, if each call takes as long as in the recorded run; null where calls are made that it has none of."""


class RecordedPaths:
    """A recorded run as arrays, one element a step in the order of the chains."""

    def __init__(self, folder: Path, knobs: Sequence[Knob], recorded: Mapping[str, Param]) -> None:
        self._knobs: dict[str, Knob] = {knob.kind: knob for knob in knobs}
        stages = {kind: knob.stage for kind, knob in self._knobs.items()}
        with Query(folder) as db:
            chains = db.columns(CHAINS)
            rows = db.columns(STEPS, judge=stages.get("judge", ""), gate=stages.get("gate", ""))
        numbers = {chain: number for number, chain in enumerate(chains["chain_id"].tolist())}
        self.chains = len(numbers)
        self._correct = _filled(chains["counted"])
        self._finished, self._times = chains["finished"].astype(bool), chains["chain_time_s"]
        self._chain = np.array([numbers[chain] for chain in rows["chain_id"].tolist()], np.int64)
        self._drafted, self._judged, self._gated = (rows[name].astype(bool) for name in ("drafted", "judged", "gated"))
        self._scores, self._gates = _filled(rows["score"]), _filled(rows["gate"])
        tried, places = trial_answers(folder), zip(rows["chain_id"].tolist(), rows["step_index"].tolist(), strict=True)
        trials = [tried.get(place, NOT_TRIED) for place in places]
        self._sure, self._tried = np.array([each.sure for each in trials]), np.array([each.correct for each in trials])
        self._draft_s, self._trial_s = _filled(rows["draft_s"], 0.0), _filled(rows["trial_s"], 0.0)
        self._judge_s, self._write_s = _filled(rows["judge_s"]), _filled(rows["write_s"])
        spent = self._draft_s + self._trial_s + np.nan_to_num(self._judge_s) + np.nan_to_num(self._write_s)
        self._ended = self._ends(recorded)
        self._rest_s = self._times - self._per_chain(spent)

    @property
    def chain_s(self) -> float:
        """Mean seconds of a finished chain."""
        return float(self._times[self._finished].mean()) if self._finished.any() else math.nan

    def grid(self, knob: Knob) -> tuple[Param, ...]:
        """The values of a knob that are tried: its own, else those at which the recorded steps are decided differently, at most `GRID`,
        which are as far apart in the number of steps as they can be."""
        if knob.values or knob.kind not in ("gate", "judge"):
            return knob.values
        seen = self._gates[self._gated] if knob.kind == "gate" else self._scores[self._judged]
        seen = np.sort(seen[np.isfinite(seen)])
        if not len(seen):
            return ()
        distinct = np.unique(seen)
        chosen = distinct if len(distinct) <= GRID else np.quantile(seen, np.linspace(0, 0.9, GRID), method="lower")
        down = math.floor if knob.sign > 0 else math.ceil
        return tuple(dict.fromkeys(down(float(value) * 1e4) / 1e4 for value in chosen))

    @property
    def write_s(self) -> float:
        """Mean seconds in which a step was written that a gate or a judge had decided about."""
        return _mean(self._write_s[self._gated | self._judged])

    def predict(self, choice: Mapping[str, Param], passed_s: float | None = None) -> tuple[Prediction, Array]:
        """What these values of the params would have done, and by chain whether it leaves the recorded path.

        `passed_s` is the mean time in which a step is written that passes a gate, where the gate does not make the draft that step.
        """
        passes, accepts, differs, ends = self._decided(choice)
        free = self._gated | self._judged
        chain, steps = self._chain, np.arange(len(self._chain))
        never = len(steps)
        first_end, first_other = self._first(ends, never), self._first(differs, never)
        met = steps <= first_end[chain]
        last = self._first(self._is_last(), never)
        early = first_end < np.minimum(last, never)
        longer = self._first(self._ended & ~ends, never) < never
        left = longer | (first_other <= first_end) & (first_other < never) | early
        unverified = met & passes & free
        read = met & free & ~passes & self._judged
        right = float(np.nansum(np.where(left, 0.0, self._correct)))
        counted = np.isfinite(self._correct)
        graded = int(counted.sum())
        return Prediction(
            chains_known=float(np.mean(~left)) if self.chains else 0.0,
            changed=(int((differs & met).sum()) + int(early.sum())) / self.chains if self.chains else 0.0,
            unverified=_share(unverified, met & free) if self._gated.any() else None,
            accepted=_share(read & accepts, read),
            accuracy_low=right / graded if graded else None,
            accuracy_high=(right + int((left & counted).sum())) / graded if graded else None,
            accuracy_tried=None if longer.any() else self._as_tried(early, first_end),
            chain_s=self._seconds(choice, passes, accepts, met, passed_s),
        ), left

    def _as_tried(self, early: Array, first_end: Array) -> float | None:
        """`Prediction.accuracy_tried`; `early` marks the chains that end earlier."""
        counted = np.isfinite(self._correct)
        if not (early & counted).any():
            return None
        answers = self._correct.copy()
        answers[early] = self._tried[first_end[early]]
        found = float(answers[counted].mean())
        return found if math.isfinite(found) else None

    def _decided(self, choice: Mapping[str, Param]) -> tuple[Array, Array, Array, Array]:
        """By step: whether a gate lets its draft pass, a judge accepts it, either differs from what was recorded, the thought ends."""
        gate, judge = self._knobs.get("gate"), self._knobs.get("judge")
        passes = np.zeros(len(self._chain), bool)
        if gate is not None:
            bound = _number(choice[gate.param]) * gate.sign
            passes = self._gated & (np.nan_to_num(self._gates * gate.sign, nan=-np.inf) >= bound)
        accepts = self._drafted
        if judge is not None:
            accepts = np.where(self._judged, np.nan_to_num(self._scores, nan=-np.inf) >= _number(choice[judge.param]), self._drafted)
        own = passes & (~self._drafted if gate is None or gate.commits else True)
        differs = own | ~passes & self._judged & (accepts != self._drafted)
        return passes, accepts, differs, self._ends(choice)

    def _ends(self, choice: Mapping[str, Param]) -> Array:
        """By step: whether the answer that was asked for after it is sure enough to end the thought."""
        end = self._knobs.get("end")
        sure = None if end is None else choice[end.param]
        return np.zeros(len(self._chain), bool) if sure is None else self._sure >= _number(sure)

    def _seconds(self, choice: Mapping[str, Param], passes: Array, accepts: Array, met: Array, passed_s: float | None) -> float | None:
        """Mean seconds of a finished chain: those of the calls that are made, each as long as recorded, or as the recorded ones are on
        average where this step has none."""
        gate, end = self._knobs.get("gate"), self._knobs.get("end")
        routed = passes if gate is not None and not gate.commits else np.zeros_like(passes)
        if passed_s is None and (routed & met).any():
            return None  # who writes then wrote nothing in the recorded run
        judges, writes = self._judged & ~passes, self._judged & ~passes & ~accepts
        if (writes & met & np.isnan(self._write_s)).any() and np.isnan(self._write_s[self._judged]).all():
            return None
        write_s = np.where(np.isnan(self._write_s), _mean(self._write_s[self._judged]), self._write_s)
        fixed = ~(self._gated | self._judged)
        cost = self._draft_s + np.where(judges | fixed, np.nan_to_num(self._judge_s), 0.0)
        cost += np.where(writes, write_s, np.where(fixed | self._gated & ~self._judged & ~passes, np.nan_to_num(self._write_s), 0.0))
        cost += np.where(routed, passed_s or 0.0, 0.0)
        if end is None or choice[end.param] is not None:
            cost += self._trial_s
        whole = self._per_chain(np.where(met, cost, 0.0)) + self._rest_s
        return float(whole[self._finished].mean()) if self._finished.any() else None

    def _per_chain(self, values: Array) -> Array:
        return np.bincount(self._chain, values, self.chains)

    def _first(self, marked: Array, never: int) -> Array:
        """By chain the first step that is marked; `never` where none is."""
        found = np.full(self.chains, never, np.int64)
        places = np.flatnonzero(marked)
        np.minimum.at(found, self._chain[places], places)
        return found

    def _is_last(self) -> Array:
        """Whether a step is the last one of its chain."""
        return np.append(self._chain[1:] != self._chain[:-1], True) if len(self._chain) else np.zeros(0, bool)


def _filled(column: Array, value: float = math.nan) -> Array:
    """A column as numbers, nulls as `value`."""
    return np.asarray(np.ma.filled(column.astype(float), value))


def _share(part: Array, whole: Array) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def _number(value: Param) -> float:
    assert isinstance(value, int | float), "the plan was loaded with it"
    return float(value)
