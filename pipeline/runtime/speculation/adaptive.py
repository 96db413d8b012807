"""Decides while a run goes on which chains speculate: facts of calls and steps enter, modes and interruptions leave.

Every chain begins in direct mode. The target's speed there is observed; what rounds would make of it is predicted by a cost model,
tried by few chains first, within a debit account, and then observed too. What is observed replaces what was assumed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

from pipeline.runtime.speculation.cost_model import CostModel
from pipeline.runtime.speculation.estimates import MIXED, UNWORTHY, Choice, Estimates, State
from pipeline.runtime.speculation.expected_rest import ExpectedRest, horizon
from pipeline.runtime.speculation.modes import CallFacts, Change, Mode
from pipeline.runtime.speculation.window import Window

DEBIT = 0.015
"""Share of a run that trials and switches may cost."""
WORTH = 1.05
"""The gain from which another share of speculating chains is worth a switch."""
PROBED = 64
"""One of so many chains is in a probe, and at least one."""
FIRST_SPREAD, PROBED_SPREAD, PER_PROBED, GIVEN_SPREAD = 0.6, 0.1, 0.05, 0.1
"""Standard deviations of the logarithm of a predicted speed: before any round was observed, after some chains had one (and
for each time that all are e times as many), and with a given model."""
PER_TIME, PER_TIME_DIRECT = 0.1, 0.03
"""The same for time since the start of the run: of rounds, and of direct mode."""
ITERATIONS = 12
"""Iterations of the target that make an observation."""
ROUNDS, LEAST = 24, 12
"""Fewest rounds that make an observation, and before which (and before two of every chain) rounds are not judged at all."""
SURE, VERY_SURE = 1.0, 2.5
"""Standard deviations by which rounds must have taken too long before they count as losing: when a window ends, and before."""
FIRST_LOOK_S, FIRST_SAMPLE_S = 0.02, 2.0
"""Seconds until the target's tokens are first counted; where they cannot be, until a direct request is first interrupted."""
VERDICTS = 4
"""Verdicts of a trial at which its acceptance is looked at first; then at twice as many."""
JUDGED = 16
"""Rounds are judged so often while each of the speculating chains has one."""
TURN = 4
"""Steps that direct mode may write while chains that turn to rounds have their first one, for which both engines compute their contexts."""
CHANGES = 500
"""Most entries of `Adaptive.changes`."""


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


