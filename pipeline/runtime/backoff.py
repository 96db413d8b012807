"""How long to wait before something that failed is tried again. Pure."""

import hashlib

FIRST_BACKOFF_S = 0.5
"""Wait before the first repetition; it doubles with every further one, up to `LONGEST_BACKOFF_S`."""
LONGEST_BACKOFF_S = 30.0


def backoff_s(name: str, attempt: int, retry_after_s: float | None = None) -> float:
    """Seconds to wait after `attempt` (from 0) failed; they double with every attempt.

    A hash of `name`, which names what failed, shortens the wait to between half and all of it, so that calls which were
    refused together do not come back together. It is not less than `retry_after_s`, which the engine asked for and
    `EngineUnavailable` bounds.
    """
    longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempt, 64))
    spread = int.from_bytes(hashlib.blake2b(f"{name}\0{attempt}".encode(), digest_size=4).digest()) / (1 << 32)
    return max(longest * (1 + spread) / 2, retry_after_s or 0.0)
