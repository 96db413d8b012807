"""The one door to the `datasets` library, an optional extra: a place on the hub enters, rows leave, as published."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pipeline.data.recipe import Hub
from pipeline.errors import InputError, UsageError, install_command


def hub_rows(hub: Hub) -> Iterator[dict[str, Any]]:
    """Download (or find in the library's cache) and iterate; raises `UsageError` without the library, `InputError` without the data."""
    try:
        load = import_module("datasets").load_dataset
    except (ImportError, AttributeError) as error:  # AttributeError: where it is not installed, a folder `datasets` passes for it
        remedy = f"{install_command('data')}, or download the data set and give its file: --from PATH"
        raise UsageError(f"--from hub: the library `datasets` is not installed; {remedy}") from error
    try:
        yield from load(hub.id, hub.config, split=hub.split, revision=hub.revision)
    except Exception as error:  # whatever its HTTP client, its file systems and its formats raise
        text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"hub: {hub.id}", f"cannot be read: {text}; or download it and give its file: --from PATH") from error
