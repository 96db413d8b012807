"""Expected speeds of rounds: what happened in a window enters, what to expect of each share of the chains leaves. Synchronous.

Three things are learnt, in this order, each with the former held fixed: the cost of a draft (`_draft_scale`), from how long its calls took;
the interference, from how much the chains that did not speculate were slowed; and a correction, the factor by which the model is then still
off. Predictions are the model's speed times the correction.

What holds whenever no method runs: the model with its correction gives, for the state that was observed last, the speed that was observed
there, weighted against earlier ones by the number of rounds.

Example: 3 rounds of a probe with 8 live chains were 0.8 times as fast as the model says. They weigh 3 / (3 + `prior_weight`) = 0.5, so the
correction is 0.8 ** 0.5 = 0.89; when 1 of these 8 chains is left it has faded to 0.89 ** (1 / 8) ** `correction_fade` = 0.94.
"""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from pipeline.runtime.speculation.cost_model import SHORTEST_S, CostModel, DirectFit, Round
from pipeline.runtime.speculation.modes import CallFacts, Mode
from pipeline.runtime.speculation.tuning import TUNING


class ObservationWindow:
    """Sums over the time since `start`: steps and calls enter as they end, the average round leaves."""

    def __init__(self, start: float, written: int | None, running: int) -> None:
        self.start, self.written, self.running = start, written, running
        """The time, the tokens that the target had sampled by then, where that is known, and the chains that had a round under way."""
        self.seconds: dict[Mode, float] = {"speculative": 0.0, "direct": 0.0}
        """Seconds that chains spent in each mode, added up over the chains."""
        self.tokens = self.rounds = self.accepted = 0
        """Committed by rounds."""
        self.round_s = 0.0
        """Seconds of these rounds, added up."""
        self.excess = self.excess_squared = 0.0
        """Seconds by which these rounds took longer than direct mode would have for the same tokens, and the squares of these."""
        self.direct_tokens = 0
        """Written by direct requests that began in this time and ended."""
        self.other_tokens = 0
        """Written by the target in answer to requests that were not direct."""
        self.draft_s = self.drafted = self.verified = 0.0
        self.drafts = self.candidates = self.judges = 0
        self._last_judged, self._last_judges = start, 0

    def observe_round(self, tokens: int, accepted: bool, seconds: float, direct_speed: float) -> None:
        """A round of `seconds` committed `tokens`, which direct mode writes at `direct_speed` tokens a second."""
        seconds = max(seconds, SHORTEST_S)
        excess = seconds - tokens / direct_speed
        self.tokens += tokens
        self.rounds += 1
        self.accepted += accepted
        self.round_s += seconds
        self.excess += excess
        self.excess_squared += excess * excess

    def observe_call(self, call: CallFacts) -> None:
        """A call was answered."""
        if call.purpose == "draft":
            self.drafts += 1
            self.draft_s += max(call.end - call.submit, SHORTEST_S)
            self.drafted += call.output_tokens / call.n
            self.candidates += call.n
        elif call.direct:
            self.direct_tokens += call.output_tokens if call.submit >= self.start else 0
        elif call.purpose == "answer":  # what direct mode writes behind the thought in the same request
            self.direct_tokens += call.output_tokens if call.submit >= self.start else 0
            self.seconds["direct"] += call.end - max(call.submit, self.start)
        else:
            self.other_tokens += call.output_tokens
            if call.purpose == "judge":
                self.judges += 1
                self._last_judges = self._last_judges + 1 if call.end == self._last_judged else 1
                self._last_judged = call.end
                self.verified += call.input_tokens - call.cached_input_tokens

    def round(self, before: Round) -> Round:
        """The average round; what was not seen is as in `before`."""
        return Round(
            tokens=max(self.tokens / self.rounds, 1.0),
            drafted=self.drafted / self.drafts if self.drafts else before.drafted,
            candidates=self.candidates / self.drafts if self.drafts else before.candidates,
            verified=self.verified / self.judges if self.judges else before.verified,
            acceptance=self.acceptance(before.acceptance, 0.0),
        )

    @property
    def verdicts(self) -> int:
        """Rounds whose candidates were judged; after a rejection the step itself may still be under way.

        Those of the last moment do not count yet: their chains may still be about to commit what was accepted.
        """
        return min(self.judges - self._last_judges, self.drafts)

    def acceptance(self, before: float, weight: float) -> float:
        """The share of accepted rounds, where it was taken to be `before`, with the `weight` of that many verdicts."""
        verdicts = max(self.verdicts, self.accepted)
        return (before * weight + self.accepted) / (weight + verdicts) if verdicts else before


