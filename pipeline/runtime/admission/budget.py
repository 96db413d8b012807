"""The budget of a run: limits of time, tokens and cost enter; whether another chain may begin, and when the run must stop, leave.

A chain begins only if one more of the mean size is expected to fit beside those that have begun, so that live chains mostly end within the
budget. Once it is used up no call is sent: calls in flight end, because what they sample is paid for, unless it is time that is used up.
Chains that are cut off are cancelled, and continue from their last answered call when the run is resumed.
"""

import math
from collections.abc import Collection, Mapping

import anyio
from msgspec import Struct

from pipeline.graph.spec import Price
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Feed
from pipeline.runtime.admission.order import Start
from pipeline.runtime.clock import Clock
from pipeline.runtime.lane import Lane
from pipeline.runtime.progress import Progress
from pipeline.store.budget import Amounts


class Costs(Struct, frozen=True, kw_only=True):
    """The prices of a run's engines, by role."""

    prices: Mapping[str, Price]
    replicas: int = 1
    """Sets of engines whose hours cost."""

    @property
    def per_s(self) -> float:
        """What a second of all engines costs."""
        return self.replicas * sum(price.hour for price in self.prices.values()) / 3600

    def of(self, progress: Progress, open_s: float) -> float:
        """The cost of all calls so far and of engines that were open for `open_s` seconds."""
        tokens = (
            price.cost(progress.input_tokens[role], progress.cached_tokens[role], progress.output_tokens[role], 0.0)
            for role, price in self.prices.items()
        )
        return sum(tokens) + open_s * self.per_s


class Budget:
    """What a session may still spend. `meter` it before it is asked."""

    def __init__(self, limits: Amounts, costs: Costs, clock: Clock, *, before_s: float = 0.0, opening_s: float = 0.0) -> None:
        """`before_s`: seconds of earlier sessions; `opening_s`: those in which engines started, of all sessions, which only cost, and what
        earlier sessions cost more than now, or less, because they had more or fewer sets of engines."""
        self.limits, self._costs, self._clock = limits, costs, clock
        self._before_s, self._opening_s, self._started = before_s, opening_s, clock.now()
        self._news = anyio.Event()
        self._progress: Progress | None = None
        self._over = self._begun = 0
        """Chains that were over when the session began, and those that it has begun."""
        self.stopped = ""
        """Why no more is spent, as a clause; empty while more is."""

    def meter(self, progress: Progress) -> None:
        """Read what is spent from `progress`."""
        self._progress, self._over = progress, progress.over
        progress.changed = self._change

    @property
    def metered(self) -> bool:
        """True once it is known what is spent."""
        return self._progress is not None

    @property
    def spent(self) -> Amounts:
        """What is spent by now, by all sessions."""
        return self.spent_at(self._clock.now())

    def spent_at(self, now: float) -> Amounts:
        """What is spent at this moment of the clock, at which the session may be over."""
        assert self._progress is not None
        time_s = self._before_s + now - self._started
        cost = self._costs.of(self._progress, time_s + self._opening_s) if self._costs.prices else None
        return Amounts(time_s=time_s, tokens=sum(self._progress.output_tokens.values()), cost=cost)

    def feed(self, feed: Feed, begun: Collection[str]) -> Feed:
        """`feed`, whose chains wait until there is room for them; those of these names have `begun` in earlier sessions."""
        return BudgetedFeed(self, feed, begun)

    async def room(self) -> None:
        """Wait until the budget has room for one chain more, which then begins. Where it never will have, the run is to stop."""
        while (lacking := self._lacking()) is not None:
            if not self._open:
                self.stopped = lacking
                self._change()
            await self._news.wait()
        self._begun += 1

    def begin(self) -> None:
        """A chain of an earlier session begins, for which there need be no room."""
        self._begun += 1

    async def watch(self, lanes: Collection[Lane]) -> None:
        """Return once the budget is used up and no call is left in flight; no lane starts one then."""
        while not self.stopped and (name := self.limits.used_up(self.spent)) is None:
            await self._wait(self._left_s())
        for lane in lanes:
            lane.closed = True
        while any(lane.in_flight for lane in lanes) and (left_s := self._time_left_s()) > 0:
            await self._wait(left_s)
        self.stopped = self.stopped or said(str(name), self.limits, self.spent)

    @property
    def _open(self) -> int:
        """Chains that the session has begun and that are not over."""
        assert self._progress is not None
        return self._begun - (self._progress.over - self._over)

    def _lacking(self) -> str | None:
        """Of which limit too little is left for one more chain of the mean size beside those that are open; None where there is room."""
        assert self._progress is not None
        over, spent = self._progress.over, self.spent
        if not over:
            return None
        chains = over + self._open + 1
        expected = Amounts(
            time_s=(spent.time_s or 0) + self._chain_s(),
            tokens=round(chains * (spent.tokens or 0) / (over + self._open / 2)),
            cost=chains * (spent.cost or 0) / (over + self._open / 2),
        )
        name = self.limits.used_up(expected)
        return None if name is None else f"{said(name, self.limits, spent)}, and another problem takes more than is left"

    def _chain_s(self) -> float:
        """The mean time of the chains of this session that are over; 0 where none is."""
        assert self._progress is not None
        ended = self._progress.over - self._over
        return self._progress.chains_s / ended if ended else 0.0

    def _time_left_s(self) -> float:
        limit, spent = self.limits.time_s, self.spent.time_s
        return math.inf if limit is None or spent is None else limit - spent

    def _left_s(self) -> float:
        """Seconds until a limit is reached if no call ends until then."""
        left_s, limit, spent = self._time_left_s(), self.limits.cost, self.spent.cost
        if limit is None or spent is None or not self._costs.per_s:
            return left_s
        return min(left_s, (limit - spent) / self._costs.per_s)

    async def _wait(self, most_s: float) -> None:
        """Wait for news, `most_s` seconds at most."""
        with anyio.move_on_after(max(most_s, 1e-6)):
            await self._news.wait()

    def _change(self) -> None:
        self._news.set()
        self._news = anyio.Event()


class BudgetedFeed:
    """A `Feed` whose chains wait for room in a budget."""

    def __init__(self, budget: Budget, feed: Feed, begun: Collection[str]) -> None:
        self._budget, self._feed, self._earlier = budget, feed, frozenset(begun)

    async def next(self) -> Start | None:
        start = await self._feed.next()
        if start is None:
            return None
        if chain_id(start.item.problem_id, start.sample_index) in self._earlier:
            self._budget.begin()
        else:
            await self._budget.room()
        return start

    def ended(self, start: Start, thought_tokens: int) -> None:
        self._feed.ended(start, thought_tokens)


OPTIONS = {"time_s": "--max-time", "tokens": "--max-tokens", "cost": "--max-cost"}
"""The options of the limits."""


def said(name: str, limits: Amounts, spent: Amounts) -> str:
    """How much of a limit is spent, as a clause."""
    unit = {"time_s": " s", "tokens": " tokens", "cost": ""}[name]
    used, limit = (getattr(each, name) or 0 for each in (spent, limits))
    shown = "{:,.0f}" if name == "tokens" else "{:,.4g}"
    return f"{OPTIONS[name]}: {shown.format(used)} of {shown.format(limit)}{unit} spent"
