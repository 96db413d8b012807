"""How large libraries are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in the block, which imports a large library: its objects stay, and each collection would walk over them again.

    That is about a fifth of the processor time in which torch and transformers are imported, and vLLM. A process that does nothing else
    yet ends the block with `gc.freeze()`, so that no later collection walks over them, either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