class State(Struct, frozen=True):
    """The circumstances of an observation."""

    chains: float
    context: float
    elapsed: float

    def sigma(self, now: "State", per_time: float) -> float:
        """The standard deviation that a prediction of the logarithm of a speed has gained by `now`."""
        chains, context, time = (
            abs(math.log(max(new, 1e-9) / max(old, 1e-9)))
            for new, old in ((now.chains, self.chains), (now.context, self.context), (now.elapsed, self.elapsed))
        )
        return TUNING.sigma_per_chains * chains + TUNING.sigma_per_context * context + per_time * time


class Correction(Struct, frozen=True):
    """Observed over predicted speed, with that many live `chains`: the fewer are left, the less it says."""

    factor: float = 1.0
    chains: float = 1.0

    def at(self, chains: float) -> float:
        """The factor for that many live chains."""
        return math.pow(self.factor, math.pow(min(chains / self.chains, 1.0), TUNING.correction_fade))

    def toward(self, observed: float, weight: float, chains: float) -> "Correction":
        """The correction after `observed` was seen with that many live chains; `weight` is between 0 and 1."""
        before, bounded = self.at(chains), min(max(observed, 1 / TUNING.max_correction), TUNING.max_correction)
        return Correction(before * math.pow(bounded / before, weight), chains)


class Choice(Struct, frozen=True):
    """A share of the live chains that may speculate, and what is expected of it."""

    share: float
    gain: float
    """The speed of all live chains over that of direct mode."""
    rate: float
    """Tokens a second of all live chains together."""


