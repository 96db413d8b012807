"""Decides while a run goes on which chains speculate: facts of calls and steps enter, modes and interruptions leave.

Every chain begins in direct mode. The target's speed there is observed; what rounds would make of it is predicted by a cost model,
tried by few chains first, within a debit account, and then observed too. What is observed replaces what was assumed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from pipeline.runtime.speculation.cost_model import CostModel, Round
from pipeline.runtime.speculation.direct_fit import DirectFit
from pipeline.runtime.speculation.expected_rest import ExpectedRest
from pipeline.runtime.speculation.modes import CallFacts, Mode
from pipeline.runtime.speculation.window import Window

DEBIT = 0.015
"""Share of a run that trials and switches may cost."""
WORTH = 1.05
"""The gain from which another share of speculating chains is worth a switch."""
MIXED_WORTH = 1.15
"""By what factor a smaller share must be better, because a mixture is harder to predict."""
SHARES = (1.0, 0.75, 0.5)
"""Shares of the live chains that may speculate."""
MIXED = 4
"""Fewest chains of which some speculate and some do not."""
PROBED = 64
"""One of so many chains is in a probe, and at least one."""
FIRST_SPREAD, PROBED_SPREAD, PER_PROBED, GIVEN_SPREAD = 0.6, 0.1, 0.05, 0.1
"""Standard deviations of the logarithm of a predicted speed: before any round was observed, after some chains had one (and
for each time that all are e times as many), and with a given model."""
PER_CHAINS, PER_CONTEXT, PER_TIME, PER_TIME_DIRECT = 0.2, 0.1, 0.1, 0.03
"""What it grows by when number of chains, context or time since the observation grow or shrink e times."""
ITERATIONS = 12
"""Iterations of the target that make an observation."""
ROUNDS, LEAST = 24, 12
"""Fewest rounds that make an observation, and before which rounds are not judged at all."""
SURE, VERY_SURE = 1.0, 2.5
"""Standard deviations by which rounds must have taken too long before they count as losing: when a window ends, and before."""
INTERFERENCE = 0.5
"""What is assumed where nothing is known."""
LOST = 0.5
"""Least weight of a window that ended because it lost."""
ASSUMED, MEMORY = 3, 64
"""Rounds that what is known of the acceptance weighs: before any was observed, and at most."""
FIRST_LOOK_S, FIRST_SAMPLE_S = 0.02, 2.0
"""Seconds until the target's tokens are first counted; where they cannot be, until a direct request is first interrupted to count its."""
VERDICTS = 4
"""Verdicts of a trial at which its acceptance is looked at first; then at twice as many."""
UNWORTHY = 0.9
"""The expected gain below which a trial is given up for its verdicts."""
LONGEST = 2.0
"""How many times as long as until now all live chains are expected to take at most."""
JUDGED = 16
"""Rounds are judged so often while each of the speculating chains has one."""
CHANGES = 500
"""Most entries of `Adaptive.changes`."""


class Change(Struct, frozen=True, kw_only=True):
    """A decision, and the estimates that it was based on."""

    time: float
    what: str
    """`probe`: few chains speculate, to learn; `probed`: they have; `speculate`; `losing`: back to direct mode; `check`: the same, to see
    how fast that is now; `share`: more or fewer chains speculate."""
    speculating: int
    """Chains that are to speculate from now on."""
    live: int
    speculative: float
    """Expected tokens a second of a chain, on average over all live ones, with the share that is decided about."""
    direct: float
    """The same if none speculates."""


class LiveChain:
    """What is known of a chain in its loop."""

    __slots__ = ("began", "context", "interrupted", "mode", "speculates", "start", "written")

    def __init__(self, speculates: bool) -> None:
        self.speculates = speculates
        """Whether it is to go on by rounds from its next boundary on."""
        self.mode: Mode | None = None
        """The mode of its step under way; None before its first one."""
        self.context = self.written = 0
        """Tokens of its context and of its thought at its last boundary."""
        self.began = 0.0
        """When its step began."""
        self.start = 0.0
        """`Adaptive._direct_tokens` then."""
        self.interrupted = False


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


