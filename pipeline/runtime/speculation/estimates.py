"""What a run has shown of its engines and its rounds: what happened in a window enters, expected speeds leave. Synchronous."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from pipeline.runtime.speculation.cost_model import CostModel, Round
from pipeline.runtime.speculation.direct_fit import DirectFit
from pipeline.runtime.speculation.window import Window

MIXED = 4
"""Fewest chains of which some speculate and some do not."""
MIXED_WORTH = 1.15
"""By what factor a smaller share must be better, because a mixture is harder to predict."""
SHARES = (1.0, 0.75, 0.5)
"""Shares of the live chains that may speculate."""
PER_CHAINS, PER_CONTEXT = 0.2, 0.1
"""What it grows by when the number of chains or their context grow or shrink e times."""
DRAFT = 0.25
"""What is assumed of a draft's iteration where nothing is known: the share of the target's that it takes."""
INTERFERENCE = 0.5
"""The same of `CostModel.interference`."""
UNWORTHY = 0.9
"""The gain below which a trial is ended because of its verdicts, and that is expected at most after a trial that showed no more than that
it loses."""
FARTHEST = 100.0
"""By what factor a prediction is taken to be off at most."""
LOST = 0.5
"""Least weight of a window that ended because it lost."""
ASSUMED, MEMORY = 3, 64
"""Verdicts, or rounds, that what is known weighs: before any was observed, and at most."""
FADES = 0.25
"""With what power of the share of chains that are left the logarithm of a correction shrinks."""


class State(Struct, frozen=True):
    """Where something was observed."""

    chains: float
    context: float
    elapsed: float

    def spread(self, now: "State", per_time: float) -> float:
        """By how much a prediction is less certain `now`."""
        chains, context, time = (
            abs(math.log(max(new, 1e-9) / max(old, 1e-9)))
            for new, old in ((now.chains, self.chains), (now.context, self.context), (now.elapsed, self.elapsed))
        )
        return PER_CHAINS * chains + PER_CONTEXT * context + per_time * time


class Correction(Struct, frozen=True):
    """Observed over predicted speed, with that many live `chains`: the fewer are left, the less it says."""

    factor: float = 1.0
    chains: float = 1.0

    def at(self, chains: float) -> float:
        """The factor for that many live chains."""
        return math.pow(self.factor, math.pow(min(chains / self.chains, 1.0), FADES))

    def toward(self, observed: float, weight: float, chains: float) -> "Correction":
        """The correction after `observed` was seen with that many live chains; `weight` is between 0 and 1."""
        before, bounded = self.at(chains), min(max(observed, 1 / FARTHEST), FARTHEST)
        return Correction(before * math.pow(bounded / before, weight), chains)


class Choice(Struct, frozen=True):
    """A share of the live chains that may speculate, and what is expected of it."""

    share: float
    gain: float
    """How many times as fast as if none did."""
    rate: float
    """Tokens a second of all live chains together."""


class Estimates:
    """A cost model that follows what is observed, and by what factor it is still off."""

    def __init__(self) -> None:
        self.fit = DirectFit()
        """Of the target alone."""
        self.round = Round()
        self._verdicts = ASSUMED
        self._draft_scale = 1.0
        self.interference = INTERFERENCE
        """See `CostModel.interference`."""
        self._ratio = Correction()
        """Where chains speculate."""
        self._ratios: dict[float, Correction] = {}
        """The same by the share of chains that speculate, where it was observed."""

    def model(self, chains: int) -> CostModel:
        """The cost model as it is now, near that many live chains."""
        target = self.fit.cost(chains)
        return CostModel(target=target, draft=target.scaled(DRAFT * self._draft_scale), interference=self.interference)

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
        for share in SHARES if mixed and chains >= MIXED else SHARES[:1]:
            count = math.ceil(share * chains)
            speeds = model.speeds(count, chains - count, context, step)
            ratio = self._ratios.get(share, self._ratio).at(chains)
            rate = (count * speeds.speculative + (chains - count) * speeds.direct) * ratio
            gain = rate / (chains * direct)
            if rests:
                gain = _tail_gain(rests, count, speeds.speculative * ratio, speeds.direct * ratio, direct)
            if gain > best.gain * MIXED_WORTH:
                best = Choice(share, gain, rate)
        return best

    def acceptance(self, window: Window) -> float:
        """The acceptance by all that is known, the verdicts of `window` included."""
        return window.acceptance(self.round.acceptance, self._verdicts)

    def learn_from_nothing(self, window: Window, gain: float, chains: int) -> None:
        """Rounds lost before all chains had one, though a gain of `gain` was expected: they are slower, who knows how much."""
        self._learn_acceptance(window, self.acceptance(window))
        if gain > UNWORTHY:
            self._ratio = self._ratio.toward(self._ratio.at(chains) * UNWORTHY / gain, 1.0, chains)
            self._ratios.clear()

    def learn_from_probe(self, window: Window, chains: int, context: float, span: float, direct: float) -> None:
        """Few chains had rounds in `span` seconds: how much slower the others were shows the interference.

        `direct` are the tokens a second of a direct chain, 0 where nobody knows. Lengths are not learnt: the first verification of a
        chain computes all of its context, and a few steps show no mean.
        """
        before, acceptance = self.round, self.acceptance(window)
        self.round = window.round(before)
        few, others = _loads(window, span)

        def speed(model: CostModel) -> float:
            return model.speeds(few, others, context, self.round).direct / direct

        if direct:
            self._fit_interference(window, chains, context, span, speed)
        self._fit_draft(window, chains, context, span)
        observed = window.tokens / window.round_s / self.model(chains).speeds(few, others, context, self.round).speculative
        self._ratio = self._ratio.toward(observed, window.rounds / (window.rounds + ASSUMED), chains)
        self.round = structs.replace(before, candidates=self.round.candidates)
        self._learn_acceptance(window, acceptance)

    def learn_from_share(self, window: Window, chains: int, context: float, span: float, share: float, rate: float, lost: bool) -> None:
        """A share of the chains speculated for `span` seconds, and all together wrote `rate` tokens a second; `lost`: too few."""
        acceptance, self.round = self.acceptance(window), window.round(self.round)
        some, others = _loads(window, span)

        def over(model: CostModel) -> float:
            speeds = model.speeds(some, others, context, self.round)
            return (some * speeds.speculative + others * speeds.direct) / rate

        weight = max(window.rounds / (window.rounds + MEMORY), LOST if lost else 0.0)
        if some >= MIXED:
            before = self.interference
            self._fit_interference(window, chains, context, span, over)
            self.interference = before + (self.interference - before) * weight
        self._fit_draft(window, chains, context, span)
        self._ratio = self._ratio.toward(1 / over(self.model(chains)), weight, chains)
        self._ratios[share] = self._ratio
        self._learn_acceptance(window, acceptance)

    def _learn_acceptance(self, window: Window, acceptance: float) -> None:
        self.round = structs.replace(self.round, acceptance=acceptance)
        self._verdicts = min(self._verdicts + window.verdicts, MEMORY)

    def _fit_interference(self, window: Window, chains: int, context: float, span: float, over: Callable[[CostModel], float]) -> None:
        """Find the interference with which the model gives what was observed; `over` is predicted over observed."""
        low, high = 0.0, 1.0
        for _ in range(6):
            self.interference = (low + high) / 2
            self._fit_draft(window, chains, context, span)
            if over(self.model(chains)) > 1:
                low = self.interference
            else:
                high = self.interference

    def _fit_draft(self, window: Window, chains: int, context: float, span: float) -> None:
        """Scale the draft's cost so that its calls take as long as they took."""
        if not window.drafted:
            return
        model = self.model(chains)
        load = model.speeds(*_loads(window, span), context, self.round).target_load
        observed = window.draft_s / window.drafted / (1 + self.interference * load)
        drafting = max(window.draft_s / span, 1.0) * self.round.candidates
        self._draft_scale *= observed / model.draft.seconds(drafting * context, drafting)


def _loads(window: Window, span: float) -> tuple[float, float]:
    """How many chains speculated and were direct, on average."""
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
