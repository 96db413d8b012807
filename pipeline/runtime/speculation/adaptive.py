"""Decides while a run goes on which chains speculate: facts of calls and steps enter, modes and interruptions leave.

Every chain begins in direct mode. The target's speed there is observed; what rounds would make of it is predicted by a cost model,
tried within a debit account, and then observed too. What is observed replaces what was assumed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from pipeline.runtime.speculation.cost_model import CostModel, Round, Speeds
from pipeline.runtime.speculation.direct_fit import DirectFit
from pipeline.runtime.speculation.modes import CallFacts, Mode

DEBIT = 0.015
"""Share of a run that trials and switches may cost."""
WORTH = 1.05
"""The gain from which speculation is tried."""
FIRST_SPREAD, PROBED_SPREAD, GIVEN_SPREAD = 0.6, 0.15, 0.1
"""Standard deviations of the logarithm of a predicted speed: before any round was observed, after some chains had one, and with a
given model."""
PER_CHAINS, PER_CONTEXT, PER_TIME, PER_TIME_DIRECT = 0.2, 0.1, 0.1, 0.03
"""What the spread grows by when number of chains, context or time since the observation grow or shrink e times."""
PROBED = 32
"""One of so many chains is in a probe, and at least one."""
ITERATIONS = 12
"""Iterations of the target that make an observation."""
ROUNDS = 24
"""Fewest rounds that make an observation."""
SURE, VERY_SURE = 1.0, 2.5
"""Standard deviations by which rounds must have taken too long before they count as losing: when a window ends, and before."""
LEAST = 12
"""Rounds before which a window is not judged by them."""
INTERFERENCE = 0.5
"""What is assumed where nothing is known."""
ASSUMED, MEMORY = 8, 64
"""Rounds that what is known of the acceptance weighs: before any was observed, and at most."""
CHANGES = 500
"""Most entries of `Adaptive.changes`."""


class Change(Struct, frozen=True, kw_only=True):
    """A decision, with what it was based on."""

    time: float
    what: str
    speculating: int
    """Chains that are to speculate from now on."""
    live: int
    speculative: float | None
    """Expected tokens a second of a chain where all speculate; null where not known yet."""
    direct: float | None
    """The same where none does."""


class LiveChain:
    """What is known of a chain in its loop."""

    __slots__ = ("began", "context", "interrupted", "mode", "speculates", "start")

    def __init__(self, speculates: bool) -> None:
        self.speculates = speculates
        """Whether it is to go on by rounds from its next boundary on."""
        self.mode: Mode | None = None
        """The mode of its step under way; None before its first one."""
        self.context = 0
        self.began = 0.0
        """When its round began."""
        self.start = 0.0
        """Direct tokens of every chain when its direct request began."""
        self.interrupted = False


class Window:
    """What was observed since `start`."""

    def __init__(self, start: float, written: int | None) -> None:
        self.start, self.written = start, written
        self.speculative_s = self.direct_s = 0.0
        """Seconds that chains spent in each mode, added up over the chains."""
        self.tokens = self.rounds = self.accepted = 0
        """Committed by rounds."""
        self.round_s = 0.0
        """Seconds of these rounds, added up."""
        self.excess = self.excess_squared = 0.0
        """Seconds by which these rounds took longer than direct mode would have for the same tokens, and the squares of these."""
        self.other = 0
        """Tokens of the target that were not direct."""
        self.drafts = self.judges = 0
        self.draft_s = self.drafted = self.candidates = self.verified = 0.0


class Adaptive:
    """The `ModeControl` of `speculate: auto`."""

    def __init__(self, *, written: Callable[[], int | None] = lambda: None, model: CostModel | None = None) -> None:
        self._written = written
        self._given = model
        self._fit = DirectFit(model.target if model else None)
        self._draft_scale = 1.0
        self._interference = model.interference if model else INTERFERENCE
        self._round = Round()
        self._unsure = GIVEN_SPREAD if model else FIRST_SPREAD
        """What the spread of a prediction is beside `_spread`."""
        self._ratio = 1.0
        """Observed over predicted speed of rounds."""
        self._seen_rounds: tuple[float, float, float] | None = None
        """Chains, mean context and time when rounds were last observed."""
        self._seen_direct: tuple[float, float, float] | None = None
        self._live: dict[int, LiveChain] = {}
        self._counts: dict[Mode, int] = {"speculative": 0, "direct": 0}
        self._contexts = 0.0
        """Context of the live chains at their last boundaries, added up."""
        self._starts = 0.0
        """`LiveChain.start` of those in direct mode, added up."""
        self._direct_tokens = 0.0
        """Tokens that a chain would have that was in direct mode since the beginning."""
        self._plan: int | None = 0
        """How many chains are to speculate; None: all."""
        self._ending: list[int] = []
        self._began: float | None = None
        self._last = 0.0
        self._tick = math.inf
        self._window = Window(0.0, None)
        self._fresh = False
        """Whether the window began with the present plan in effect."""
        self._exhausted = False
        self._ended = 0
        self._debit = 0.0
        self._rounds = ASSUMED
        """How many rounds what is known of the acceptance weighs."""
        self._first = True
        """Whether the window is the first one of a trial."""
        self._due = ROUNDS
        """Rounds at which the window is judged."""
        self.changes: deque[Change] = deque(maxlen=CHANGES)

    # events

    def enter(self, order: int, now: float) -> None:
        """See `ModeControl.enter`."""
        self._pass(now)
        if self._began is None:
            self._began = now
            self._tick = now + 0.02
            self._restart(now)
        self._live[order] = LiveChain(self._plan is None)

    def leave(self, order: int, now: float) -> None:
        """See `ModeControl.leave`."""
        self._pass(now)
        chain = self._live.pop(order, None)
        if chain is not None:
            self._end_step(chain)
            self._contexts -= chain.context
            self._ended += 1

    def exhausted(self) -> None:
        """See `ModeControl.exhausted`."""
        self._exhausted = True

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        """See `ModeControl.mode`."""
        self._pass(now)
        chain = self._live[order]
        self._end_step(chain)
        self._contexts += context_tokens - chain.context
        chain.context = context_tokens
        chain.mode = mode = "speculative" if chain.speculates else "direct"
        self._counts[mode] += 1
        chain.began = now
        if mode == "direct":
            chain.start, chain.interrupted = self._direct_tokens, False
            self._starts += chain.start
            if not self._counts["speculative"] and not self._fresh and self._plan == 0:
                self._settle(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        """See `ModeControl.wrote`."""
        self._pass(now)
        if mode == "speculative":
            window = self._window
            window.tokens += tokens
            seconds = now - self._live[order].began
            window.round_s += seconds
            window.rounds += 1
            window.accepted += accepted
            if self._fit.known:
                excess = seconds - tokens / self._direct_speed()
                window.excess += excess
                window.excess_squared += excess * excess
            if self._plan != 0:
                self._weigh(now)

    def called(self, call: CallFacts) -> None:
        """See `ModeControl.called`."""
        self._pass(call.end)
        window = self._window
        if call.purpose == "draft":
            window.drafts += 1
            window.draft_s += call.end - call.submit
            window.drafted += call.output_tokens / call.n
            window.candidates += call.n
            return
        if call.purpose == "judge":
            window.judges += 1
            window.verified += call.input_tokens - call.cached_input_tokens
        if not call.direct:
            window.other += call.output_tokens

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

    # bookkeeping

    def _pass(self, now: float) -> None:
        span, self._last = now - self._last, now
        if span > 0:
            self._window.speculative_s += span * self._counts["speculative"]
            self._window.direct_s += span * self._counts["direct"]

    def _end_step(self, chain: LiveChain) -> None:
        if chain.mode is not None:
            self._counts[chain.mode] -= 1
            if chain.mode == "direct":
                self._starts -= chain.start
            chain.mode = None

    def _restart(self, now: float) -> None:
        """Begin a window."""
        self._window = Window(now, self._written())

    def _settle(self, now: float) -> None:
        """The last round of a stint is over: charge what it lost, and observe the target alone from now on."""
        self._charge(self._window)
        self._restart(now)
        self._fresh = True
        self._tick = now + ITERATIONS * self._fit.seconds(self._chains, self._context_sum) if self._fit.known else now + 0.02

    @property
    def _chains(self) -> float:
        return max(len(self._live), 1)

    @property
    def _context_sum(self) -> float:
        return self._contexts + self._counts["direct"] * self._direct_tokens - self._starts

    @property
    def _context(self) -> float:
        return max(self._context_sum / self._chains, 1.0)

    def _direct_speed(self) -> float:
        return 1 / self._fit.seconds(self._chains, self._context_sum)

    def _charge(self, window: Window) -> None:
        if self._fit.known:
            self._debit += max(self._lost(window), 0.0) / self._chains

    def _lost(self, window: Window) -> float:
        """Seconds that the chains lost in `window` against direct mode, added up."""
        lost = window.speculative_s - window.tokens / self._direct_speed()
        written = self._written()
        if self._plan and written is not None and window.written is not None:
            lost += window.direct_s - (written - window.written - window.other) / self._direct_speed()
        return lost

    # observing the target alone

    def _look(self, now: float) -> None:
        if not self._live:
            self._tick = math.inf
            return
        if self._plan != 0:
            self._weigh(now)
            self._tick = now + max(ITERATIONS / self._direct_speed(), 0.01 * (now - self._start_time))
            return
        self._observe_direct(now)
        if self._fit.known:
            self._tick = now + max(ITERATIONS / self._direct_speed(), 0.01 * (now - self._start_time))
        else:
            self._tick = now + max(0.02, 0.1 * (now - self._start_time))

    @property
    def _start_time(self) -> float:
        return self._began or 0.0

    def _observe_direct(self, now: float) -> None:
        window, written = self._window, self._written()
        if self._counts["speculative"] or written is None or window.written is None:
            return
        tokens, span = written - window.written, now - window.start
        if not self._fresh:
            if tokens >= self._chains:  # all prompts are computed
                self._restart(now)
                self._fresh = True
            return
        if span <= 0 or tokens < ITERATIONS * self._chains / 2:
            return
        chains = window.direct_s / span
        before = self._context_sum
        self._direct_tokens += tokens / max(chains, 1e-9)
        self._fit.observe(chains, (before + self._context_sum) / 2, window.direct_s / tokens)
        self._seen_direct = (self._chains, self._context, now)
        self._restart(now)
        self._consider(now)

    # deciding

    def _model(self) -> CostModel:
        target = self._fit.cost(self._chains)
        draft = self._given.draft if self._given else target.scaled(0.25)
        return CostModel(target=target, draft=draft.scaled(self._draft_scale), interference=self._interference)

    def _predict(self) -> Speeds:
        """Speeds if all live chains speculate."""
        speeds = self._model().speeds(self._chains, 0, self._context, self._round)
        return Speeds(speeds.speculative * self._ratio, speeds.direct, speeds.target_load)

    def _spread(self, seen: tuple[float, float, float] | None, now: float, per_time: float) -> float:
        if seen is None:
            return 0.0
        chains, context, time = seen
        spread = PER_CHAINS * abs(math.log(self._chains / chains)) + PER_CONTEXT * abs(math.log(self._context / context))
        elapsed, then = now - self._start_time, time - self._start_time
        return spread + per_time * math.log(max(elapsed, 1e-9) / max(then, 1e-9))

    def _affordable(self, cost: float, now: float, share: float = DEBIT) -> bool:
        return self._debit + cost <= share * (now - self._start_time) * self._horizon()

    def _horizon(self) -> float:
        """How many times as long as until now the run is expected to take at least.

        Where none of n chains has ended yet, the mean thought is longer than what was written by about the ratio of the mean to the
        least of n draws; this is it for log-normal lengths with a sigma of 0.7. While more chains come, as many are expected again as came.
        """
        return (1 if self._exhausted else 2) * float(1 + len(self._live) / (1 + self._ended)) ** 0.45

    def _consider(self, now: float) -> None:
        """All chains are direct: is it time to try rounds?"""
        live = len(self._live)
        speed, direct = self._predict().speculative, self._direct_speed()
        gain, spread = speed / direct, self._spread(self._seen_rounds, now, PER_TIME) + self._unsure
        if gain * math.exp(spread) < WORTH:
            return
        if gain * math.exp(-spread) < 1 and self._unsure >= FIRST_SPREAD and live > 1:
            probing = max(live // PROBED, 1)
            if self._affordable(self._probe_cost(probing), now):
                self._switch(probing, "probe", now, speed)
        elif self._affordable(self._round.tokens / speed * max(0.0, 1 - gain * math.exp(-spread)), now, DEBIT * (1 + (gain > WORTH))):
            self._switch(None, "speculate", now, speed)

    def _probe_cost(self, chains: int) -> float:
        """Seconds that a round of so many chains is expected to cost."""
        direct, live = self._direct_speed(), len(self._live)
        speeds = self._model().speeds(chains, live - chains, self._context, self._round)
        share = (chains * speeds.speculative + (live - chains) * speeds.direct) / (live * direct)
        return self._round.tokens / speeds.speculative * max(0.0, 1 - share)

    def _switch(self, plan: int | None, what: str, now: float, speculative: float | None) -> None:
        live = len(self._live)
        self._plan = plan
        self.changes.append(
            Change(
                time=now, what=what, speculating=live if plan is None else plan, live=live,
                speculative=speculative, direct=self._direct_speed() if self._fit.known else None,
            )  # fmt: skip
        )
        wanted = live if plan is None else plan
        for order, chain in self._live.items():
            chain.speculates, wanted = wanted > 0, wanted - 1
            if chain.speculates and chain.mode == "direct" and not chain.interrupted:
                chain.interrupted = True
                self._ending.append(order)
        self._first = True
        self._due = max(4 * live, ROUNDS)
        self._fresh = False
        if plan != 0:
            self._restart(now)
        elif not self._counts["speculative"]:
            self._settle(now)

    def _weigh(self, now: float) -> None:
        """Rounds are under way: do they pay?"""
        window, running, direct, live = self._window, self._counts["speculative"], self._direct_speed(), len(self._live)
        if window.speculative_s <= 0:
            return
        step = max(window.tokens / window.rounds if window.rounds else 0.0, self._round.tokens)
        under_way = step * (running + 3 * math.sqrt(running))
        losing = (window.tokens + under_way) / window.speculative_s < direct or self._surely_losing(window)
        if self._plan is not None:
            if losing or window.rounds >= self._plan:
                self._record(now)
                self._unsure = PROBED_SPREAD
                speed = self._predict().speculative
                if speed / direct * math.exp(-PROBED_SPREAD) > 1:
                    self._switch(None, "speculate", now, speed)
                else:
                    self._switch(0, "probed", now, speed)
        elif losing:
            self._record(now)
            self._switch(0, "losing", now, window.tokens / window.speculative_s)
        elif window.rounds >= self._due:
            losing = window.excess > 0
            if losing and self._affordable(self._lost(window) / live, now) and window.excess**2 < SURE**2 * window.excess_squared:  # by chance, perhaps
                self._due *= 2
                return
            ratio = 1 - window.excess / window.round_s
            self._record(now)
            self._unsure = 0.0
            self._first = False
            self._restart(now)
            self._due = max(4 * running, ROUNDS)
            speed = self._predict().speculative
            if losing:
                self._switch(0, "losing", now, speed)
                return
            gain = max(ratio, speed / direct)
            if gain * math.exp(-self._spread(self._seen_direct, now, PER_TIME_DIRECT)) < 1:
                if self._affordable(2 * self._round.tokens / speed * (1 - 1 / gain), now):
                    self._switch(0, "check", now, speed)

    def _surely_losing(self, window: Window) -> bool:
        return window.rounds >= LEAST and window.excess > 0 and window.excess**2 > VERY_SURE**2 * window.excess_squared

    def _speed(self, window: Window) -> float:
        """Tokens a second of a chain that speculates. In the first window of a trial short rounds end first, which flatters whole rounds,
        and all of the time counts rounds that did not end yet as nothing: the truth is between them."""
        whole = window.tokens / window.round_s
        return math.sqrt(whole * window.tokens / window.speculative_s) if self._first and self._plan is None else whole

    def _record(self, now: float) -> None:
        """Make the observed rounds the prediction."""
        window = self._window
        span = max(now - window.start, 1e-9)
        self._charge(window)
        if not window.rounds:
            return
        before, acceptance = self._round.acceptance, window.accepted / window.rounds
        self._round = Round(
            tokens=window.tokens / window.rounds,
            drafted=window.drafted / window.drafts if window.drafts else self._round.drafted,
            candidates=window.candidates / window.drafts if window.drafts else 1.0,
            verified=window.verified / window.judges if window.judges else self._round.verified,
            acceptance=acceptance,
        )
        chains, others, context = window.speculative_s / span, window.direct_s / span, self._context
        if self._plan is None:
            others = 0.0
        speed = self._speed(window)
        if window.drafts:
            self._fit_draft(window, chains, others, context)
        written = self._written()
        if others and written is not None and window.written is not None:
            observed_direct = (written - window.written - window.other) / window.direct_s
            self._fit_interference(window, chains, others, context, lambda speeds: speeds.direct / observed_direct)
        elif not others and chains >= 4:
            self._fit_interference(window, chains, others, context, lambda speeds: speeds.speculative / speed)
        predicted = self._model().speeds(chains, others, context, self._round).speculative
        self._ratio = speed / predicted
        smoothed = before + (acceptance - before) * window.rounds / (window.rounds + self._rounds)
        self._rounds = min(self._rounds + window.rounds, MEMORY)
        self._round = structs.replace(self._round, acceptance=smoothed)
        self._seen_rounds = (max(chains + others, 1.0), context, now)

    def _fit_interference(
        self, window: Window, chains: float, others: float, context: float, over: Callable[[Speeds], float]
    ) -> None:
        """Find the interference with which the model gives what was observed; `over` is predicted over observed."""
        low, high = 0.0, 1.0
        for _ in range(6):
            self._interference = (low + high) / 2
            if window.drafts:
                self._fit_draft(window, chains, others, context)
            if over(self._model().speeds(chains, others, context, self._round)) > 1:
                low = self._interference
            else:
                high = self._interference

    def _fit_draft(self, window: Window, chains: float, others: float, context: float) -> None:
        """Scale the draft's cost so that its calls take as long as they took."""
        model = self._model()
        load = model.speeds(chains, others, context, self._round).target_load
        observed = window.draft_s / window.drafted / (1 + self._interference * load)
        drafting = max(window.draft_s / max(self._last - window.start, 1e-9), 1.0) * self._round.candidates
        self._draft_scale *= observed / model.draft.seconds(drafting * context, drafting)
