"""Decides during a run which chains speculate: facts of calls and steps enter, modes and interruptions leave.

Every chain begins in direct mode. The target's speed there is observed; what rounds would make of it is predicted by a cost model,
tried by few chains first, within a budget of lost time, and then observed too. What is observed replaces what was assumed.

Three states, by who speculates, and the decisions in `Adaptive.changes` that lead from one to another::

                 +----probed----+
                 v              |
    start --> direct --probe--> few --speculate--> share --share--+
                ^  |                               ^   | ^        |
                |  +------------speculate----------+   | +--------+
                +-------------losing, check------------+

- `probe`: rounds may gain, or it is time to try them again, and little is known of them. A probe must fit into `probe_budget`.
- `speculate`: out of a probe, where rounds gain even if they are slower by one sigma than predicted; out of direct mode, where rounds were
  observed before, or one chain is left, and what they may lose fits into `trial_budget`.
- `probed`: they do not.
- `share`: another share of the chains promises more by `min_gain`.
- `losing`: rounds lost by more than chance explains, or more than the budget, or most candidates are rejected.
- `check`: direct mode was not observed for so long that it may be the faster one by now.

What holds whenever no method runs: `_window` covers the time since the last decision, or since the last window of the same state ended
well, and `_chains` counts what chains do now; time before it is in `_lost_total_s` (trials that are over) or in `_lost_this_trial_s`. So
each lost second counts once, and trials with all chains begin only while `_lost_total_s` and what they risk stay within `trial_budget` of
the time that the run is expected to take.

Example: 24 thoughts, 8 at a time, QwQ-32B with a draft of 1.5B on two H100 (the world of the tests). At 2.2 s direct mode is known to write
472 tokens a second and rounds are predicted to write 599; one chain probes. Its round says 734, so at 3.1 s all 8 speculate, and the run
takes 70 s where the target alone takes 170 s. With a tenth of the candidates accepted and both engines in turns on one device the same
probe says 493: `probed`. All are tried at 18 s, when the budget allows it, and stopped two seconds later (`losing`); the run takes 175 s.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.runtime.speculation.estimates import Choice, Estimates, ObservationWindow, State
from pipeline.runtime.speculation.live_chains import LiveChains
from pipeline.runtime.speculation.modes import CallFacts, Mode, ModeDecision
from pipeline.runtime.speculation.tuning import TUNING

MAX_CHANGES = 500
"""The number of decisions that `Adaptive.changes` keeps."""


class Requests(NamedTuple):
    """Requests that the target has."""

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
        self.changes: deque[ModeDecision] = deque(maxlen=MAX_CHANGES)
        """The last decisions, each named after the state that it leads to."""
        # What is known: of the target alone, of rounds, of lengths.
        self._estimates = Estimates()
        self._sigma = TUNING.sigma_untried
        """Standard deviation of the logarithm of the predicted speed of rounds when they were last observed; 0 once all chains had some."""
        self._rounds_seen: State | None = None
        self._direct_seen: State | None = None
        self._chains = LiveChains()
        self._waiting_before = 0
        """Requests that waited at the target when it was looked at last."""
        self._target_room: int | None = None
        """The number of requests that the target computes at once or has available; None: none had to wait."""
        # What is decided.
        self._share = 0.0
        self._to_interrupt: list[int] = []
        self._last_switch_s = math.inf
        """Seconds from the start until the last switch."""
        self._lost_total_s = self._lost_this_trial_s = 0.0
        """Seconds that the run lost in trials that are over, and in the one under way; negative where it won."""
        self._verdicts_due = TUNING.first_verdicts
        """The number of verdicts in the window at which its acceptance is looked at next."""
        self._carried_loss = self._carried_variance = 0.0
        """Half of what the previous window lost, and a quarter of the squared excess of its rounds."""
        # What is being observed.
        self._start = math.nan
        self._now = 0.0
        self._wake_at = math.inf
        self._window = ObservationWindow(0.0, None, 0)
        self._direct_settled = False
        """True once the window shows the target alone, with all prompts computed."""
        self._turning = False
        """True until the chains have taken up a new share."""
        self._direct_pace = 1.0
        """`_direct_speed`, as it was a few rounds ago."""
        self._rounds_due = TUNING.window_rounds
        """The number of rounds at which the window ends and is judged."""

    @property
    def max_running(self) -> int | None:
        return None if self._share == 1 else self._target_room

    def enter(self, order: int, now: float) -> None:
        self._advance_to(now)
        if math.isnan(self._start):
            self._start = now
            self._wake_at = now + TUNING.first_count_s
            self._open_window(now)
        self._chains.enter(order, self._share)

    def leave(self, order: int, now: float) -> None:
        self._advance_to(now)
        self._chains.leave(order)
        self._observe_direct_begin(now)

    def pause(self, order: int, now: float) -> None:
        self._advance_to(now)
        self._chains.pause(order)
        self._observe_direct_begin(now)

    def resume(self, order: int, now: float) -> None:
        self._advance_to(now)
        self._to_interrupt += self._chains.resume(order, self._share, now)

    def exhausted(self) -> None:
        self._chains.exhausted = True

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        self._advance_to(now)
        mode = self._chains.step(order, context_tokens, now)
        if mode == "direct":
            self._observe_direct_begin(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        self._advance_to(now)
        chain = self._chains[order]
        chain.written += tokens
        if chain.mode == mode == "speculative" and self._estimates.fit.known:
            due = self._window.rounds % (1 + self._chains.speculating // TUNING.judged_per_round) == 0
            if due:
                self._direct_pace = self._direct_speed()
            self._window.observe_round(tokens, accepted, now - chain.step_began, self._direct_pace)
            if due and self._share:
                self._judge_rounds(now)

    def called(self, call: CallFacts) -> None:
        self._advance_to(call.end)
        self._window.observe_call(call)
        if call.direct and self._window.written is None and call.output_tokens >= TUNING.min_iterations:
            self._observe_direct(self._chains.at_least_one, (call.end - call.submit) / call.output_tokens, call.end)

    def interrupts(self, now: float) -> Sequence[int]:
        self._advance_to(now)
        if now >= self._wake_at:
            self._on_wake(now)
        ending, self._to_interrupt = [order for order in self._to_interrupt if order in self._chains], []
        return ending

    def wake(self) -> float:
        return self._wake_at

    def _advance_to(self, now: float) -> None:
        """Add the time since the last event to the window."""
        span, self._now = now - self._now, now
        if span > 0:
            seconds, counts = self._window.seconds, self._chains.counts
            seconds["speculative"] += span * counts["speculative"]
            seconds["direct"] += span * counts["direct"]

    def _state(self, now: float) -> State:
        return State(self._chains.at_least_one, self._chains.context, now - self._start)

    def _direct_speed(self) -> float:
        """Tokens a second of each chain if none speculates, those that wait for others at the target included."""
        live = self._chains.at_least_one
        running = min(live, self._target_room or live)
        return running / live / self._estimates.fit.seconds(running, self._chains.context * running)

    # Observing the target alone.

    def _open_window(self, now: float) -> None:
        self._window = ObservationWindow(now, self._written(), self._chains.counts["speculative"])

    def _observe_direct_begin(self, now: float) -> None:
        """Once the last round of a trial is over: charge what the trial lost, and observe the target alone from now on."""
        if not self._share and not self._chains.counts["speculative"] and not self._direct_settled and self._estimates.fit.known:
            self._lost_total_s += max(self._lost_this_trial_s + self._lost_run_s(now), 0.0)
            self._lost_this_trial_s = 0.0
            self._open_window(now)
            self._direct_settled = True
            self._wake_at = now + self._observation_s()

    def _on_wake(self, now: float) -> None:
        """Look at what the engines did, though no chain has ended a step."""
        elapsed = now - self._start
        if not self._chains:
            self._wake_at = math.inf
            return
        if self._share:
            self._judge_rounds(now)
        elif self._window.written is None:
            self._observe_direct_sampled(now)
        else:
            self._observe_direct_counted(now)
        self._observe_room()
        pause = self._observation_s() if self._estimates.fit.known else TUNING.first_count_s
        self._wake_at = max(now + max(pause, 0.01 * elapsed), self._wake_at if self._wake_at > now else now)

    def _observation_s(self) -> float:
        """Seconds after which an observation of the target alone is expected to be long enough."""
        return max(TUNING.min_iterations / self._direct_speed(), TUNING.min_observed_s)

    def _observe_direct_counted(self, now: float) -> None:
        """Observe the target alone by the tokens that its engine has counted."""
        window, written = self._window, self._written()
        if self._chains.counts["speculative"] or written is None or window.written is None:
            return
        tokens, span = written - window.written, now - window.start
        if not self._direct_settled:
            if tokens >= self._chains.at_least_one:  # all prompts are computed
                self._open_window(now)
                self._direct_settled = True
        elif span >= TUNING.min_observed_s / 2 and tokens >= TUNING.min_iterations * self._chains.at_least_one / 2:
            chains = window.seconds["direct"] / span
            self._chains.direct_tokens += tokens / max(chains, 1e-9)
            self._observe_direct(chains, window.seconds["direct"] / tokens, now)
            self._open_window(now)

    def _observe_direct_sampled(self, now: float) -> None:
        """Where no engine counts tokens: interrupt one request, to learn how many it wrote."""
        self._wake_at = now + max(TUNING.first_sample_s, 2 * (now - self._start))
        if now - self._start >= TUNING.first_sample_s:
            for order, chain in self._chains.direct():
                chain.interrupted = True
                self._to_interrupt.append(order)
                return

    def _observe_room(self) -> None:
        """Learn how many requests the target computes at once, from those that wait there though all prompts are computed."""
        running, waiting = self._requests()
        spare = max(running // TUNING.waiting_one_in, 1)
        if self._share == 1 or not (self._share or self._direct_settled):
            waiting = 0
        elif min(waiting, self._waiting_before) > spare:
            self._target_room = running + spare
        elif self._target_room is not None and not waiting:
            self._target_room += spare
        self._waiting_before = waiting

    def _observe_direct(self, chains: float, seconds: float, now: float) -> None:
        if not self._share and not self._chains.counts["speculative"]:
            self._estimates.fit.observe(chains, self._chains.context_sum, seconds)
            self._direct_seen = self._state(now)
            self._consider_rounds(now)

    # Predicting.

    def _best(self, acceptance: float | None = None) -> Choice:
        chains, direct = self._chains, self._direct_speed()
        mixed, rests = not self._target_crowded, self._expected_rests()
        return self._estimates.best(chains.at_least_one, chains.context, direct, rests, mixed=mixed, acceptance=acceptance)

    @property
    def _target_crowded(self) -> bool:
        """True if the target had no room for all live chains, or some pause: what it does with some says little of all."""
        return self._target_room is not None or self._chains.some_pause

    def _expected_rests(self) -> list[float]:
        """Expected rests of the live chains, longest first, where no more chains come and some could be left out."""
        return self._chains.rests() if self._chains.last and len(self._chains) >= TUNING.min_mixed_chains else []

    # The account.

    def _affordable(self, cost: float, now: float, share: float) -> bool:
        return self._lost_total_s + cost <= share * (now - self._start) * self._chains.horizon

    def _trial_budget(self) -> float:
        """The share of the run that trials with all chains may cost."""
        return TUNING.trial_budget if self._sigma and not self._chains.single else 2 * TUNING.trial_budget

    def _lost_chain_s(self) -> float:
        """Seconds that the chains lost in the window against direct mode, added up."""
        return sum(self._window.seconds.values()) - self._tokens_gained() / self._direct_speed()

    def _lost_run_s(self, now: float) -> float:
        """Seconds that the run lost in the window: those of all chains, shared by as many as went on in it."""
        together = sum(self._window.seconds.values())
        return self._lost_chain_s() * (now - self._window.start) / together if together else 0.0

    def _tokens_gained(self) -> float:
        """Tokens that all chains advanced in the window, at least 1: what an engine has counted may lag behind what it has answered."""
        return max(self._counted_tokens(), 1.0)

    def _counted_tokens(self) -> float:
        """`_tokens_gained` before it is bounded. A draft under way counts as half a step, unless one was under way at the start, too."""
        window, written = self._window, self._written()
        step = window.tokens / window.rounds if window.rounds else self._estimates.round.tokens
        begun = step * (self._chains.counts["speculative"] - window.running) / 2
        if written is not None and window.written is not None:  # what the target wrote is not lost, whether its request is over or not
            return window.tokens + self._estimates.round.acceptance * begun + written - window.written - window.other_tokens
        if self._share == 1:  # the direct requests are those that complete a step
            return window.tokens + begun + window.direct_tokens + self._chains.counts["direct"] * step / 4
        return window.tokens + begun + window.seconds["direct"] * self._direct_speed() / (1 + self._estimates.interference)

    def _tokens_under_way(self) -> float:
        """Tokens that the target has sampled for rounds that are not over, such as a long step after a rejection; 0 where nobody knows."""
        window, written = self._window, self._written()
        if self._chains.counts["direct"] or written is None or window.written is None:
            return 0.0
        return max(written - window.written - window.other_tokens - window.direct_tokens, 0.0)

    # Deciding.

    def _consider_rounds(self, now: float) -> None:
        """Decide, while all chains are direct, whether to probe or to speculate."""
        live = len(self._chains)
        if not live:
            return
        choice = self._best()
        gain, rate = choice.gain, choice.rate
        sigma = self._sigma + (self._rounds_seen.sigma(self._state(now), TUNING.sigma_rounds_per_time) if self._rounds_seen else 0.0)
        again = now - self._start > TUNING.retry_growth * self._last_switch_s
        if gain * math.exp(sigma) < TUNING.min_gain and not again:
            return
        risk = max(0.0, 1 - gain * math.exp(-sigma))
        if live > 1 and (gain < TUNING.hopeless_gain or self._sigma >= TUNING.sigma_untried):
            if self._affordable(self._probe_cost(), now, TUNING.probe_budget):
                self._switch(max(live // TUNING.probe_one_in, 1) / live, "probe", now, rate)
            return
        rounds = 1 if live == 1 else 2  # Chains reach their boundaries at different times, so that a trial of several lasts longer.
        if self._affordable(rounds * risk * live * self._estimates.round.tokens / rate, now, self._trial_budget()):
            self._switch(choice.share, "speculate", now, rate)

    def _probe_cost(self) -> float:
        """Seconds that a round of few chains is expected to cost all of them."""
        live = len(self._chains)
        chains = max(live // TUNING.probe_one_in, 1)
        speeds = self._estimates.model(live).speeds(chains, live - chains, self._chains.context, self._estimates.round)
        share = (chains * speeds.speculative + (live - chains) * speeds.direct) / (live * self._direct_speed())
        return 1.5 * self._estimates.round.tokens / speeds.speculative * max(0.0, 1 - share)

    def _switch(self, share: float, what: str, now: float, rate: float) -> None:
        """Let this share of the live chains speculate from their next boundaries on."""
        live = len(self._chains)
        count = math.ceil(share * live)
        alone = live * self._direct_speed()
        self.changes.append(ModeDecision(time=now, what=what, speculating=count, live=live, speculative=rate, direct=alone))
        self._share, self._turning, self._direct_settled = share, True, False
        self._last_switch_s = now - self._start
        self._rounds_due = max(4 * count, TUNING.window_rounds)
        self._carried_loss = self._carried_variance = 0.0
        self._verdicts_due = max(TUNING.first_verdicts, count)
        self._to_interrupt += self._chains.assign(count)
        self._open_window(now)
        self._observe_direct_begin(now)

    def _judge_rounds(self, now: float) -> None:
        """Decide, while rounds are under way, whether to stop them."""
        window, running = self._window, self._chains.counts["speculative"]
        if not self._chains.speculating:  # those in a probe have ended or pause
            self._to_interrupt += self._chains.assign(math.ceil(self._share * len(self._chains)))
        if not window.seconds["speculative"]:
            return
        step = max(window.tokens / window.rounds if window.rounds else 0.0, self._estimates.round.tokens)
        allowance = step * (running * (TUNING.turn_steps if self._turning and self._share == 1 else 1) + 3 * math.sqrt(running))
        hopeless = (window.tokens + self._tokens_under_way() + allowance) / window.seconds["speculative"] < self._direct_speed()
        if self.changes[-1].what == "probe":
            if hopeless or window.rounds >= self._chains.speculating:
                self._end_probe(now)
            return
        lost, trial = self._lost_chain_s(), step / self._direct_speed()
        net = self._lost_run_s(now) + self._lost_this_trial_s
        if (
            (hopeless and self._share == 1 and net > -trial)
            or (net > trial and not self._affordable(net, now, 2 * TUNING.trial_budget))
            or (self._sigma and not self._target_crowded and window.verdicts >= self._verdicts_due and self._rejected())
        ):
            self._stop_rounds(now)
        elif self._turning:
            self._end_turn(now)
        else:
            self._judge_window(now, lost)

    def _rejected(self) -> bool:
        """True if so many candidates are rejected that rounds are hopeless, long before the target has replaced those candidates."""
        self._verdicts_due *= 2
        known = self._estimates.acceptance(self._window)
        deviation = math.sqrt(known * (1 - known) / max(self._window.verdicts, 1))
        return self._best(min(known + deviation, 1.0)).gain < TUNING.hopeless_gain

    def _end_turn(self, now: float) -> None:
        """Begin to judge a new share, once all chains have ended a round in it."""
        waited = self._window.rounds >= self._chains.speculating * (2 if self._share == 1 else 1)
        if waited or (self._share == 1 and not self._chains.counts["direct"]):
            self._lost_this_trial_s += self._lost_run_s(now)
            self._turning = False
            self._open_window(now)

    def _judge_window(self, now: float, lost: float) -> None:
        window = self._window
        deviation = math.sqrt(window.excess_squared + self._carried_variance)
        likely = lost + self._carried_loss
        if window.rounds >= max(TUNING.min_rounds, 2 * self._chains.speculating) and likely > TUNING.early_stop_sigmas * deviation:
            self._stop_rounds(now)
        elif window.rounds >= self._rounds_due:
            if 0 < likely < TUNING.stop_sigmas * deviation:  # by chance, perhaps
                self._rounds_due *= 2
            elif likely > 0:
                self._stop_rounds(now)
            else:
                self._carried_loss, self._carried_variance = lost / 2, window.excess_squared / 4
                self._continue_rounds(now)

    def _stop_rounds(self, now: float) -> None:
        self._learn_from_window(now, lost=True)
        self._switch(0.0, "losing", now, self._best().rate)

    def _end_probe(self, now: float) -> None:
        self._learn_from_window(now)
        live, probed = len(self._chains), self._chains.speculating
        self._sigma = TUNING.sigma_probed + (TUNING.sigma_per_unprobed * math.log(live / probed) if probed else 0.0)
        choice = self._best()
        if choice.gain * math.exp(-self._sigma) > 1:
            self._switch(choice.share, "speculate", now, choice.rate)
        else:
            self._switch(0.0, "probed", now, choice.rate)

    def _continue_rounds(self, now: float) -> None:
        """A window ended well: learn from it, see whether another share would be better, and whether direct mode is still known."""
        window = self._window
        seconds = sum(window.seconds.values())
        observed = self._tokens_gained() / seconds / self._direct_speed()
        self._learn_from_window(now)
        self._sigma = 0.0
        choice = self._best()
        share, gain, rate = choice.share, choice.gain, choice.rate
        self._open_window(now)
        self._rounds_due = max(4 * self._chains.counts["speculative"], TUNING.window_rounds)
        sigma = self._direct_seen.sigma(self._state(now), TUNING.sigma_direct_per_time) if self._direct_seen else 0.0
        sure = max(observed, gain) * math.exp(-sigma)
        if sure < 1 and not self._target_crowded:
            step_s = self._estimates.round.tokens * self._chains.at_least_one / rate
            if self._affordable(2 * step_s * (1 - 1 / max(observed, gain)), now, TUNING.probe_budget):
                self._switch(0.0, "check", now, rate)
        elif share != self._share and gain > TUNING.min_gain * observed:
            self._switch(share, "share", now, rate)
        else:
            self._to_interrupt += self._chains.assign(math.ceil(self._share * len(self._chains)))

    def _learn_from_window(self, now: float, lost: bool = False) -> None:
        """Let the window's rounds correct the prediction."""
        window, known, context = self._window, self._estimates, self._chains.context
        span = now - window.start
        self._lost_this_trial_s += self._lost_run_s(now)
        if span <= 0:
            return
        if not window.rounds or (lost and self._turning):
            known.learn_from_nothing(window, self._best().gain, self._chains.at_least_one)
        elif self.changes[-1].what == "probe":
            known.learn_from_probe(window, self._chains.at_least_one, context, span, self._direct_speed_in(window))
        else:
            known.learn_from_share(window, self._chains.at_least_one, context, span, self._share, self._tokens_gained() / span, lost)
        self._rounds_seen = self._state(now)

    def _direct_speed_in(self, window: ObservationWindow) -> float:
        """Tokens a second of a direct chain in the window; 0 where nobody knows."""
        written = self._written()
        if written is None or window.written is None or not window.seconds["direct"]:
            return 0.0
        return max(written - window.written - window.other_tokens, 0) / window.seconds["direct"]