class Estimates:
    """A cost model fitted to what was observed, with the corrections that remain."""

    def __init__(self) -> None:
        self.fit = DirectFit()
        """Of the target when it writes alone."""
        self.round = Round()
        self._verdict_weight = TUNING.prior_weight
        self._draft_scale = 1.0
        self.interference = TUNING.interference
        """`CostModel.interference`, as observed so far."""
        self._correction = Correction()
        """Of the share that was observed last."""
        self._corrections: dict[float, Correction] = {}
        """By the share of chains that speculate, where it was observed."""

    def model(self, chains: int) -> CostModel:
        """The cost model as it is now, near that many live chains."""
        target = self.fit.cost(chains)
        return CostModel(target=target, draft=target.scaled(TUNING.draft_cost * self._draft_scale), interference=self.interference)

    def best(
        self, chains: int, context: float, direct: float, rests: Sequence[float], *, mixed: bool, acceptance: float | None = None
    ) -> Choice:
        """The best share for that many live chains with `context` tokens each, which get `direct` tokens a second each if none speculates.

        `mixed`: some may speculate while others do not. `rests` are the tokens that they are expected to write yet, longest first,
        where these are the last chains; else empty. `acceptance` replaces that which is known.
        """
        model = self.model(chains)
        step = self.round if acceptance is None else structs.replace(self.round, acceptance=acceptance)
        best = Choice(0.0, 0.0, 0.0)
        for share in TUNING.shares if mixed and chains >= TUNING.min_mixed_chains else TUNING.shares[:1]:
            count = math.ceil(share * chains)
            speeds = model.speeds(count, chains - count, context, step)
            ratio = self._corrections.get(share, self._correction).at(chains)
            rate = (count * speeds.speculative + (chains - count) * speeds.direct) * ratio
            gain = rate / (chains * direct)
            if rests:
                gain = _tail_gain(rests, count, speeds.speculative * ratio, speeds.direct * ratio, direct)
            if gain > best.gain * TUNING.min_gain_of_share:
                best = Choice(share, gain, rate)
        return best

    def acceptance(self, window: ObservationWindow) -> float:
        """The acceptance by all that is known, the verdicts of `window` included."""
        return window.acceptance(self.round.acceptance, self._verdict_weight)

    def learn_from_nothing(self, window: ObservationWindow, gain: float, chains: int) -> None:
        """Rounds lost before all chains had one, though a gain of `gain` was expected: they are slower by an unknown factor."""
        self._learn_acceptance(window, self.acceptance(window))
        if gain > TUNING.hopeless_gain:
            self._correction = self._correction.toward(self._correction.at(chains) * TUNING.hopeless_gain / gain, 1.0, chains)
            self._corrections.clear()

    def learn_from_probe(self, window: ObservationWindow, chains: int, context: float, span: float, direct: float) -> None:
        """Few chains had rounds in `span` seconds: how much slower the others were shows the interference.

        `direct` are the tokens a second of a direct chain, 0 where nobody knows. Lengths are not learnt: the first verification of a
        chain computes all of its context, and a few steps show no mean.
        """
        before, acceptance = self.round, self.acceptance(window)
        self.round = window.round(before)
        few, others = _loads(window, span)

        def predicted_over_observed(model: CostModel) -> float:
            return model.speeds(few, others, context, self.round).direct / direct

        if direct:
            self._fit_interference(window, chains, context, span, predicted_over_observed)
        self._fit_draft(window, chains, context, span)
        observed = window.tokens / window.round_s / self.model(chains).speeds(few, others, context, self.round).speculative
        self._correction = self._correction.toward(observed, window.rounds / (window.rounds + TUNING.prior_weight), chains)
        self.round = structs.replace(before, candidates=self.round.candidates)
        self._learn_acceptance(window, acceptance)

    def learn_from_share(
        self, window: ObservationWindow, chains: int, context: float, span: float, share: float, rate: float, lost: bool
    ) -> None:
        """A share of the chains speculated for `span` seconds, and all together wrote `rate` tokens a second; `lost`: too few."""
        acceptance, self.round = self.acceptance(window), window.round(self.round)
        some, others = _loads(window, span)

        def predicted_over_observed(model: CostModel) -> float:
            speeds = model.speeds(some, others, context, self.round)
            return (some * speeds.speculative + others * speeds.direct) / rate

        weight = max(window.rounds / (window.rounds + TUNING.max_weight), TUNING.min_losing_weight if lost else 0.0)
        if some >= TUNING.min_mixed_chains:
            before = self.interference
            self._fit_interference(window, chains, context, span, predicted_over_observed)
            self.interference = before + (self.interference - before) * weight
        self._fit_draft(window, chains, context, span)
        self._correction = self._correction.toward(1 / predicted_over_observed(self.model(chains)), weight, chains)
        self._corrections[share] = self._correction
        self._learn_acceptance(window, acceptance)

    def _learn_acceptance(self, window: ObservationWindow, acceptance: float) -> None:
        self.round = structs.replace(self.round, acceptance=acceptance)
        self._verdict_weight = min(self._verdict_weight + window.verdicts, TUNING.max_weight)

    def _fit_interference(
        self, window: ObservationWindow, chains: int, context: float, span: float, predicted_over_observed: Callable[[CostModel], float]
    ) -> None:
        """Find the interference with which the model gives what was observed; `predicted_over_observed` is the ratio of the speeds."""
        low, high = 0.0, 1.0
        for _ in range(6):
            self.interference = (low + high) / 2
            self._fit_draft(window, chains, context, span)
            if predicted_over_observed(self.model(chains)) > 1:
                low = self.interference
            else:
                high = self.interference

    def _fit_draft(self, window: ObservationWindow, chains: int, context: float, span: float) -> None:
        """Scale the draft's cost so that its calls take as long as they took."""
        if not window.drafted:
            return
        model = self.model(chains)
        load = model.speeds(*_loads(window, span), context, self.round).target_load
        observed = window.draft_s / window.drafted / (1 + self.interference * load)
        drafting = max(window.draft_s / span, 1.0) * self.round.candidates
        self._draft_scale *= observed / model.draft.seconds(drafting * context, drafting)


def _loads(window: ObservationWindow, span: float) -> tuple[float, float]:
    """The mean numbers of chains that speculated and that were direct."""
    return window.seconds["speculative"] / span, window.seconds["direct"] / span


def _tail_gain(rests: Sequence[float], count: int, speculative: float, direct: float, alone: float) -> float:
    """By what factor chains that are the last ones end earlier where the `count` with the longest rests speculate than where none does.

    `rests` are tokens, longest first, and the speeds those of a chain. Two times count alike: that of all the work, and that of the
    chain which would take longest if speeds stayed as they are.
    """
    mean, live = sum(rests) / len(rests), len(rests)
    rate = (count * speculative + (live - count) * direct) / live
    slowest = max(rests[0] / speculative, rests[count] / direct if count < live else 0.0)
    return (mean + rests[0]) / alone / (mean / rate + slowest)
