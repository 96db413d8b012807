"""Decides during a run whether its chains speculate: facts of calls and steps enter, modes and interruptions leave.

All live chains speculate or none does. A run begins with speculation, unless an earlier one knows better, because on most machines and
lengths that is the faster way (bench/frontier.md)::

               known to lose                       rounds gain, or never tried and expected to
    start ---------------------> DIRECT -----------------------------------------------------+
      |                            ^                                                         |
      |                            +--- check: direct mode was never seen ---+               v
      +------------------------------------------------------------------ SPECULATIVE <-- speculate
                                   ^                                         |
                                   +--- losing: two windows in a row --------+

Each way to DIRECT ends with a comparison: the *pace* of the rounds so far (seconds a token of a chain) is kept, the target alone is
observed for 12 iterations, and with both known for the same chains it is decided whether to stay. So a decision that chance has made costs
a step, not a run; and as each loss raises what is expected of the next try, two modes that are equally fast do not take turns. Paces are
kept by the number of live chains (`bucket_of`: 1, 2, 4, 8 ...); with fewer chains than any pace is known for, it is interpolated, linearly
in their number, between that of the next known number and that which a single chain must have (a draft at its fastest, the acceptance, the
target's fit). That is what brings a run back to speculation as its last chains are left.

What holds whenever no method runs: `_rounds` has the rounds since the window began, less the first one of each chain, for which both
engines compute its context; `_observed_from` is None unless every live chain writes directly.

Example: 384 thoughts with the lengths of MATH, 64 at once, QwQ-32B and a draft of 1.5B in time slices on one H200, simulated. After four
rounds of each, at 7.9 s, `check`: the target alone takes 25 ms a token of a chain where rounds took 44, so direct mode stays. As the last
chains end the gain that is expected rises: with 11 left, at 393 s, `speculate`, which loses there (`losing`), and with 5 left, at 432 s,
once more, to the end at 470 s. The target alone takes 482 s, speculation throughout 525. The next run on these engines begins directly,
and takes 466 s.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from pipeline.runtime.speculation.direct_fit import SHORTEST_S, DirectFit
from pipeline.runtime.speculation.knowledge import NOTHING_KNOWN, Knowledge, RoundPace
from pipeline.runtime.speculation.live_chains import LiveChains
from pipeline.runtime.speculation.modes import CallFacts, Mode, ModeDecision
from pipeline.runtime.speculation.rounds import Acceptance, Rounds, bucket_of
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
    not know: then a direct request is interrupted to learn how fast it was. `requests` says how many it has. `known` is what earlier runs
    have learnt, `most` the number of chains that can be live at once.
    """

    def __init__(
        self,
        *,
        written: Callable[[], int | None] = lambda: None,
        requests: Callable[[], Requests] = Requests,
        known: Knowledge = NOTHING_KNOWN,
        most: int = 1,
    ) -> None:
        self._written, self._requests, self._most = written, requests, most
        self.changes: deque[ModeDecision] = deque(maxlen=MAX_CHANGES)
        """The last decisions, each named after the arrow that it takes."""
        self._fit, self._paces, self._acceptance = (
            DirectFit(known.direct),
            {bucket_of(pace.chains): pace for pace in known.paces},
            Acceptance(known.acceptance),
        )
        self._draft_s = math.inf if known.draft_s is None else known.draft_s
        self._step_tokens = known.step_tokens
        self._drafting_s = self._writing_s = 0.0
        """Seconds a token of the last drafts, and of the last steps that the target wrote in rounds; 0: none yet."""
        self._room: int | None = None
        """The number of requests that the target computes at once or has available; None: none had to wait."""
        self._waited = 0
        """Requests that waited at the target when it was looked at last."""
        self._chains = LiveChains()
        self._speculates = True
        self._to_interrupt: list[int] = []
        self._start, self._wake_at = math.nan, math.inf
        self._rounds, self._lost_before = Rounds(), False
        """Of the window, and True if the window before it lost."""
        self._lost_with: Counter[int] = Counter()
        """How often rounds were ended as losing, by the number of live chains, as `bucket_of`."""
        self._to_skip = 0
        """Rounds that do not count yet."""
        self._ended: Rounds | None = None
        """The rounds before direct mode began, until they are compared with it."""
        self._observed_from: tuple[float, int | None, int] | None = None
        """When the observation of direct mode began, the tokens that the target had written by then, and the requests that it had."""
        self._prompts_computed = False

    @property
    def knowledge(self) -> Knowledge:
        """What is known by now."""
        return Knowledge(
            direct=self._fit.weights,
            paces=tuple(pace for _, pace in sorted(self._paces.items())),
            draft_s=None if self._draft_s == math.inf else self._draft_s,
            step_tokens=self._step_tokens,
            acceptance=self._acceptance.share,
        )

    @property
    def max_running(self) -> int | None:
        return None if self._speculates else self._room

    def enter(self, order: int, now: float) -> None:
        if math.isnan(self._start):
            self._start, self._to_skip = now, self._most
            self._speculates = not self._fit.weights or self._gain(bucket_of(self._most)) >= TUNING.losing
            self._log("speculate" if self._speculates else "direct", now)
        self._chains.enter(order)

    def leave(self, order: int, now: float) -> None:
        self._chains.leave(order)
        self._observe_from(now)

    def pause(self, order: int, now: float) -> None:
        self._chains.pause(order)
        self._observe_from(now)

    def resume(self, order: int, now: float) -> None:
        self._chains.resume(order, now)
        if self._speculates:
            self._to_interrupt += self._chains.to_interrupt()

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        mode: Mode = "speculative" if self._speculates else "direct"
        self._chains.step(order, context_tokens, mode, now)
        self._observe_from(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        chain, live = self._chains[order], len(self._chains)
        if not chain.mode == mode == "speculative":
            return
        self._acceptance.add(accepted, live)
        if self._speculates and self._to_skip:
            self._to_skip -= 1
        elif self._speculates:
            self._rounds.add(tokens, now - chain.step_began, accepted, live)
            self._judge(now)

    def called(self, call: CallFacts) -> None:
        per_token = (call.end - call.submit) * call.n / max(call.output_tokens, 1)
        match call.purpose:
            case "draft" if call.output_tokens >= 8 * call.n:
                if self._chains.at_least_one <= TUNING.few_chains:
                    self._draft_s = min(self._draft_s, max(per_token, SHORTEST_S))
                self._drafting_s += (per_token - self._drafting_s) * (0.05 if self._drafting_s else 1)
            case "answer" if self._speculates and not self._to_skip:
                self._rounds.add_answer(call.output_tokens, call.end - call.submit)
            case "write" if call.output_tokens >= TUNING.iterations and self._speculates and not call.direct:
                self._writing_s += (per_token - self._writing_s) * (0.1 if self._writing_s else 1)
                if self._most == 1:  # with nothing beside it this is direct mode
                    self._fit.observe(1, self._chains.context, per_token)
            case "write" if call.output_tokens >= TUNING.iterations and call.direct and self._observed_from is not None:
                if self._observed_from[1] is None:
                    self._observe(self._chains.at_least_one, per_token, call.end)

    def interrupts(self, now: float) -> Sequence[int]:
        if now >= self._wake_at:
            self._look(now)
        ending, self._to_interrupt = [order for order in self._to_interrupt if order in self._chains], []
        return ending

    def wake(self) -> float:
        return self._wake_at

    # Observing the target alone.

    def _direct_s(self, live: float = 0, context: float = 0.0) -> float:
        """Seconds a token of each of `live` chains if none speculates, those that wait for others at the target included; of those that
        are live where 0."""
        live, context = live or self._chains.at_least_one, context or self._chains.context
        running = min(live, self._room or live)
        return self._fit.seconds(running, context * running) * live / running

    def _observation_s(self) -> float:
        """Seconds after which an observation is expected to be long enough."""
        iteration_s = self._direct_s() if self._fit.weights else self._writing_s
        return max(TUNING.iterations * iteration_s, TUNING.observed_s)

    def _observe_from(self, now: float) -> None:
        """Begin to observe direct mode, once the last round is over."""
        modes = self._chains.counts
        if not self._speculates and self._observed_from is None and modes["direct"] and not modes["speculative"]:
            self._observed_from, self._prompts_computed = (now, self._written(), self._writing()), False
            self._wake_at = now + self._observation_s() / 2

    def _look(self, now: float) -> None:
        """Look at what the target did, though no chain has ended a step."""
        self._wake_at = math.inf
        if self._observed_from is None or not self._chains:
            return
        (since, before, writing), long = self._observed_from, self._observation_s()
        pause = max(long, 0.01 * (now - self._start))
        if before is None:  # nobody counts tokens: interrupt one request, to learn how many it wrote
            if now - since >= long:
                self._to_interrupt += islice(self._chains.to_interrupt(), 1)
                pause = max(2.0, 2 * (now - self._start))
        else:
            written = self._written() or 0
            tokens, chains = written - before, (writing + self._writing()) / 2
            if not self._prompts_computed:
                self._prompts_computed = tokens >= chains
                if self._prompts_computed:
                    self._observed_from = (now, written, self._writing())
                else:
                    pause = long / 4
            elif tokens >= TUNING.iterations * chains / 2 and now - since >= TUNING.observed_s / 2:
                self._chains.direct_tokens += tokens / chains
                self._observed_from = (now, written, self._writing())
                self._observe(chains, (now - since) * chains / tokens, now)
            self._find_room()
        if not self._speculates:
            self._wake_at = now + pause

    def _writing(self) -> int:
        """Requests that the target has: those of chains that left their loop, whose answers it writes, too."""
        return max(self._chains.at_least_one, self._requests().running)

    def _find_room(self) -> None:
        """Learn how many requests the target computes at once, from those that wait there though all prompts are computed."""
        running, waiting = self._requests()
        spare = max(running // TUNING.room_one_in, 1)
        if not self._prompts_computed:
            waiting = 0
        elif min(waiting, self._waited) > spare:
            self._room = running + spare
        elif self._room is not None and not waiting:
            self._room += spare
        self._waited = waiting

    def _observe(self, chains: float, seconds: float, now: float) -> None:
        """An iteration of direct mode with `chains` chains took `seconds`: compare the rounds before with it, and decide."""
        self._fit.observe(chains, self._chains.context * chains, seconds)
        if self._ended is not None:
            self._learn(self._ended)
            self._ended = None
        bucket = bucket_of(len(self._chains))
        lost = self._lost_with[bucket]
        if self._gain(bucket) >= (TUNING.losing if bucket in self._paces and not lost else TUNING.returning ** (1 + lost)):
            self._switch(True, "speculate", now)

    # What rounds gain.

    def _gain(self, bucket: int) -> float:
        """The expected speed of rounds over that of direct mode."""
        if not self._paces:
            return TUNING.prior_gain
        near = min(self._paces, key=lambda each: abs(each - bucket))
        pace = self._paces[near]
        then, now = (self._direct_s(2**near, context) for context in (pace.context, max(pace.context, self._chains.context)))
        seconds = pace.seconds * math.sqrt(now / then)  # a part of a round takes longer with its context, too
        if bucket >= near:
            return now / seconds
        single = self._single_s()
        return float(self._direct_s(2**bucket) / (single + (seconds - single) * (2**bucket - 1) / (2**near - 1)))

    def _single_s(self) -> float:
        """Seconds a token of a chain that is alone in rounds, by what it drafts, verifies and writes."""
        target_s = self._fit.seconds(1, self._chains.context)
        draft_s = TUNING.draft_cost * target_s if self._draft_s == math.inf else self._draft_s
        return draft_s + target_s * (1.5 / self._step_tokens + 1 - self._acceptance.share)

    def _learn(self, rounds: Rounds) -> None:
        """Let `rounds` correct the pace that is known."""
        context, before = self._chains.context, self._paces.get(rounds.bucket)
        before = before or RoundPace(2**rounds.bucket, self._direct_s(rounds.chains) / TUNING.prior_gain, context, TUNING.prior_rounds)
        share = rounds.count / (rounds.count + before.rounds)
        seconds = before.seconds ** (1 - share) * rounds.pace(self._acceptance.share) ** share
        context = before.context ** (1 - share) * context**share
        self._paces[rounds.bucket] = RoundPace(2**rounds.bucket, seconds, context, min(before.rounds + rounds.count, TUNING.max_rounds))

    def _judge(self, now: float) -> None:
        """Decide, while rounds are under way, whether to end them."""
        rounds, live = self._rounds, self._chains.at_least_one
        early = rounds.count >= max(live, TUNING.early_rounds)
        if early:
            self._acceptance.notice(*rounds.counts)
        if not self._fit.weights:
            self._judge_unseen(rounds.count, live, early, now)
            return
        direct_s, whole = self._direct_s(rounds.chains), rounds.count >= max(TUNING.window_rounds * live, TUNING.min_rounds)
        gain, (likely, most) = (
            direct_s / rounds.pace(self._acceptance.share),
            (direct_s / rounds.pace(self._acceptance.above(deviations)) for deviations in (1.0, TUNING.early_deviations)),
        )
        lost = gain < TUNING.losing
        if (early and most < TUNING.losing) or (whole and lost and self._lost_before and likely < 1):
            self._lost_with[rounds.bucket] += 1
            self._end("losing", now, gain)
        elif whole:
            self._step_tokens = rounds.step_tokens
            self._learn(rounds)
            self._rounds, self._lost_before = Rounds(), lost

    def _judge_unseen(self, count: int, live: int, early: bool, now: float) -> None:
        """The same before direct mode was seen.

        The target writes a step of a round no faster than it would write alone: rounds that are slower than that lose. By how much slower
        it is told by the draft, whose fastest call had the device to itself.
        """
        bound = self._writing_s / self._rounds.pace(self._acceptance.share) if self._writing_s else 1.0
        slowed = max(self._drafting_s / self._draft_s, 1.0) if self._draft_s < math.inf else 1.0
        sure = live <= TUNING.few_chains and bound / slowed > TUNING.sure
        per_chain = TUNING.late_rounds if sure else TUNING.look_rounds
        if count >= per_chain / TUNING.look_rounds * max(TUNING.look_rounds * live, TUNING.min_rounds) or (early and bound < 1):
            self._end("check", now)

    def _end(self, what: str, now: float, gain: float | None = None) -> None:
        self._ended = self._rounds
        self._switch(False, what, now, gain)

    def _switch(self, speculates: bool, what: str, now: float, gain: float | None = None) -> None:
        """Let all chains speculate from their next boundaries on, or none, because of that `gain` where it is not the expected one."""
        self._speculates, self._observed_from, self._wake_at = speculates, None, math.inf
        self._rounds, self._lost_before, self._to_skip = Rounds(), False, len(self._chains)
        self._log(what, now, gain)
        if speculates:
            self._to_interrupt += self._chains.to_interrupt()
        else:
            self._observe_from(now)

    def _log(self, what: str, now: float, gain: float | None = None) -> None:
        live = len(self._chains)
        direct = live / self._direct_s() if live and self._fit.weights else None
        speculative = None if direct is None else (self._gain(bucket_of(live)) if gain is None else gain) * direct
        change = ModeDecision(time=now, what=what, speculating=live * self._speculates, live=live, speculative=speculative, direct=direct)
        self.changes.append(change)
