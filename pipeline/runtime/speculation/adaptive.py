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
a step, not a run. Paces are kept by the number of live chains (`bucket_of`: 1, 2, 4, 8 ...); with fewer chains than any pace is known for,
it is interpolated, linearly in their number, between that of the next known number and that which a single chain must have (a draft at its
fastest, the acceptance, the target's fit). That is what brings a run back to speculation as its last chains are left.

What holds whenever no method runs: `_rounds` has the rounds since the window began, less the first one of each chain, for which both
engines compute its context, and after `check` and `losing` those that are to be compared; `_observed_from` is None unless every live
chain writes directly.

Example: 384 thoughts with the lengths of MATH, 64 at once, QwQ-32B and a draft of 1.5B in time slices on one H200, simulated. After four
rounds of each, at 7.9 s, `check`: the target alone is faster, so direct mode stays. As the last chains end the gain that is expected rises:
with 11 left, at 385 s, `speculate`, which loses there (`losing` at 389 s), so with 10, 5 and 2 left, and with 2 once more, at 451 s, to the
end at 461 s. The target alone takes 494 s, speculation throughout 525. The next run on these engines begins directly, and takes 451 s.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from pipeline.engine import EngineStatistics
from pipeline.graph.spec import Purpose
from pipeline.runtime.speculation import tuning
from pipeline.runtime.speculation.live_chains import LiveChains
from pipeline.runtime.speculation.modes import NOTHING_KNOWN, Knowledge, Mode, ModeDecision, RoundPace
from pipeline.runtime.speculation.paces import Acceptance, DirectFit, Rounds, bucket_of


class Adaptive:
    """What decides for `speculate: auto`, synchronously: no I/O, no clock, no task.

    A chain is named by its `order`, the number of its start in the input; `now` is the time of the run's clock in seconds.
    """

    def __init__(
        self, statistics: Callable[[], EngineStatistics] = EngineStatistics, *, known: Knowledge = NOTHING_KNOWN, most: int = 1
    ) -> None:
        """`statistics` says what the target is doing. Where its engine does not know how many tokens it has written, a direct request is
        interrupted to learn how fast it was. `known` is what earlier runs have learnt, `most` the number of chains that can be live."""
        self._statistics, self._most = statistics, most
        self.changes: deque[ModeDecision] = deque(maxlen=tuning.MAX_CHANGES)
        """The last decisions, oldest first, each named after the arrow that it takes."""
        self._fit, self._acceptance = DirectFit(known.direct), Acceptance(known.acceptance)
        self._paces = {bucket_of(pace.chains): pace for pace in known.paces}
        self._draft_s, self._drafted_few = (math.inf, False) if known.draft_s is None else (known.draft_s, True)
        """Seconds a token of the draft's fastest call, and True once there was one with few chains."""
        self._step_tokens = known.step_tokens
        self._drafting_s = self._writing_s = 0.0
        """Seconds a token of the last drafts, and of the last steps that the target wrote in rounds; 0: none yet."""
        self._room: int | None = None
        """The number of requests that the target computes at once or has available; None: none had to wait."""
        self._waited = 0
        """Requests that waited at the target when it was looked at last."""
        self._chains = LiveChains()
        self._start, self._wake_at = 0.0, math.inf
        self._speculates = True
        self._rounds, self._lost_before = Rounds(), False
        """Of the window, and True if the window before it lost."""
        self._lost_with: set[int] = set()
        """Numbers of live chains, as `bucket_of`, with which rounds were ended as losing."""
        self._to_skip = 0
        """Rounds that do not count yet."""
        self._observed_from: tuple[float, int | None, int] | None = None
        """When the observation of direct mode began, the tokens that the target had written by then, and the requests that it had."""
        self._prompts_computed = False

    @property
    def knowledge(self) -> Knowledge:
        """What is known by now, with which a later run can begin."""
        return Knowledge(
            direct=self._fit.weights,
            paces=tuple(pace for _, pace in sorted(self._paces.items())),
            draft_s=self._draft_s if self._drafted_few else None,
            step_tokens=self._step_tokens,
            acceptance=self._acceptance.share,
        )

    @property
    def max_running(self) -> int | None:
        """How many chains may run at once, because the target computes no more; None: as many as the schedule lets."""
        return None if self._speculates else self._room

    def enter(self, order: int, now: float) -> None:
        """A chain began its loop."""
        if not self.changes:
            loses = bool(self._fit.weights) and self._gain(bucket_of(self._most)) < tuning.LOSING
            self._switch("direct" if loses else "speculate", now)
            self._start, self._to_skip = now, self._most
        self._chains.enter(order)

    def leave(self, order: int, now: float) -> None:
        """A chain left its loop."""
        self._chains.leave(order)
        self._observe_from(now)

    def pause(self, order: int, now: float) -> None:
        """The chain pauses in its step, because the engines' caches are full."""
        self._chains.pause(order)
        self._observe_from(now)

    def resume(self, order: int, now: float) -> None:
        """The chain continues after a pause."""
        self._chains.resume(order, now)

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        """The mode of the chain's next step, asked at every step boundary; `context_tokens` are those of the target."""
        mode: Mode = "speculative" if self._speculates else "direct"
        self._chains.step(order, context_tokens, mode, now)
        self._observe_from(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        """The chain committed `tokens` of its thought: a step of a round, `accepted` where a candidate was, or all that a direct request
        wrote until its end or its interruption."""
        if mode == "direct":
            return
        live = len(self._chains.running)
        self._acceptance.add(accepted, live)
        if self._speculates and self._to_skip:
            self._to_skip -= 1
        elif self._speculates:
            self._rounds.add(tokens, now - self._chains.running[order].step_began, accepted, live)
            self._judge(now)

    def called(self, *, purpose: Purpose, direct: bool, n: int, output_tokens: int, submit: float, end: float) -> None:
        """A call of a chain was answered that has entered its loop; also after it, where the target may write the answer. It was sent at
        `submit`, sampled `output_tokens` over all its `n` candidates, and is `direct` if it wrote in direct mode."""
        per_token = (end - submit) * n / max(output_tokens, 1)
        match purpose:
            case "draft" if output_tokens >= 8 * n:
                self._draft_s = min(self._draft_s, max(per_token, tuning.SHORTEST_S))
                self._drafted_few = self._drafted_few or self._chains.at_least_one <= tuning.FEW_CHAINS
                self._drafting_s += (per_token - self._drafting_s) * (0.05 if self._drafting_s else 1)
            case "answer" if self._speculates and not self._to_skip:
                self._rounds.add_answer(output_tokens, end - submit)
            case "write" if output_tokens >= tuning.ITERATIONS and self._speculates and not direct:
                self._writing_s += (per_token - self._writing_s) * (0.1 if self._writing_s else 1)
                if self._most == 1:  # with nothing beside it this is direct mode
                    self._fit.observe(1, self._chains.context, per_token)
            case "write" if output_tokens >= tuning.ITERATIONS and direct and self._observed_from is not None:
                if self._observed_from[1] is None:
                    self._observe(self._chains.at_least_one, per_token, end)

    def interrupts(self, now: float) -> Sequence[int]:
        """The chains whose direct request is to be interrupted now; asked after every event, and at `wake`."""
        asked = self._look(now) if now >= self._wake_at else []
        return list(self._chains.to_interrupt()) if self._speculates else asked

    def wake(self) -> float:
        """When to ask for `interrupts` again though nothing happens; infinite: never."""
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
        return max(tuning.ITERATIONS * iteration_s, tuning.OBSERVED_S)

    def _observe_from(self, now: float) -> None:
        """Begin to observe direct mode, once the last round is over."""
        modes = self._chains.counts
        if not self._speculates and self._observed_from is None and modes["direct"] and not modes["speculative"]:
            target = self._statistics()
            self._observed_from, self._prompts_computed = (now, target.written_tokens, self._requests(target)), False
            self._wake_at = now + self._observation_s() / 2

    def _look(self, now: float) -> list[int]:
        """Look at what the target did, though no chain has ended a step; returns whose request is to be interrupted for that."""
        self._wake_at, asked = math.inf, list[int]()
        if not self._chains.running:
            self._observed_from = None  # the next chain begins another
        if self._observed_from is None:
            return asked
        (since, before, requests), target, long = self._observed_from, self._statistics(), self._observation_s()
        pause = max(long, 0.01 * (now - self._start))
        if before is None:  # nobody counts tokens: interrupt one request, to learn how many it wrote
            if now - since >= long:
                asked += islice(self._chains.to_interrupt(), 1)
                pause = max(2.0, 2 * (now - self._start))
        else:
            here = now, target.written_tokens or 0, self._requests(target)
            tokens, chains = here[1] - before, (requests + here[2]) / 2
            if not self._prompts_computed:
                self._prompts_computed = tokens >= chains
                if self._prompts_computed:
                    self._observed_from = here
                else:
                    pause = long / 4
            elif tokens >= tuning.ITERATIONS * chains / 2 and now - since >= tuning.OBSERVED_S / 2:
                self._chains.direct_tokens += tokens / chains
                self._observed_from = here
                self._observe(chains, (now - since) * chains / tokens, now)
            self._find_room(target)
        if not self._speculates:
            self._wake_at = now + pause
        return asked

    def _requests(self, target: EngineStatistics) -> int:
        """Requests that the target has: those of chains that left their loop, whose answers it writes, too."""
        return max(self._chains.at_least_one, target.running)

    def _find_room(self, target: EngineStatistics) -> None:
        """Learn how many requests the target computes at once, from those that wait there though all prompts are computed."""
        waiting, spare = target.waiting, max(target.running // tuning.ROOM_ONE_IN, 1)
        if not self._prompts_computed:
            waiting = 0
        elif min(waiting, self._waited) > spare:
            self._room = target.running + spare
        elif self._room is not None and not waiting:
            self._room += spare
        self._waited = waiting

    def _observe(self, chains: float, seconds: float, now: float) -> None:
        """An iteration of direct mode with `chains` chains took `seconds`: compare the rounds before with it, and decide."""
        self._fit.observe(chains, self._chains.context * chains, seconds)
        if self._rounds.count:
            self._learn()
        bucket = bucket_of(len(self._chains.running))
        if self._gain(bucket) >= (tuning.LOSING if bucket in self._paces and bucket not in self._lost_with else tuning.RETURNING):
            self._switch("speculate", now)

    # What rounds gain.

    def _gain(self, bucket: int) -> float:
        """The expected speed of rounds over that of direct mode."""
        if not self._paces:
            return tuning.PRIOR_GAIN
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
        draft_s = self._draft_s if self._drafted_few else min(self._draft_s, tuning.DRAFT_COST * target_s)
        return draft_s + target_s * (1.5 / self._step_tokens + 1 - self._acceptance.share)

    def _learn(self) -> None:
        """Let the rounds of the window correct the pace that is known, and begin another window."""
        rounds, self._rounds, context = self._rounds, Rounds(), self._chains.context
        bucket = bucket_of(rounds.chains)
        before = self._paces.get(bucket) or RoundPace(
            2**bucket, self._direct_s(rounds.chains) / tuning.PRIOR_GAIN, context, tuning.PRIOR_ROUNDS
        )
        share = rounds.count / (rounds.count + before.rounds)
        seconds = before.seconds ** (1 - share) * rounds.pace(self._acceptance.share) ** share
        context = before.context ** (1 - share) * context**share
        self._paces[bucket] = RoundPace(2**bucket, seconds, context, min(before.rounds + rounds.count, tuning.MAX_ROUNDS))

    def _judge(self, now: float) -> None:
        """Decide, while rounds are under way, whether to end them."""
        rounds, live = self._rounds, self._chains.at_least_one
        early = rounds.count >= max(live, tuning.EARLY_ROUNDS)
        if early:
            self._acceptance.notice(*rounds.counts)
        if not self._fit.weights:
            self._judge_unseen(live, early, now)
            return
        direct_s, whole = self._direct_s(rounds.chains), rounds.count >= max(tuning.WINDOW_ROUNDS * live, tuning.MIN_ROUNDS)
        gain, likely, most = (direct_s / rounds.pace(self._acceptance.above(each)) for each in (0.0, 1.0, tuning.EARLY_DEVIATIONS))
        lost = gain < tuning.LOSING
        if (early and most < tuning.LOSING) or (whole and lost and self._lost_before and likely < 1):
            self._lost_with.add(bucket_of(rounds.chains))
            self._switch("losing", now, gain)
        elif whole:
            self._step_tokens = rounds.step_tokens
            self._learn()
            self._lost_before = lost

    def _judge_unseen(self, live: int, early: bool, now: float) -> None:
        """The same before direct mode was seen.

        The target writes a step of a round no faster than it would write alone: rounds that are slower than that lose. By how much slower
        it is told by the draft, whose fastest call had the device to itself.
        """
        bound = self._writing_s / self._rounds.pace(self._acceptance.share) if self._writing_s else 1.0
        slowed = max(self._drafting_s / self._draft_s, 1.0)
        sure = live <= tuning.FEW_CHAINS and bound / slowed > tuning.SURE
        enough = max(tuning.LOOK_ROUNDS * live, tuning.MIN_ROUNDS) * (tuning.LATE if sure else 1)
        if self._rounds.count >= enough or (early and bound < 1):
            self._switch("check", now)

    def _switch(self, what: str, now: float, gain: float | None = None) -> None:
        """Let all chains speculate from their next boundaries on, or none, because of that `gain` where it is not the expected one."""
        live = len(self._chains.running)
        self._speculates, self._observed_from, self._wake_at = what == "speculate", None, math.inf
        self._lost_before, self._to_skip = False, live
        self._observe_from(now)
        direct = live / self._direct_s() if live and self._fit.weights else None
        speculative = None if direct is None else (self._gain(bucket_of(live)) if gain is None else gain) * direct
        change = ModeDecision(time=now, what=what, speculating=live * self._speculates, live=live, speculative=speculative, direct=direct)
        self.changes.append(change)
