"""Decides during a run which chains speculate: facts of calls and steps enter, modes and interruptions leave.

Every chain begins in direct mode. The target's speed there is observed; what rounds would make of it is predicted by a cost model,
tried by few chains first, within a debit account, and then observed too. What is observed replaces what was assumed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.runtime.speculation.estimates import MIXED, UNWORTHY, Choice, Estimates, State
from pipeline.runtime.speculation.live_chains import LiveChains
from pipeline.runtime.speculation.modes import CallFacts, Change, Mode
from pipeline.runtime.speculation.window import Window

DEBIT, LOOKING = 0.01, 0.015
"""Shares of a run that trials with all chains may cost, twice as much when all is known or one chain is left, and up to which a probe or
a check is begun."""
WORTH = 1.05
"""The gain from which another share of speculating chains is worth a switch."""
PROBED = 64
"""One in this many chains is in a probe, and at least one."""
FIRST_SPREAD, PROBED_SPREAD, PER_PROBED = 0.6, 0.1, 0.05
"""Standard deviations of the logarithm of a predicted speed: before any round was observed, after some chains had one, and
for each time that all are e times as many."""
PER_TIME, PER_TIME_DIRECT = 0.1, 0.03
"""The same for time since the start of the run: of rounds, and of direct mode."""
ITERATIONS, OBSERVED_S = 12, 0.2
"""Iterations of the target, and seconds, that make an observation."""
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
AGAIN = 2.0
"""Rounds that lost are tried again when the run has taken this many times as long as until then."""
SPARE = 8
"""For this many requests that the target computes, one may wait there, and at least one."""
CHANGES = 500
"""Most entries of `Adaptive.changes`."""


class Requests(NamedTuple):
    """What the target has to do."""

    running: int = 0
    """Requests that it computes."""
    waiting: int = 0
    """Requests that wait there until it has room."""


class Adaptive:
    """The `ModeControl` of `speculate: auto`.

    `written` says how many tokens the target has sampled so far, those of running requests included, or None where its engine does
    not know: then a direct request is interrupted now and then to learn how fast it was. `requests` says how many it has.
    """

    def __init__(
        self,
        *,
        written: Callable[[], int | None] = lambda: None,
        requests: Callable[[], Requests] = Requests,
    ) -> None:
        self._written, self._requests = written, requests
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        """The last decisions: `probe`, few chains speculate, to learn; `probed`, they have; `speculate`; `losing`, back to direct mode;
        `check`, the same, to see how fast that is now; `share`, more or fewer chains speculate."""
        # What is known: of the target alone, of rounds, of lengths.
        self._known = Estimates()
        self._unsure = FIRST_SPREAD
        self._seen_rounds: State | None = None
        self._seen_direct: State | None = None
        self._chains = LiveChains()
        self._waited = 0
        """Requests that waited at the target when it was looked at last."""
        self._room: int | None = None
        """How many requests the target computes at once and has available; None: none had to wait."""
        # What is decided.
        self._share = 0.0
        self._ending: list[int] = []
        self._tried = math.inf
        """Seconds from the start until the last switch."""
        self._debit = self._stint = 0.0
        """Seconds lost by what is over, and since speculation began last; negative where it won."""
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

    @property
    def most(self) -> int | None:
        return None if self._share == 1 else self._room

    def enter(self, order: int, now: float) -> None:
        self._pass(now)
        if math.isnan(self._start):
            self._start = now
            self._tick = now + FIRST_LOOK_S
            self._restart(now)
        self._chains.enter(order, self._share)

    def leave(self, order: int, now: float) -> None:
        self._pass(now)
        self._chains.leave(order)
        self._settle(now)

    def pause(self, order: int, now: float) -> None:
        self._pass(now)
        self._chains.pause(order)
        self._settle(now)

    def resume(self, order: int, now: float) -> None:
        self._pass(now)
        self._ending += self._chains.resume(order, self._share, now)

    def exhausted(self) -> None:
        self._chains.exhausted = True

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        self._pass(now)
        mode = self._chains.step(order, context_tokens, now)
        if mode == "direct":
            self._settle(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        self._pass(now)
        chain = self._chains[order]
        chain.written += tokens
        if chain.mode == mode == "speculative" and self._known.fit.known:
            due = self._window.rounds % (1 + self._chains.speculating // JUDGED) == 0
            if due:
                self._pace = self._direct_speed()
            self._window.wrote(tokens, accepted, now - chain.began, self._pace)
            if due and self._share:
                self._judge(now)

    def called(self, call: CallFacts) -> None:
        self._pass(call.end)
        self._window.called(call)
        if call.direct and self._window.written is None and call.output_tokens >= ITERATIONS:
            self._observe_direct(self._chains.at_least_one, (call.end - call.submit) / call.output_tokens, call.end)

    def interrupts(self, now: float) -> Sequence[int]:
        self._pass(now)
        if now >= self._tick:
            self._look(now)
        ending, self._ending = [order for order in self._ending if order in self._chains], []
        return ending

    def wake(self) -> float:
        return self._tick

    def _pass(self, now: float) -> None:
        """Time passed."""
        span, self._last = now - self._last, now
        if span > 0:
            seconds, counts = self._window.seconds, self._chains.counts
            seconds["speculative"] += span * counts["speculative"]
            seconds["direct"] += span * counts["direct"]

    def _state(self, now: float) -> State:
        return State(self._chains.at_least_one, self._chains.context, now - self._start)

    def _direct_speed(self) -> float:
        """Tokens a second of each chain if none speculates, those that wait for others at the target included."""
        live = self._chains.at_least_one
        running = min(live, self._room or live)
        return running / live / self._known.fit.seconds(running, self._chains.context * running)

    # Observing the target alone.

    def _restart(self, now: float) -> None:
        self._window = Window(now, self._written(), self._chains.counts["speculative"])

    def _settle(self, now: float) -> None:
        """Where the last round of a share is over: charge what it lost, and observe the target alone from now on."""
        if not self._share and not self._chains.counts["speculative"] and not self._settled and self._known.fit.known:
            self._debit += max(self._stint + self._lost_s(now), 0.0)
            self._stint = 0.0
            self._restart(now)
            self._settled = True
            self._tick = now + self._observation_s()

    def _look(self, now: float) -> None:
        """The time has come to look at what the engines did."""
        elapsed = now - self._start
        if not self._chains:
            self._tick = math.inf
            return
        if self._share:
            self._judge(now)
        elif self._window.written is None:
            self._sample(now)
        else:
            self._count(now)
        self._find_room()
        pause = self._observation_s() if self._known.fit.known else FIRST_LOOK_S
        self._tick = max(now + max(pause, 0.01 * elapsed), self._tick if self._tick > now else now)

    def _observation_s(self) -> float:
        """Seconds after which an observation of the target alone is expected to be long enough."""
        return max(ITERATIONS / self._direct_speed(), OBSERVED_S)

    def _count(self, now: float) -> None:
        """Observe how many tokens the target wrote."""
        window, written = self._window, self._written()
        if self._chains.counts["speculative"] or written is None or window.written is None:
            return
        tokens, span = written - window.written, now - window.start
        if not self._settled:
            if tokens >= self._chains.at_least_one:  # all prompts are computed
                self._restart(now)
                self._settled = True
        elif span >= OBSERVED_S / 2 and tokens >= ITERATIONS * self._chains.at_least_one / 2:
            chains = window.seconds["direct"] / span
            self._chains.direct_tokens += tokens / max(chains, 1e-9)
            self._observe_direct(chains, window.seconds["direct"] / tokens, now)
            self._restart(now)

    def _sample(self, now: float) -> None:
        """Where nobody counts the target's tokens: interrupt one request, to learn how many it wrote."""
        self._tick = now + max(FIRST_SAMPLE_S, 2 * (now - self._start))
        if now - self._start >= FIRST_SAMPLE_S:
            for order, chain in self._chains.direct():
                chain.interrupted = True
                self._ending.append(order)
                return

    def _find_room(self) -> None:
        """See whether requests wait at the target though it has come through the prompts."""
        running, waiting = self._requests()
        spare = max(running // SPARE, 1)
        if self._share == 1 or not (self._share or self._settled):
            waiting = 0
        elif min(waiting, self._waited) > spare:
            self._room = running + spare
        elif self._room is not None and not waiting:
            self._room += spare
        self._waited = waiting

    def _observe_direct(self, chains: float, seconds: float, now: float) -> None:
        if not self._share and not self._chains.counts["speculative"]:
            self._known.fit.observe(chains, self._chains.context_sum, seconds)
            self._seen_direct = self._state(now)
            self._consider(now)

    # Predicting.

    def _best(self, acceptance: float | None = None) -> Choice:
        chains, direct = self._chains, self._direct_speed()
        return self._known.best(chains.at_least_one, chains.context, direct, self._rests(), mixed=not self._crowded, acceptance=acceptance)

    @property
    def _crowded(self) -> bool:
        """Whether the target had no room for all live chains, or some pause: what it does with some says little of all."""
        return self._room is not None or self._chains.some_pause

    def _rests(self) -> list[float]:
        """Expected rests of the live chains, longest first, where no more chains come and some could be left out."""
        return self._chains.rests() if self._chains.last and len(self._chains) >= MIXED else []

    # The account.

    def _affordable(self, cost: float, now: float, share: float) -> bool:
        return self._debit + cost <= share * (now - self._start) * self._chains.horizon

    def _trial_share(self) -> float:
        """The share of the run that trials with all chains may cost."""
        return DEBIT if self._unsure and not self._chains.single else 2 * DEBIT

    def _lost(self) -> float:
        """Seconds that the chains lost in the window against direct mode, added up."""
        return sum(self._window.seconds.values()) - self._progress() / self._direct_speed()

    def _lost_s(self, now: float) -> float:
        """Seconds that the run lost in the window: those of all chains, shared by as many as went on in it."""
        together = sum(self._window.seconds.values())
        return self._lost() * (now - self._window.start) / together if together else 0.0

    def _progress(self) -> float:
        """Tokens that all chains advanced in the window, at least 1: what an engine has counted may lag behind what it has answered."""
        return max(self._counted(), 1.0)

    def _counted(self) -> float:
        """The same by what is counted. A draft that is under way counts as half a step, where none was at the start."""
        window, written = self._window, self._written()
        step = window.tokens / window.rounds if window.rounds else self._known.round.tokens
        begun = step * (self._chains.counts["speculative"] - window.running) / 2
        if written is not None and window.written is not None:  # what the target wrote is not lost, whether its request is over or not
            return window.tokens + self._known.round.acceptance * begun + written - window.written - window.other_tokens
        if self._share == 1:  # the direct requests are those that complete a step
            return window.tokens + begun + window.direct_tokens + self._chains.counts["direct"] * step / 4
        return window.tokens + begun + window.seconds["direct"] * self._direct_speed() / (1 + self._known.interference)

    def _under_way(self) -> float:
        """Tokens that the target has sampled for rounds that are not over, such as a long step after a rejection; 0 where nobody knows."""
        window, written = self._window, self._written()
        if self._chains.counts["direct"] or written is None or window.written is None:
            return 0.0
        return max(written - window.written - window.other_tokens - window.direct_tokens, 0.0)

    # Deciding.

    def _consider(self, now: float) -> None:
        """All chains are direct: is it time for rounds?"""
        live = len(self._chains)
        if not live:
            return
        choice = self._best()
        gain, rate = choice.gain, choice.rate
        spread = self._unsure + (self._seen_rounds.spread(self._state(now), PER_TIME) if self._seen_rounds else 0.0)
        again = now - self._start > AGAIN * self._tried
        if gain * math.exp(spread) < WORTH and not again:
            return
        risk = max(0.0, 1 - gain * math.exp(-spread))
        if live > 1 and (gain < UNWORTHY or self._unsure >= FIRST_SPREAD):
            if self._affordable(self._probe_cost(), now, LOOKING):
                self._switch(max(live // PROBED, 1) / live, "probe", now, rate)
            return
        rounds = 1 if live == 1 else 2  # Chains reach their boundaries at different times, so that a trial of several lasts longer.
        if self._affordable(rounds * risk * live * self._known.round.tokens / rate, now, self._trial_share()):
            self._switch(choice.share, "speculate", now, rate)

    def _probe_cost(self) -> float:
        """Seconds that a round of few chains is expected to cost all of them."""
        live = len(self._chains)
        chains = max(live // PROBED, 1)
        speeds = self._known.model(live).speeds(chains, live - chains, self._chains.context, self._known.round)
        share = (chains * speeds.speculative + (live - chains) * speeds.direct) / (live * self._direct_speed())
        return 1.5 * self._known.round.tokens / speeds.speculative * max(0.0, 1 - share)

    def _switch(self, share: float, what: str, now: float, rate: float) -> None:
        """Let this share of the live chains speculate from their next boundaries on."""
        live = len(self._chains)
        count = math.ceil(share * live)
        alone = live * self._direct_speed()
        self.changes.append(Change(time=now, what=what, speculating=count, live=live, speculative=rate, direct=alone))
        self._share, self._turning, self._settled = share, True, False
        self._tried = now - self._start
        self._due = max(4 * count, ROUNDS)
        self._before = self._before_squared = 0.0
        self._verdicts = max(VERDICTS, count)
        self._ending += self._chains.assign(count)
        self._restart(now)
        self._settle(now)

    def _judge(self, now: float) -> None:
        """Rounds are under way: do they pay?"""
        window, running = self._window, self._chains.counts["speculative"]
        if not self._chains.speculating:  # those in a probe have ended or pause
            self._ending += self._chains.assign(math.ceil(self._share * len(self._chains)))
        if not window.seconds["speculative"]:
            return
        step = max(window.tokens / window.rounds if window.rounds else 0.0, self._known.round.tokens)
        allowance = step * (running * (TURN if self._turning and self._share == 1 else 1) + 3 * math.sqrt(running))
        hopeless = (window.tokens + self._under_way() + allowance) / window.seconds["speculative"] < self._direct_speed()
        if self.changes[-1].what == "probe":
            if hopeless or window.rounds >= self._chains.speculating:
                self._end_probe(now)
            return
        lost, trial = self._lost(), step / self._direct_speed()
        net = self._lost_s(now) + self._stint
        if (
            (hopeless and self._share == 1 and net > -trial)
            or (net > trial and not self._affordable(net, now, 2 * DEBIT))
            or (self._unsure and not self._crowded and window.verdicts >= self._verdicts and self._rejected())
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
        waited = self._window.rounds >= self._chains.speculating * (2 if self._share == 1 else 1)
        if waited or (self._share == 1 and not self._chains.counts["direct"]):
            self._stint += self._lost_s(now)
            self._turning = False
            self._restart(now)

    def _judge_window(self, now: float, lost: float) -> None:
        window = self._window
        deviation = math.sqrt(window.excess_squared + self._before_squared)
        likely = lost + self._before
        if window.rounds >= max(LEAST, 2 * self._chains.speculating) and likely > VERY_SURE * deviation:
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
        live, probed = len(self._chains), self._chains.speculating
        self._unsure = PROBED_SPREAD + (PER_PROBED * math.log(live / probed) if probed else 0.0)
        choice = self._best()
        if choice.gain * math.exp(-self._unsure) > 1:
            self._switch(choice.share, "speculate", now, choice.rate)
        else:
            self._switch(0.0, "probed", now, choice.rate)

    def _go_on(self, now: float) -> None:
        """A window ended well: learn from it, see whether another share would be better, and whether direct mode is still known."""
        window = self._window
        seconds = sum(window.seconds.values())
        observed = self._progress() / seconds / self._direct_speed()
        self._learn(now)
        self._unsure = 0.0
        choice = self._best()
        share, gain, rate = choice.share, choice.gain, choice.rate
        self._restart(now)
        self._due = max(4 * self._chains.counts["speculative"], ROUNDS)
        sure = max(observed, gain) * math.exp(-self._seen_direct.spread(self._state(now), PER_TIME_DIRECT) if self._seen_direct else 0.0)
        if sure < 1 and not self._crowded:
            step_s = self._known.round.tokens * self._chains.at_least_one / rate
            if self._affordable(2 * step_s * (1 - 1 / max(observed, gain)), now, LOOKING):
                self._switch(0.0, "check", now, rate)
        elif share != self._share and gain > WORTH * observed:
            self._switch(share, "share", now, rate)
        else:
            self._ending += self._chains.assign(math.ceil(self._share * len(self._chains)))

    def _learn(self, now: float, lost: bool = False) -> None:
        """Make what the window shows of rounds the prediction."""
        window, known, context = self._window, self._known, self._chains.context
        span = now - window.start
        self._stint += self._lost_s(now)
        if span <= 0:
            return
        if not window.rounds or (lost and self._turning):
            known.learn_from_nothing(window, self._best().gain, self._chains.at_least_one)
        elif self.changes[-1].what == "probe":
            known.learn_from_probe(window, self._chains.at_least_one, context, span, self._direct_in(window))
        else:
            known.learn_from_share(window, self._chains.at_least_one, context, span, self._share, self._progress() / span, lost)
        self._seen_rounds = self._state(now)

    def _direct_in(self, window: Window) -> float:
        """Tokens a second of a direct chain in the window; 0 where nobody knows."""
        written = self._written()
        if written is None or window.written is None or not window.seconds["direct"]:
            return 0.0
        return max(written - window.written - window.other_tokens, 0) / window.seconds["direct"]
