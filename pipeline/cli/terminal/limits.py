"""The limit on the address space of this process (`ulimit -v`), looked at before libraries meet it, each in its own way.

Short of address space some libraries end the process at once, and some wait for ever.
"""

import gc
import os
import resource
from contextlib import suppress
from ctypes import CDLL

from pipeline.errors import RunError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Numbers of malloc.h."""
TO_START = 256 << 20
"""Bytes that a command takes at least."""
TO_RUN = 1 << 30
"""Bytes that a command takes at least that makes or reads tables, on two cores; with more cores, each with stacks, it is more."""


def let_arrow_return_memory() -> None:
    """Let Arrow take memory from the C library, which gives it back: its own allocator keeps some 60 MiB of the rows that a run writes
    (bench/overhead.py). To be called before Arrow is imported; reading tables is a little slower then."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def give_memory_back() -> None:
    """Let glibc give memory back to the system as it is freed, rather than keep what lies between longer-lived objects: a quarter of the
    memory of a simulated run of 40,000 chains. Other C libraries have no such settings. See mallopt(3)."""
    with suppress(OSError, AttributeError):
        set_option = CDLL(None).mallopt
        for option, value in ((M_ARENA_MAX, 1), (M_TRIM_THRESHOLD, 1 << 17), (M_MMAP_THRESHOLD, 1 << 16)):
            set_option(option, value)


def return_memory() -> None:
    """Give the system back what a run that is over has held: its engines refer to themselves, and what lies free between longer-lived
    objects stays otherwise. See malloc_trim(3)."""
    gc.collect()
    with suppress(OSError, AttributeError):
        CDLL(None).malloc_trim(0)


def fit_address_space(least: int) -> None:
    """Let this process do with the address space that it may have; raises `RunError` where that is less than `least` bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    let_arrow_return_memory()  # its own allocator would reserve a GiB at once
    if limit < least:
        what = f"the limit on memory (`ulimit -v`) is {limit >> 20} MiB, and this command needs at least {least >> 20} MiB"
        raise RunError(f"{what}; raise it, or limit a container instead")
