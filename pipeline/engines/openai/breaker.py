"""A circuit breaker for one replica: when it gets no more calls, and when it is asked whether it answers again.

Outcomes of calls and times enter, the state leaves. Pure: it reads no clock, waits for nothing and sends nothing.
"""

import math
from collections import deque
from typing import Literal

State = Literal["closed", "open", "half-open"]
"""Closed: it gets calls. Open: it gets none until a probe is due. Half-open: a probe is on its way."""
Cause = Literal["errors", "silence", "refusal", "closure", "nonsense"]
"""Why it is open. Errors: calls fail, or it says that it is in trouble. Silence: no answer comes. Refusal: it refuses whatever it is asked.
Closure: it says that it will keep doing so, for lack of a key, of credit, or of the model. Nonsense: what answers a probe speaks no such
API, or not the one that it spoke at the start."""

FAILURES_IN_ROW = 3
"""This many failures without a success between them open it."""
WINDOW = 20
"""How many of the last calls count for their share of failures; as many successes in a row make the pauses short again."""
FAILED_SHARE = 0.5
"""This share of failures among `WINDOW` calls opens it."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""First and longest wait before a probe, in seconds; each wait is twice as long as the one before."""


class Breaker:
    """The circuit breaker of one replica. All times are seconds of one clock, and never go back."""

    def __init__(self) -> None:
        self.state: State = "closed"
        self.cause: Cause | None = None
        """Why it is open or half-open; None while it is closed."""
        self.confirmed = False
        """Whether it was opened by counting, or a probe failed since it was opened; else it is only suspected."""
        self.words = ""
        """How the replica failed last, as the end of a sentence."""
        self.probe_at = math.inf
        """When the next probe is due."""
        self.probes = 0
        """How many probes have ended."""
        self._opened_at = -math.inf
        self._row = 0
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)
        self._openings = 0
        """How many pauses there were since the replica last answered `WINDOW` calls in a row."""

    @property
    def closed(self) -> bool:
        """Whether the replica gets calls."""
        return self.state == "closed"

    @property
    def usable(self) -> bool:
        """Whether a call may be sent there if no replica's breaker is closed: it answers, so that the call learns what is wrong."""
        return self.state == "closed" or self.cause == "errors" or (self.cause == "refusal" and not self.confirmed)

    def succeed(self, sent: float) -> None:
        """A call that was sent at `sent` was answered."""
        self._count(True)
        # What was sent before the errors began says nothing about them; of a silent replica any answer does.
        if not self.closed and (self.cause == "silence" or sent >= self._opened_at):
            self._close()

    def fail(self, now: float, words: str) -> None:
        """A call ended with what is no answer, as `words` say; too many of them open the breaker."""
        self._count(False)
        self.words = words
        if self.closed and (self._row >= FAILURES_IN_ROW or self._outcomes.count(False) >= FAILED_SHARE * WINDOW):
            self._open(now, "errors")
            self._pause(now)

    def suspect(self, now: float, cause: Cause, words: str) -> None:
        """Something speaks for `cause`, as `words` say: a probe is due at once, or when it would be due anyway."""
        if self.closed:
            self._open(now, cause)
            self.probe_at = now
        elif not self.confirmed or self.cause == "errors":
            self.cause, self.confirmed = cause, False
        self.words = words

    def hasten(self, now: float) -> None:
        """Make the next probe due at once."""
        if self.state == "open":
            self.probe_at = now

    def begin_probe(self, now: float) -> bool:
        """Whether a probe is to be sent now; if so it counts as sent, and there is no other until `end_probe`."""
        if self.state != "open" or now < self.probe_at:
            return False
        self.state = "half-open"
        return True

    def end_probe(self, now: float, cause: Cause | None, words: str = "") -> None:
        """The probe was answered (`cause` None), or failed for `cause`, as `words` say."""
        self.probes += 1
        if self.state != "half-open":
            return  # a call was answered meanwhile
        if cause is None:
            self._close()
            return
        self.state, self.cause, self.words = "open", cause, words
        self._pause(now)

    def _open(self, now: float, cause: Cause) -> None:
        self.state, self.cause, self.confirmed, self._opened_at = "open", cause, False, now

    def _pause(self, now: float) -> None:
        self.confirmed = True
        self.probe_at = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._openings, 16))
        self._openings += 1

    def _close(self) -> None:
        if self.confirmed:  # a mere suspicion does not make the failures before it good
            self._row = 0
            self._outcomes.clear()
        self.state, self.cause, self.confirmed, self.probe_at = "closed", None, False, math.inf

    def _count(self, success: bool) -> None:
        self._outcomes.append(success)
        self._row = 0 if success else self._row + 1
        if self._openings and self.closed and len(self._outcomes) == WINDOW and all(self._outcomes):
            self._openings = 0
