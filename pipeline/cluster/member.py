"""What the driver knows of one replica: links and reports enter, its state for a display and for `run.json` leaves."""

import math

import anyio

from pipeline.cluster.balance import Load
from pipeline.cluster.messages import Link, Report
from pipeline.engine import EngineStatistics
from pipeline.session.observer import SOLVING, ReplicaState
from pipeline.store.run_file import Replica

MOST_LOSSES = 3
"""A replica is dropped after this many losses in a row without a chain that ended on it in between."""
STRIKES = 16
"""A replica is lost when this many chains in a row have failed because of its engines."""
SPEED_S = 30.0
"""Time constant of the mean of a replica's speed."""


class Member:
    """One replica of a fleet, through all of its starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node = self.address = ""
        self.starts = self.chains = self.live = self.strikes = 0
        self.losses: list[str] = []
        self.dropped = self.ended = False
        """`dropped`: it is not started again; `ended`: it has sent its last report since it was started last."""
        self.last_error = ""
        self.opened = False
        """Whether its engines are open."""
        self.sent = self.received = 0
        self._wants, self._phase = 0, ""
        self._in_a_row = 0
        self._past: list[dict[str, EngineStatistics]] = []
        self._now: dict[str, EngineStatistics] = {}
        self._pauses: list[int] = [0]
        self.counts_pauses = False
        self.told_no_more = self.told_end = False
        self.output_tokens: dict[str, int] = {}
        self._written = 0
        self._tokens = self._chain_s = 0.0
        """Tokens that it wrote, and the seconds of its live chains meanwhile; what is long ago counts less."""
        self._heard: float | None = None
        self._news = anyio.Event()

    @property
    def reachable(self) -> bool:
        """Whether it was started and has neither ended nor been lost."""
        return bool(self.starts) and not self.ended

    @property
    def wants(self) -> int:
        """How many chains it has room for, of those that are on the way to it none."""
        return max(0, self._wants - (self.sent - self.received))

    @property
    def statistics(self) -> list[dict[str, EngineStatistics]]:
        """The totals of its engines since each of its starts, by role."""
        return [each for each in (*self._past, self._now) if each]

    @property
    def pauses(self) -> int:
        """How often a chain had to pause on it."""
        return sum(self._pauses)

    @property
    def record(self) -> Replica:
        """The replica as `run.json` holds it."""
        return Replica(
            node=self.node or None,
            address=self.address or None,
            starts=self.starts,
            losses=list(self.losses),
            dropped=self.dropped,
            chains=self.chains,
        )

    @property
    def state(self) -> ReplicaState:
        """How it is at this moment."""
        return ReplicaState(
            number=self.number,
            node=self.node,
            what=self._what(),
            live=self.live,
            done=self.chains,
            output_tokens=dict(self.output_tokens),
            statistics=self._now,
        )

    def load(self, chains: int, batch_size: int) -> Load:
        """Its load, if it has `chains` chains."""
        speed = self._tokens / self._chain_s if self._chain_s else None
        return Load(number=self.number, chains=chains, batch_size=batch_size, tokens_per_s=speed)

    def start(self, link: Link) -> None:
        """It was started."""
        self.starts += 1
        self.node, self.address = link.node, link.address
        self.ended = self.opened = False
        self.sent = self.received = self._wants = self.live = self.strikes = 0
        self.told_no_more = self.told_end = False
        self._phase, self._heard, self._written, self._tokens, self._chain_s = "starting", None, 0, 0.0, 0.0

    def hear(self, link: Link, report: Report) -> None:
        """It has reported."""
        self.node, self.address = link.node, link.address
        self.opened |= report.opened is not None
        self.received, self._wants, self.live = report.received, report.wants, report.live
        self._phase, self.ended = report.phase or self._phase, report.over
        self._now = report.statistics or self._now
        if report.pauses is not None:
            self._pauses[-1], self.counts_pauses = report.pauses, True

    def measure(self, now: float) -> None:
        """Update its speed by what its engines have written since this was called before; `now` is in seconds."""
        written = sum(each.output_tokens if each.written_tokens is None else each.written_tokens for each in self._now.values())
        tokens, self._written = written - self._written, written
        seconds = 0.0 if self._heard is None else now - self._heard
        self._heard = now
        if seconds <= 0 or not self.live:
            return
        kept = math.exp(-seconds / SPEED_S)
        self._tokens, self._chain_s = kept * self._tokens + tokens, kept * self._chain_s + seconds * self.live

    def chain_over(self, error: str | None) -> None:
        """A chain has ended on it, by its engines' `error` if there is one."""
        self.strikes = 0 if error is None else self.strikes + 1
        self.last_error = error or self.last_error
        if error is None:
            self._in_a_row = 0

    def lose(self, why: str, *, for_good: bool) -> None:
        """It is lost; `for_good`: starting it again would change nothing."""
        self.losses.append(why)
        self._in_a_row += 1
        self.dropped = for_good or self._in_a_row >= MOST_LOSSES
        self._past.append(self._now)
        self._pauses.append(0)
        self._now, self.live, self._wants, self.opened, self.ended = {}, 0, 0, False, True

    def wake(self) -> None:
        """There may be something for it to do."""
        self._news.set()

    async def wait(self) -> None:
        """Wait until it is woken."""
        await self._news.wait()
        self._news = anyio.Event()

    def _what(self) -> str:
        if self.dropped:
            return f"dropped: {self.losses[-1]}"
        if self.opened:
            return SOLVING
        return f"lost: {self.losses[-1]}" if self.ended and self.losses else self._phase or "starting"
