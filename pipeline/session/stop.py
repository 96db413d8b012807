"""Stopping a run from outside it. Nothing here waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio


class Stop:
    """Stops one run; to be used only in the run's own event loop.

    A run that drains starts no more chains and lets live chains finish. A run that aborts is cancelled at once; what it has
    recorded is kept. Either way its result says that it was interrupted.
    """

    def __init__(self) -> None:
        self.aborted = False
        """Whether `abort` was called."""
        self._drain: Callable[[], None] | None = None
        self._scope: anyio.CancelScope | None = None

    def drain(self) -> bool:
        """Let the run start no more chains; False where it has not begun to start any, so that there is nothing to wait for."""
        if self._drain is None:
            return False
        self._drain()
        return True

    def abort(self) -> None:
        """Cancel the body of the innermost `guard`, and of every `guard` that is entered later."""
        self.aborted = True
        if self._scope is not None:
            self._scope.cancel()

    def drained_by(self, drain: Callable[[], None]) -> None:
        """Set the function that `drain` calls, which makes the run start no more chains."""
        self._drain = drain

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A context whose body `abort` cancels; the code after it continues."""
        outer = self._scope
        with anyio.CancelScope() as self._scope:
            if self.aborted:
                self._scope.cancel()
            try:
                yield
            finally:
                self._scope = outer
