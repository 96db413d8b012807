"""The limit on the address space of this process (`ulimit -v`), looked at before libraries meet it, each in its own way.

Short of address space some libraries end the process at once, and some wait for ever.
"""

import os
import resource

from pipeline.errors import RunError

TO_START = 256 << 20
"""Bytes that a command takes at least."""
TO_RUN = 1 << 30
"""Bytes that a command takes at least that makes or reads tables, on two cores; with more cores, each with stacks, it is more."""


def let_arrow_return_memory() -> None:
    """Let Arrow take memory from the C library, which gives it back: its own allocator keeps some 60 MiB of the rows that a run writes
    (bench/workloads.py). To be called before Arrow is imported; reading tables is a little slower then."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def fit_address_space(least: int) -> None:
    """Let this process do with the address space that it may have; raises `RunError` where that is less than `least` bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    let_arrow_return_memory()  # its own allocator would reserve a GiB at once
    if limit < least:
        what = f"the limit on memory (`ulimit -v`) is {limit >> 20} MiB, and this command takes at least {least >> 20} MiB"
        raise RunError(f"{what}; raise it, or limit a container instead")
