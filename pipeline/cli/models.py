"""The option `--model ROLE=MODEL`: models by role enter, the engines that were chosen for them leave, and are told in one line."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pipeline.cli.commands import F, option
from pipeline.cli.terminal.notices import print_notice
from pipeline.errors import UsageError
from pipeline.machine import Machine

MODEL_HELP = (
    "The model of a role: a Hugging Face name, a folder, bundled:NAME, or a server http://HOST:PORT/v1[#NAME] (chat+http://... for one with"
    " chat completions only). Engines are chosen that fit on this machine; with --engines only its model is replaced. May be repeated."
)
model_option = option("--model", "models", multiple=True, metavar="ROLE=MODEL", help=MODEL_HELP, heading="Models")


def fail_option(default: float | None = 0.0) -> Callable[[F], F]:
    """The option of how many chains may fail; without a default it may be left out."""
    return option(
        "--fail-on-error",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        default=default,
        show_default=default is not None,
        help="Exit with code 3 only if more than this share of the chains failed, 0 to 1.",
        heading="Output",
    )


def with_models(graphs: Sequence[Path], options: Mapping[str, Any], batch_size: int = 64, machine: Machine | None = None) -> dict[str, Any]:
    """The options of a command without its `models` and, where there are any, with the engines for them as `planned_engines`.

    They are to start on this machine, unless another `machine` is given.
    """
    found = {name: value for name, value in options.items() if name != "models"}
    if not options["models"]:
        return found
    pairs = import_module("pipeline.engines.placement.choices").pairs
    place = import_module("pipeline.engines.placement.place").place
    given = {"settings": found["settings"], "engines": _file(found.get("engines")), "batch_size": batch_size, "machine": machine}
    placement = place(graphs, pairs(options["models"]), **given)
    for sentence in placement.sentences:
        print_notice(sentence)
    return found | {"planned_engines": placement.engines}


def _file(engines: Path | tuple[Path, ...] | None) -> Path | None:
    """The engines file whose models are replaced."""
    if not isinstance(engines, tuple):
        return engines
    if len(engines) > 1:
        raise UsageError("--model: replaces the models of one engines file; give --engines once")
    return next(iter(engines), None)
