"""Notes that this process imports torch or vLLM; every Python process that a test starts finds this module on its path first."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

WATCHED = ("torch", "vllm")
NOTES = "TESTS_IMPORT_NOTES"
"""The file that gets a line for every import."""


class Watch:
    """Finds the watched packages where they are; to look for them without importing them is not noted."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in WATCHED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def noting(module: ModuleType) -> None:
            with open(os.environ[NOTES], "a") as notes:
                print(name, file=notes)
            load(module)

        spec.loader.exec_module = noting  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Watch from now on, in this process; a second call changes nothing."""
    if not any(type(finder).__name__ == Watch.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, Watch())


if NOTES in os.environ:
    install()
