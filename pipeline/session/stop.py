"""How a run is asked to stop from outside it. Nothing here waits, and nothing here knows why."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio


class Stop:
    """The handle of one run; of its event loop, like the run itself.

    A run that drains starts no more chains and lets those that live go on to their ends. A run that aborts is cancelled where
    it stands; what it has recorded is kept. Either way its result says that it was interrupted.
    """

    def __init__(self) -> None:
        self.aborted = False
        self._drain: Callable[[], None] | None = None
        self._scope: anyio.CancelScope | None = None

    def drain(self) -> bool:
        """Start no more chains; False where no chain has been started, so that there is nothing to wait for."""
        if self._drain is None:
            return False
        self._drain()
        return True

    def abort(self) -> None:
        """Cancel what goes on inside the innermost `guard`, now and from now on."""
        self.aborted = True
        if self._scope is not None:
            self._scope.cancel()

    def drained_by(self, drain: Callable[[], None]) -> None:
        """From now on `drain` makes the run start no more chains."""
        self._drain = drain

    @contextmanager
    def guard(self) -> Iterator[None]:
        """What `abort` cancels; the code after it goes on."""
        outer = self._scope
        with anyio.CancelScope() as self._scope:
            if self.aborted:
                self._scope.cancel()
            try:
                yield
            finally:
                self._scope = outer