class Adaptive:
    """The `ModeControl` of `speculate: auto`.

    `written` says how many tokens the target has sampled so far, those of running requests included, or None where its engine does
    not know: then a direct request is interrupted now and then to learn how fast it was. `model` is what a calibration found.
    """

    def __init__(self, *, written: Callable[[], int | None] = lambda: None, model: CostModel | None = None) -> None:
        self._written, self._given = written, model
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        # What is known: of the target alone, of rounds, of lengths.
        self._fit = DirectFit(model.target if model else None)
        self._draft_scale = 1.0
        self._interference = model.interference if model else INTERFERENCE
        self._round, self._rounds = Round(), ASSUMED
        self._ratio = 1.0
        """Observed over predicted speed where chains speculate."""
        self._ratios: dict[float, float] = {}
        """The same by the share of chains that speculate, where it was observed."""
        self._unsure = GIVEN_SPREAD if model else FIRST_SPREAD
        self._seen_rounds: State | None = None
        self._seen_direct: State | None = None
        self._lengths = ExpectedRest()
        # The chains.
        self._live: dict[int, LiveChain] = {}
        self._counts: dict[Mode, int] = {"speculative": 0, "direct": 0}
        self._speculating = 0
        self._contexts = self._starts = 0.0
        """`LiveChain.context` of all, and `LiveChain.start` of those in direct mode, added up."""
        self._direct_tokens = 0.0
        """Tokens that a chain would have that was in direct mode since the beginning."""
        self._ended, self._exhausted = 0, False
        # What is decided.
        self._share = 0.0
        self._ending: list[int] = []
        self._debit = self._stint = 0.0
        """Seconds lost by what is over, and chains' seconds lost since speculation began last; negative where it won."""
        self._verdicts = VERDICTS
        """Verdicts at which the acceptance is looked at."""
        self._before = self._before_squared = 0.0
        """Half of what the window before lost, and a quarter of the squares of its rounds' excess."""
        # What is being observed.
        self._start = math.nan
        self._last = 0.0
        self._tick = math.inf
        self._window = Window(0.0, None, 0)
        self._settled = False
        """Whether the window shows the target alone, in its stride."""
        self._turning = False
        """Whether chains are on their way to a new share."""
        self._pace = 1.0
        """`_direct_speed`, as it was a few rounds ago."""
        self._due = ROUNDS
        """Rounds at which the window is judged."""

    def enter(self, order: int, now: float) -> None:
        """See `ModeControl.enter`."""
        self._pass(now)
        if math.isnan(self._start):
            self._start = now
            self._tick = now + FIRST_LOOK_S
            self._restart(now)
        speculates = self._speculating < self._share * (len(self._live) + 1)
        self._speculating += speculates
        self._live[order] = LiveChain(speculates)

    def leave(self, order: int, now: float) -> None:
        """See `ModeControl.leave`."""
        self._pass(now)
        chain = self._live.pop(order)
        self._end_step(chain)
        self._contexts -= chain.context
        self._speculating -= chain.speculates
        self._ended += 1
        self._lengths.ended(chain.written)
        self._settle(now)

    def exhausted(self) -> None:
        """See `ModeControl.exhausted`."""
        self._exhausted = True

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        """See `ModeControl.mode`."""
        self._pass(now)
        chain = self._live[order]
        self._end_step(chain)
        self._contexts += context_tokens - chain.context
        chain.context, chain.began, chain.interrupted = context_tokens, now, False
        chain.mode = mode = "speculative" if chain.speculates else "direct"
        self._counts[mode] += 1
        if mode == "direct":
            chain.start = self._direct_tokens
            self._starts += chain.start
            self._settle(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        """See `ModeControl.wrote`."""
        self._pass(now)
        chain = self._live[order]
        chain.written += tokens
        if chain.mode == mode == "speculative" and self._fit.known:
            due = self._window.rounds % (1 + self._speculating // JUDGED) == 0
            if due:
                self._pace = self._direct_speed()
            self._window.wrote(tokens, accepted, now - chain.began, self._pace)
            if due and self._share:
                self._judge(now)

    def called(self, call: CallFacts) -> None:
        """See `ModeControl.called`."""
        self._pass(call.end)
        self._window.called(call)
        if call.direct and self._window.written is None and call.output_tokens >= ITERATIONS:
            self._observe_direct(self._chains, (call.end - call.submit) / call.output_tokens, call.end)

    def interrupts(self, now: float) -> Sequence[int]:
        """See `ModeControl.interrupts`."""
        self._pass(now)
        if now >= self._tick:
            self._look(now)
        ending, self._ending = self._ending, []
        return ending

    def wake(self) -> float:
        """See `ModeControl.wake`."""
        return self._tick

    # The chains.

    def _pass(self, now: float) -> None:
        """Time passed."""
        span, self._last = now - self._last, now
        if span > 0:
            seconds = self._window.seconds
            seconds["speculative"] += span * self._counts["speculative"]
            seconds["direct"] += span * self._counts["direct"]

    def _end_step(self, chain: LiveChain) -> None:
        if chain.mode is not None:
            self._counts[chain.mode] -= 1
            if chain.mode == "direct":
                self._starts -= chain.start
            chain.mode = None

    @property
    def _chains(self) -> int:
        return max(len(self._live), 1)

    @property
    def _context_sum(self) -> float:
        return max(self._contexts + self._counts["direct"] * self._direct_tokens - self._starts, 1.0)

    def _state(self, now: float) -> State:
        return State(self._chains, self._context_sum / self._chains, now - self._start)

    def _direct_speed(self) -> float:
        """Tokens a second of each chain if none speculates."""
        return 1 / self._fit.seconds(self._chains, self._context_sum)

    # Observing the target alone.

    def _restart(self, now: float) -> None:
        self._window = Window(now, self._written(), self._counts["speculative"])

    def _settle(self, now: float) -> None:
        """Where the last round of a share is over: charge what it lost, and observe the target alone from now on."""
        if not self._share and not self._counts["speculative"] and not self._settled and self._fit.known:
            self._debit += max(self._stint + self._lost(now), 0.0) / self._chains
            self._stint = 0.0
            self._restart(now)
            self._settled = True
            self._tick = now + ITERATIONS / self._direct_speed()

    def _look(self, now: float) -> None:
        """The time has come to look at what the engines did."""
        elapsed = now - self._start
        if not self._live:
            self._tick = math.inf
            return
        if self._share:
            self._judge(now)
        elif self._window.written is None:
            self._sample(now)
        else:
            self._count(now)
        pause = ITERATIONS / self._direct_speed() if self._fit.known else FIRST_LOOK_S
        self._tick = max(now + max(pause, 0.01 * elapsed), self._tick if self._tick > now else now)

    def _count(self, now: float) -> None:
        """Observe how many tokens the target wrote."""
        window, written = self._window, self._written()
        if self._counts["speculative"] or written is None or window.written is None:
            return
        tokens, span = written - window.written, now - window.start
        if not self._settled:
            if tokens >= self._chains:  # all prompts are computed
                self._restart(now)
                self._settled = True
        elif span > 0 and tokens >= ITERATIONS * self._chains / 2:
            chains = window.seconds["direct"] / span
            self._direct_tokens += tokens / max(chains, 1e-9)
            self._observe_direct(chains, window.seconds["direct"] / tokens, now)
            self._restart(now)

    def _sample(self, now: float) -> None:
        """Where nobody counts the target's tokens: interrupt one request, to learn how many it wrote."""
        self._tick = now + max(FIRST_SAMPLE_S, 2 * (now - self._start))
        if now - self._start >= FIRST_SAMPLE_S:
            for order, chain in self._live.items():
                if chain.mode == "direct" and not chain.interrupted:
                    chain.interrupted = True
                    self._ending.append(order)
                    return

    def _observe_direct(self, chains: float, seconds: float, now: float) -> None:
        if not self._share and not self._counts["speculative"]:
            self._fit.observe(chains, self._context_sum, seconds)
            self._seen_direct = self._state(now)
            self._consider(now)

    # Predicting.

    def _model(self) -> CostModel:
        target = self._fit.cost(self._chains)
        draft = self._given.draft if self._given else target.scaled(0.25)
        return CostModel(target=target, draft=draft.scaled(self._draft_scale), interference=self._interference)

    def _best(self) -> tuple[float, float, float]:
        """The best share of speculating chains, its gain over direct mode, and the tokens a second of all chains with it."""
        live, context, direct = self._chains, self._context_sum / self._chains, self._direct_speed()
        model, rests = self._model(), self._rests()
        best = (0.0, 0.0, 0.0)
        for share in SHARES:
            count = math.ceil(share * live)
            if share < 1 and live < MIXED:
                break
            speeds = model.speeds(count, live - count, context, self._round)
            ratio = self._ratios.get(share, self._ratio)
            rate = (count * speeds.speculative + (live - count) * speeds.direct) * ratio
            gain = rate / (live * direct)
            if rests:
                gain = _tail_gain(rests, count, speeds.speculative * ratio, speeds.direct * ratio, direct)
            if gain > best[1] * MIXED_WORTH:
                best = (share, gain, rate)
        return best

    def _rests(self) -> list[float]:
        """Expected rests of the live chains, longest first, where no more chains come and some could be left out."""
        if not self._exhausted or len(self._live) < MIXED:
            return []
        return sorted(self._lengths.rests([self._thought(chain) for chain in self._live.values()]), reverse=True)

    def _thought(self, chain: LiveChain) -> float:
        return chain.written + (self._direct_tokens - chain.start if chain.mode == "direct" else 0.0)

    # The account.

    def _affordable(self, cost: float, now: float, share: float = DEBIT) -> bool:
        return self._debit + cost <= share * (now - self._start) * self._horizon()

    def _horizon(self) -> float:
        """How many times as long as until now the run is expected to take at least.

        Where none of n chains has ended yet, the mean thought is longer than what was written by about the ratio of the mean to the
        least of n draws; this is it for log-normal lengths with a sigma of 0.7. While more chains come, as many are expected again as came.
        """
        return (1 if self._exhausted else 2) * min(float(1 + len(self._live) / (1 + self._ended)) ** 0.45, LONGEST)

    def _lost(self, now: float) -> float:
        """Seconds that the chains lost in the window against direct mode, added up."""
        return sum(self._window.seconds.values()) - self._progress(now) / self._direct_speed()

    def _progress(self, now: float) -> float:
        """Tokens that all chains got on in the window. A round that is under way counts as half a step, where none was at the start."""
        window, direct = self._window, self._counts["direct"]
        step = window.tokens / window.rounds if window.rounds else self._round.tokens
        committed = window.tokens + step * (self._counts["speculative"] - window.running) / 2
        if self._share == 1:  # the direct requests are those that complete a step
            return committed + window.direct_tokens + direct * step / 4
        most = window.seconds["direct"] * self._direct_speed()
        written = self._written()
        if written is None or window.written is None:
            return committed + most / (1 + self._interference)
        return committed + min(most, written - window.written - window.other_tokens)

    # Deciding.

    def _consider(self, now: float) -> None:
        """All chains are direct: is it time for rounds?"""
        live = len(self._live)
        if not live:
            return
        share, gain, rate = self._best()
        spread = self._unsure + (self._seen_rounds.spread(self._state(now), PER_TIME) if self._seen_rounds else 0.0)
        if gain * math.exp(spread) < WORTH:
            return
        risk = max(0.0, 1 - gain * math.exp(-spread))
        if live > 1 and (gain < UNWORTHY or (risk and self._unsure >= FIRST_SPREAD)):
            if self._affordable(self._probe_cost(), now):
                self._switch(max(live // PROBED, 1) / live, "probe", now, rate)
        elif self._affordable(2 * risk * live * self._round.tokens / rate, now, DEBIT if self._unsure else 2 * DEBIT):
            self._switch(share, "speculate", now, rate)

    def _probe_cost(self) -> float:
        """Seconds that a round of few chains is expected to cost all of them."""
        live = len(self._live)
        chains = max(live // PROBED, 1)
        speeds = self._model().speeds(chains, live - chains, self._context_sum / live, self._round)
        share = (chains * speeds.speculative + (live - chains) * speeds.direct) / (live * self._direct_speed())
        return 1.5 * self._round.tokens / speeds.speculative * max(0.0, 1 - share)

    def _switch(self, share: float, what: str, now: float, rate: float) -> None:
        """Let this share of the live chains speculate from their next boundaries on."""
        live = len(self._live)
        count = math.ceil(share * live)
        each = rate / max(live, 1)
        self.changes.append(Change(time=now, what=what, speculating=count, live=live, speculative=each, direct=self._direct_speed()))
        self._share, self._turning, self._settled = share, True, False
        self._due = max(4 * count, ROUNDS)
        self._before = self._before_squared = 0.0
        self._verdicts = VERDICTS
        self._assign(count)
        if share:
            self._restart(now)
        self._settle(now)

    def _assign(self, count: int) -> None:
        """Let `count` chains speculate: of those that change, the ones with the longest expected rest begin and the others end."""
        change = count - self._speculating
        if not change:
            return
        candidates = [(order, chain) for order, chain in self._live.items() if chain.speculates == (change < 0)]
        if abs(change) < len(candidates):
            rests = self._lengths.rests([self._thought(chain) for _, chain in candidates])
            ranked = sorted(zip(rests, candidates, strict=True), key=lambda item: item[0], reverse=change > 0)
            candidates = [candidate for _, candidate in ranked[: abs(change)]]
        for order, chain in candidates:
            chain.speculates = change > 0
            if chain.speculates and chain.mode == "direct" and not chain.interrupted:
                chain.interrupted = True
                self._ending.append(order)
        self._speculating = count

    def _judge(self, now: float) -> None:
        """Rounds are under way: do they pay?"""
        window, running = self._window, self._counts["speculative"]
        if not window.seconds["speculative"]:
            return
        step = max(window.tokens / window.rounds if window.rounds else 0.0, self._round.tokens)
        allowance = step * (running + 3 * math.sqrt(running))
        hopeless = (window.tokens + allowance) / window.seconds["speculative"] < self._direct_speed()
        if self.changes[-1].what == "probe":
            if hopeless or window.rounds >= self._speculating:
                self._end_probe(now)
            return
        lost = self._lost(now)
        lost, trial = self._lost(now), step / self._direct_speed()
        net = (lost + self._stint) / self._chains
        if (
            (hopeless and self._share == 1)
            or (net > trial and not self._affordable(net, now, 2 * DEBIT))
            or (self._unsure and window.verdicts >= self._verdicts and self._rejected())
        ):
            self._stop(now)
        elif self._turning:
            self._turn(now)
        else:
            self._judge_window(now, lost)

    def _rejected(self) -> bool:
        """Whether so many candidates are rejected that rounds are not expected to pay, long before the target has replaced them."""
        self._verdicts *= 2
        known = self._round
        self._round = structs.replace(known, acceptance=self._window.acceptance(known.acceptance, self._rounds))
        gain = self._best()[1]
        self._round = known
        return gain < UNWORTHY

    def _turn(self, now: float) -> None:
        """A share is new: it is not judged before all chains have begun a round, and then by what follows."""
        waited = self._window.rounds >= self._speculating * (2 if self._share == 1 else 1)
        if waited or (self._share == 1 and not self._counts["direct"]):
            self._stint += self._lost(now)
            self._turning = False
            self._restart(now)

    def _judge_window(self, now: float, lost: float) -> None:
        window = self._window
        deviation = math.sqrt(window.excess_squared + self._before_squared)
        likely = lost + self._before
        if window.rounds >= LEAST and likely > VERY_SURE * deviation:
            self._stop(now)
        elif window.rounds >= self._due:
            if 0 < likely < SURE * deviation:  # by chance, perhaps
                self._due *= 2
            elif likely > 0:
                self._stop(now)
            else:
                self._before, self._before_squared = lost / 2, window.excess_squared / 4
                self._go_on(now)

    def _stop(self, now: float) -> None:
        self._learn(now, surely=True)
        self._switch(0.0, "losing", now, self._best()[2])

    def _end_probe(self, now: float) -> None:
        self._learn(now)
        self._unsure = PROBED_SPREAD + PER_PROBED * math.log(len(self._live) / self._speculating) if self._speculating else PROBED_SPREAD
        share, gain, rate = self._best()
        if gain * math.exp(-self._unsure) > 1:
            self._switch(share, "speculate", now, rate)
        else:
            self._switch(0.0, "probed", now, rate)

    def _go_on(self, now: float) -> None:
        """A window ended well: learn from it, see whether another share would be better, and whether direct mode is still known."""
        window = self._window
        seconds = sum(window.seconds.values())
        observed = self._progress(now) / seconds / self._direct_speed()
        self._learn(now)
        self._unsure = 0.0
        share, gain, rate = self._best()
        self._restart(now)
        self._due = max(4 * self._counts["speculative"], ROUNDS)
        sure = max(observed, gain) * math.exp(-self._seen_direct.spread(self._state(now), PER_TIME_DIRECT) if self._seen_direct else 0.0)
        if sure < 1:
            if self._affordable(2 * self._round.tokens * self._chains / rate * (1 - 1 / max(observed, gain)), now):
                self._switch(0.0, "check", now, rate)
        elif share != self._share and gain > WORTH * observed:
            self._switch(share, "share", now, rate)
        else:
            self._assign(math.ceil(self._share * len(self._live)))

    # Learning.

    def _learn(self, now: float, surely: bool = False) -> None:
        """Make what the window shows of rounds the prediction."""
        window = self._window
        span = now - window.start
        self._stint += self._lost(now)
        if span <= 0:
            return
        if not window.rounds:
            self._learn_from_nothing(now)
            return
        before = self._round.acceptance
        self._round = window.round(self._round)
        chains, others = (window.seconds[mode] / span for mode in ("speculative", "direct"))
        context = self._context_sum / self._chains
        if self.changes[-1].what == "probe":
            self._learn_from_probe(chains, others, context)
        else:
            self._learn_from_share(chains, others, context, self._progress(now) / span, LOST if surely else 0.0)
        self._round = structs.replace(self._round, acceptance=window.acceptance(before, self._rounds))
        self._rounds = min(self._rounds + window.verdicts, MEMORY)
        self._seen_rounds = self._state(now)

    def _learn_from_nothing(self, now: float) -> None:
        """No round ended in a time in which direct mode writes more than a step: rounds are slower, who knows how much."""
        window = self._window
        self._round = structs.replace(self._round, acceptance=window.acceptance(self._round.acceptance, self._rounds))
        self._rounds = min(self._rounds + window.verdicts, MEMORY)
        if (gain := self._best()[1]) > UNWORTHY:
            self._ratio *= UNWORTHY / gain
            self._ratios.clear()
        self._seen_rounds = self._state(now)

    def _learn_from_probe(self, chains: float, others: float, context: float) -> None:
        """Few chains speculated: how much slower the others were shows the interference."""
        window = self._window
        if direct := self._direct_in(window):
            self._fit_interference(
                chains, others, context, lambda model: model.speeds(chains, others, context, self._round).direct / direct
            )
        self._fit_draft(chains, others, context)
        speed = window.tokens / window.round_s
        self._ratio = speed / self._model().speeds(chains, others, context, self._round).speculative

    def _learn_from_share(self, chains: float, others: float, context: float, rate: float, least: float) -> None:
        """So many chains speculated, and all together wrote `rate` tokens a second."""

        def over(model: CostModel) -> float:
            speeds = model.speeds(chains, others, context, self._round)
            return (chains * speeds.speculative + others * speeds.direct) / rate

        weight = max(self._window.rounds / (self._window.rounds + MEMORY), least)
        if chains >= MIXED:
            before = self._interference
            self._fit_interference(chains, others, context, over)
            self._interference = before + (self._interference - before) * weight
        self._fit_draft(chains, others, context)
        self._ratio *= (1 / over(self._model()) / self._ratio) ** weight
        self._ratios[self._share] = self._ratio

    def _direct_in(self, window: Window) -> float:
        """Tokens a second of a direct chain in the window; 0 where nobody knows."""
        written = self._written()
        if written is None or window.written is None or not window.seconds["direct"]:
            return 0.0
        return max(written - window.written - window.other_tokens, 0) / window.seconds["direct"]

    def _fit_interference(self, chains: float, others: float, context: float, over: Callable[[CostModel], float]) -> None:
        """Find the interference with which the model gives what was observed; `over` is predicted over observed."""
        low, high = 0.0, 1.0
        for _ in range(6):
            self._interference = (low + high) / 2
            self._fit_draft(chains, others, context)
            if over(self._model()) > 1:
                low = self._interference
            else:
                high = self._interference

    def _fit_draft(self, chains: float, others: float, context: float) -> None:
        """Scale the draft's cost so that its calls take as long as they took."""
        window = self._window
        if not window.drafts:
            return
        model = self._model()
        load = model.speeds(chains, others, context, self._round).target_load
        observed = window.draft_s / window.drafted / (1 + self._interference * load)
        drafting = max(window.draft_s / max(self._last - window.start, 1e-9), 1.0) * self._round.candidates
        self._draft_scale *= observed / model.draft.seconds(drafting * context, drafting)


def _tail_gain(rests: Sequence[float], count: int, speculative: float, direct: float, alone: float) -> float:
    """By what factor chains that are the last ones end earlier where the `count` with the longest rests speculate than where none does.

    `rests` are tokens, longest first, and the speeds those of a chain. Two times count alike: that of all the work, and that of the
    chain which would take longest if speeds stayed as they are.
    """
    mean, live = sum(rests) / len(rests), len(rests)
    rate = (count * speculative + (live - count) * direct) / live
    slowest = max(rests[0] / speculative, rests[count] / direct if count < live else 0.0)
    return (mean + rests[0]) / alone / (mean / rate + slowest)
