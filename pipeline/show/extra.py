"""Imports modules that need an extra: a module's name enters, the module leaves, or an error that names the extra."""

from importlib import import_module
from types import ModuleType

from pipeline.errors import MissingExtra

EXTRAS = {"plotly": "report", "starlette": "serve", "uvicorn": "serve"}
"""The packages that pages need, and the extra that has each."""


def load(name: str) -> ModuleType:
    """Import the module `pipeline.show.NAME`; raises `MissingExtra` where a package of an extra is missing."""
    try:
        return import_module(f"pipeline.show.{name}")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtra("view", package, EXTRAS[package]) from error
