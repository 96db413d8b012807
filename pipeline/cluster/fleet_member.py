"""What the driver knows of one replica: links and reports enter, its state for a display and for `run.json` leaves."""

from pipeline.cluster.messages import ReplicaLink, ReplicaReport
from pipeline.engine import EngineStatistics
from pipeline.session.observer import SOLVING, ReplicaState
from pipeline.store.run_file import Replica

MAX_LOSSES = 3
"""A replica is dropped after this many losses in a row without a chain that ended on it in between."""


class FleetMember:
    """One replica of a fleet, through all of its starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node = self.address = self.devices = ""
        self.starts = self.chains = self.live = self.wants = 0
        self.losses: list[str] = []
        self.dropped = False
        """It is not started again."""
        self.serving = False
        """It was started, and has neither ended nor been lost."""
        self.opened = False
        """Its engines are open."""
        self.output_tokens: dict[str, int] = {}
        self._phase = ""
        self._losses_in_a_row = 0
        self._past: list[dict[str, EngineStatistics]] = []
        self._now: dict[str, EngineStatistics] = {}
        self._past_pauses = 0
        self._pauses: int | None = None

    @property
    def statistics(self) -> list[dict[str, EngineStatistics]]:
        """The totals of its engines since each of its starts, by role."""
        return [each for each in (*self._past, self._now) if each]

    @property
    def pauses(self) -> int | None:
        """How often a chain had to pause on it; None where the batch size alone decides."""
        return None if self._pauses is None else self._past_pauses + self._pauses

    @property
    def record(self) -> Replica:
        """The replica as `run.json` holds it."""
        return Replica(
            node=self.node or None,
            address=self.address or None,
            devices=self.devices or None,
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

    def start(self, link: ReplicaLink) -> None:
        """It was started."""
        self.starts += 1
        self.node, self.address, self.devices = link.node, link.address, link.devices
        self.serving, self._phase = True, "starting"

    def hear(self, report: ReplicaReport) -> None:
        """It has reported."""
        self.opened |= report.opened is not None
        self.wants, self.live = report.wants, report.live
        self.serving = not report.over
        for role, phase in report.phases:
            self._phase = f"{role}: {phase}"
        self._now = report.statistics or self._now
        self._pauses = self._pauses if report.pauses is None else report.pauses

    def chain_over(self) -> None:
        """A chain has ended on it, not by an error of its engines."""
        self._losses_in_a_row = 0

    def lose(self, why: str, *, for_good: bool) -> None:
        """It is lost; `for_good`: starting it again would change nothing."""
        self.losses.append(why)
        self._losses_in_a_row += 1
        self.dropped = for_good or self._losses_in_a_row >= MAX_LOSSES
        self._past.append(self._now)
        if self._pauses is not None:
            self._past_pauses, self._pauses = self._past_pauses + self._pauses, 0
        self._now, self.live, self.wants, self.opened, self.serving = {}, 0, 0, False, False

    def _what(self) -> str:
        if self.dropped:
            return f"dropped: {self.losses[-1]}"
        if self.opened:
            return SOLVING
        return f"lost: {self.losses[-1]}" if self.losses and not self.serving else self._phase or "starting"
