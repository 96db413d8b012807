"""Notices that this process did not run for a while: it was suspended (Ctrl-Z, SIGSTOP), or its machine had no time for it.

Time that passed meanwhile is not the engine's: nothing that it sent could be received.
"""

import anyio

from pipeline.runtime.chain_recorder import Clock

UNNOTICED_S = 0.5
"""A sleep that takes no more than this much longer than asked was only late."""


async def sleep_noticing(seconds: float, clock: Clock) -> float:
    """Sleep for `seconds`; for how many seconds this process did not run meanwhile. On virtual time that is 0."""
    until = clock.now() + seconds
    await anyio.sleep(seconds)
    late_s = clock.now() - until
    return late_s if late_s > UNNOTICED_S else 0.0
