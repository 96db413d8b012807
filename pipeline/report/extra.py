"""Imports modules that need the extra `report`: a module's name enters, the module leaves, or an error that names the extra."""

from importlib import import_module
from types import ModuleType

from pipeline.errors import MissingExtra

PACKAGES = ("jinja2", "markupsafe", "plotly")


def load(name: str) -> ModuleType:
    """Import the module `pipeline.report.NAME`; raises `MissingExtra` where a package of the extra is missing."""
    try:
        return import_module(f"pipeline.report.{name}")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in PACKAGES:
            raise
        raise MissingExtra("a report", package, "report") from error