class Adaptive:
    """The `ModeControl` of `speculate: auto`.

    `written` says how many tokens the target has sampled so far, those of running requests included, or None where its engine does
    not know: then a direct request is interrupted now and then to learn how fast it was. `model` is what a calibration found.
    """

    def __init__(self, *, written: Callable[[], int | None] = lambda: None, model: CostModel | None = None) -> None:
        self._written = written
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        """The last decisions: `probe`, few chains speculate, to learn; `probed`, they have; `speculate`; `losing`, back to direct mode;
        `check`, the same, to see how fast that is now; `share`, more or fewer chains speculate."""
        # What is known: of the target alone, of rounds, of lengths.
        self._known = Estimates(model)
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
        mode: Mode = "speculative" if chain.speculates else "direct"
        chain.mode = mode
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
        if chain.mode == mode == "speculative" and self._known.fit.known:
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
        ending, self._ending = [order for order in self._ending if order in self._live], []
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

    @property
    def _context(self) -> float:
        return self._context_sum / self._chains

    def _state(self, now: float) -> State:
        return State(self._chains, self._context, now - self._start)

    def _direct_speed(self) -> float:
        """Tokens a second of each chain if none speculates."""
        return 1 / self._known.fit.seconds(self._chains, self._context_sum)

    # Observing the target alone.

    def _restart(self, now: float) -> None:
        self._window = Window(now, self._written(), self._counts["speculative"])

    def _settle(self, now: float) -> None:
        """Where the last round of a share is over: charge what it lost, and observe the target alone from now on."""
        if not self._share and not self._counts["speculative"] and not self._settled and self._known.fit.known:
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
        pause = ITERATIONS / self._direct_speed() if self._known.fit.known else FIRST_LOOK_S
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
            self._known.fit.observe(chains, self._context_sum, seconds)
            self._seen_direct = self._state(now)
            self._consider(now)

    # Predicting.

    def _best(self, acceptance: float | None = None) -> Choice:
        return self._known.best(self._chains, self._context, self._rests(), acceptance)

    def _rests(self) -> list[float]:
        """Expected rests of the live chains, longest first, where no more chains come and some could be left out."""
        if not self._exhausted or len(self._live) < MIXED:
            return []
        return sorted(self._lengths.rests([self._thought(chain) for chain in self._live.values()]), reverse=True)

    def _thought(self, chain: LiveChain) -> float:
        return chain.written + (self._direct_tokens - chain.start if chain.mode == "direct" else 0.0)

    # The account.

    def _affordable(self, cost: float, now: float, share: float = DEBIT) -> bool:
        return self._debit + cost <= share * (now - self._start) * horizon(len(self._live), self._ended, self._exhausted)

    def _lost(self, now: float) -> float:
        """Seconds that the chains lost in the window against direct mode, added up."""
        return sum(self._window.seconds.values()) - self._progress(now) / self._direct_speed()

    def _progress(self, now: float) -> float:
        """Tokens that all chains got on in the window. A round that is under way counts as half a step, where none was at the start."""
        window, direct = self._window, self._counts["direct"]
        step = window.tokens / window.rounds if window.rounds else self._known.round.tokens
        committed = window.tokens + step * (self._counts["speculative"] - window.running) / 2
        if self._share == 1:  # the direct requests are those that complete a step
            return committed + window.direct_tokens + direct * step / 4
        most = window.seconds["direct"] * self._direct_speed()
        written = self._written()
        if written is None or window.written is None:
            return committed + most / (1 + self._known.interference)
        return committed + min(most, written - window.written - window.other_tokens)

    def _under_way(self) -> float:
        """Tokens that the target has sampled for rounds that are not over, such as a long step after a rejection; 0 where nobody knows."""
        window, written = self._window, self._written()
        if self._counts["direct"] or written is None or window.written is None:
            return 0.0
        return max(written - window.written - window.other_tokens - window.direct_tokens, 0.0)

    # Deciding.

    def _consider(self, now: float) -> None:
        """All chains are direct: is it time for rounds?"""
        live = len(self._live)
        if not live:
            return
        choice = self._best()
        share, gain, rate = choice.share, choice.gain, choice.rate
        spread = self._unsure + (self._seen_rounds.spread(self._state(now), PER_TIME) if self._seen_rounds else 0.0)
        if gain * math.exp(spread) < WORTH:
            return
        risk = max(0.0, 1 - gain * math.exp(-spread))
        if live > 1 and (gain < UNWORTHY or (risk and self._unsure >= FIRST_SPREAD)):
            if self._affordable(self._probe_cost(), now):
                self._switch(max(live // PROBED, 1) / live, "probe", now, rate)
        elif self._affordable(2 * risk * live * self._known.round.tokens / rate, now, DEBIT if self._unsure else 2 * DEBIT):
            self._switch(share, "speculate", now, rate)

    def _probe_cost(self) -> float:
        """Seconds that a round of few chains is expected to cost all of them."""
        live = len(self._live)
        chains = max(live // PROBED, 1)
        speeds = self._known.model(live).speeds(chains, live - chains, self._context, self._known.round)
        share = (chains * speeds.speculative + (live - chains) * speeds.direct) / (live * self._direct_speed())
        return 1.5 * self._known.round.tokens / speeds.speculative * max(0.0, 1 - share)

    def _switch(self, share: float, what: str, now: float, rate: float) -> None:
        """Let this share of the live chains speculate from their next boundaries on."""
        live = len(self._live)
        count = math.ceil(share * live)
        alone = live * self._direct_speed()
        self.changes.append(Change(time=now, what=what, speculating=count, live=live, speculative=rate, direct=alone))
        self._share, self._turning, self._settled = share, True, False
        self._due = max(4 * count, ROUNDS)
        self._before = self._before_squared = 0.0
        self._verdicts = max(VERDICTS, count)
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
        step = max(window.tokens / window.rounds if window.rounds else 0.0, self._known.round.tokens)
        allowance = step * (running * (TURN if self._turning and self._share == 1 else 1) + 3 * math.sqrt(running))
        hopeless = (window.tokens + self._under_way() + allowance) / window.seconds["speculative"] < self._direct_speed()
        if self.changes[-1].what == "probe":
            if hopeless or window.rounds >= self._speculating:
                self._end_probe(now)
            return
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
        known = self._known.acceptance(self._window)
        deviation = math.sqrt(known * (1 - known) / max(self._window.verdicts, 1))
        return self._best(min(known + deviation, 1.0)).gain < UNWORTHY

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
        if window.rounds >= max(LEAST, 2 * self._speculating) and likely > VERY_SURE * deviation:
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
        self._learn(now, lost=True)
        self._switch(0.0, "losing", now, self._best().rate)

    def _end_probe(self, now: float) -> None:
        self._learn(now)
        self._unsure = PROBED_SPREAD + PER_PROBED * math.log(len(self._live) / self._speculating) if self._speculating else PROBED_SPREAD
        choice = self._best()
        if choice.gain * math.exp(-self._unsure) > 1:
            self._switch(choice.share, "speculate", now, choice.rate)
        else:
            self._switch(0.0, "probed", now, choice.rate)

    def _go_on(self, now: float) -> None:
        """A window ended well: learn from it, see whether another share would be better, and whether direct mode is still known."""
        window = self._window
        seconds = sum(window.seconds.values())
        observed = self._progress(now) / seconds / self._direct_speed()
        self._learn(now)
        self._unsure = 0.0
        choice = self._best()
        share, gain, rate = choice.share, choice.gain, choice.rate
        self._restart(now)
        self._due = max(4 * self._counts["speculative"], ROUNDS)
        sure = max(observed, gain) * math.exp(-self._seen_direct.spread(self._state(now), PER_TIME_DIRECT) if self._seen_direct else 0.0)
        if sure < 1:
            if self._affordable(2 * self._known.round.tokens * self._chains / rate * (1 - 1 / max(observed, gain)), now):
                self._switch(0.0, "check", now, rate)
        elif share != self._share and gain > WORTH * observed:
            self._switch(share, "share", now, rate)
        else:
            self._assign(math.ceil(self._share * len(self._live)))

    def _learn(self, now: float, lost: bool = False) -> None:
        """Make what the window shows of rounds the prediction."""
        window, known, context = self._window, self._known, self._context
        span = now - window.start
        self._stint += self._lost(now)
        if span <= 0:
            return
        if not window.rounds or (lost and self._turning):
            known.learn_from_nothing(window, self._best().gain)
        elif self.changes[-1].what == "probe":
            known.learn_from_probe(window, self._chains, context, span, self._direct_in(window))
        else:
            known.learn_from_share(window, self._chains, context, span, self._share, self._progress(now) / span, lost)
        self._seen_rounds = self._state(now)

    def _direct_in(self, window: Window) -> float:
        """Tokens a second of a direct chain in the window; 0 where nobody knows."""
        written = self._written()
        if written is None or window.written is None or not window.seconds["direct"]:
            return 0.0
        return max(written - window.written - window.other_tokens, 0) / window.seconds["direct"]
