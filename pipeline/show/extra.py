"""Imports modules that need an extra: a module's name enters, the module leaves, or an error that names the extra."""

from importlib import import_module
from types import ModuleType

from pipeline.errors import MissingExtra


def load(name: str) -> ModuleType:
    """Import the module `pipeline.show.NAME`; raises `MissingExtra` where a package of an extra is missing."""
    try:
        return import_module(f"pipeline.show.{name}")
    except ModuleNotFoundError as error:
        if error.name in ("starlette", "uvicorn"):
            raise MissingExtra("view", "starlette", "serve") from error
        if str(error.name).partition(".")[0] == "plotly":
            raise MissingExtra("view", "plotly", "report") from error
        raise
