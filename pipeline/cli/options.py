"""The options that several commands have, and how their values are read. Those of a run derive from the fields of `RunOptions`."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from msgspec import NODEFAULT, structs

from pipeline.cli.commands import F, headed, option
from pipeline.cli.terminal import CommandOutput, output
from pipeline.errors import UsageError
from pipeline.options import ABOUT, RunOptions

Address = tuple[str, int] | None
"""Host and port at which metrics are served; None: they are not."""
SHORT = {"limit": "-n", "output": "-o"}
"""Short names of options of a run."""
LEFT_OUT = {"samples": "that of --preset, else 1", "output": "runs/GRAPH-TIME"}
"""Options of a run that are shown even if left out, with the value they then have."""
INPUT_HELP = (
    "The same as INPUT: a Parquet, Arrow, JSON lines, JSON or CSV file, a folder or 'pattern*' of them, by path or s3:// or gs:// URL;"
    " the name of a data set (pipeline list data); hf://OWNER/NAME[@REVISION][:CONFIG][/SPLIT]; or - for stdin. May be repeated."
)
ENGINES_HELP = "Engines: a bundled name (tiny, sim-2xh100), a YAML file, or replay:RUN.  [default: the graph's]"
SET_HELP = "Set a param of the graph, stages.STAGE.NAME=VALUE or engines.ROLE.NAME=VALUE. May be repeated."
PRESET_HELP = "Settings of a paper: speccot, specreason, scot, or a file. --set overrides them."
MODEL_HELP = (
    "The model of a role: a Hugging Face name, a folder, bundled:NAME, or a server http://HOST:PORT/v1[#NAME]."
    " Engines are chosen that fit on this machine; with --engines only its model is replaced. May be repeated."
)
METRICS_HELP = "Serve Prometheus metrics on this port, of 127.0.0.1 or HOST."
LOG_HELP = "Append messages, progress and engine logs to FILE."
_KINDS = get_type_hints(RunOptions)
_DEFAULTS = {
    field.name: field.default_factory() if field.default is NODEFAULT and field.default_factory is not NODEFAULT else field.default
    for field in structs.fields(RunOptions)
}


def run_options(*names: str, unset: bool = False) -> Callable[[F], F]:
    """Give a command the options of these fields of `RunOptions`; `unset`: they may be left out, and are None then."""

    def give(command: F) -> F:
        for name in reversed(names):
            command = _run_option(name, unset=unset)(command)
        return command

    return give


def _run_option(name: str, *, unset: bool) -> Callable[[F], F]:
    known, default = ABOUT[name], _DEFAULTS[name]
    spelled, settings = f"--{name.replace('_', '-')}", dict[str, Any](help=known.help, heading=known.group, metavar=known.metavar or None)
    if name in LEFT_OUT:
        settings |= {"help": f"{known.help}  [default: {LEFT_OUT[name]}]"}
    elif not unset and default is not None and default is not False and default != {}:
        settings |= {"default": default, "show_default": True}
    if name == "columns":
        return option("--column", name, multiple=True, callback=_column, **settings | {"help": f"{known.help} May be repeated."})
    kind = _KINDS[name]
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if kind is bool:
        return option(spelled, is_flag=True, **settings)
    return option(*filter(None, (SHORT.get(name), spelled)), type=_click_type(kind, known.bounds), **settings)


def _column(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    if not all(field and column for field, column in pairs.items()):
        raise click.BadParameter("expected FIELD=COLUMN, for example problem=question")
    return pairs


def _click_type(kind: Any, bounds: tuple[float, float] | None) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is int:
        return click.IntRange(int(bounds[0]), int(bounds[1])) if bounds else int
    return click.FloatRange(*bounds) if kind is float and bounds else click.Path() if kind is Path else str


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> Address:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise click.BadParameter(f"{text!r}: expected PORT or HOST:PORT, for example 9090 or 0.0.0.0:9090")
    return host or "127.0.0.1", int(port)


display_option = headed("Display")
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.", heading="Output")
engines_option = option("--engines", type=click.Path(path_type=Path), metavar="NAME|FILE", help=ENGINES_HELP, heading="Models")
model_option = option("--model", "models", multiple=True, metavar="ROLE=MODEL", help=MODEL_HELP, heading="Models")
settings_option = option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help=SET_HELP, heading="Prompting")
preset_option = option("--preset", type=click.Path(path_type=Path), metavar="NAME|FILE", help=PRESET_HELP, heading="Prompting")
metrics_option = display_option("--metrics-port", callback=_address, metavar="[HOST:]PORT", help=METRICS_HELP)


def bound(graphs: Sequence[Path], options: Mapping[str, Any], batch_size: int = 64) -> dict[str, Any]:
    """The options of a command with what its `preset` and `models` mean in their place: settings, samples where the user says none, and
    `planned_engines` that fit on this machine.

    Raises `UsageError` where none of the graphs has anything that the preset sets, and where no engines fit.
    """
    found = dict(options)
    name, models = found.pop("preset", None), found.pop("models", ())
    loading = import_module("pipeline.graph.load")
    preset = None if name is None else loading.load_preset(name)
    if preset is not None:
        found["settings"] = (f"{loading.PRESET}{name}", *found["settings"])
        if preset.set and not any(names.has(setting) for names in map(loading.outline, graphs) for setting in preset.set):
            listed, where = ", ".join(f"`{setting}`" for setting in preset.set), " and ".join(map(str, graphs))
            raise UsageError(f"--preset {name}: sets only {listed}, none of which {where} has")
    if "samples" in found and found["samples"] is None:
        found["samples"] = (preset.samples if preset is not None else None) or 1
    if models and found.get("engines"):
        raise UsageError("--model: chooses the engines, and so does --engines; change a model of the file by --set engines.ROLE.model=NAME")
    if models:
        placement = import_module("pipeline.engines.placement")
        given = {"settings": found["settings"], "batch_size": batch_size}
        given["replicas"] = 1 if found.get("cluster") else found.get("replicas", 1)
        placed = placement.place(graphs, placement.pairs(models), **given)
        for sentence in placed.sentences:
            output().notice(sentence)
        found["planned_engines"] = placed.engines
    return found


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its problems, as arguments or as `--input`; they come as `inputs`."""

    @click.argument("named", nargs=-1, metavar="INPUT...")
    @option("-i", "--input", "inputs", multiple=True, metavar="INPUT", help=INPUT_HELP, heading="Input")
    @wraps(command)
    def with_inputs(*args: Any, named: tuple[str, ...], inputs: tuple[str, ...], **options: Any) -> Any:
        if not named and not inputs:
            raise click.UsageError("no problems to solve: name a file or a data set, such as arith", click.get_current_context())
        return command(*args, inputs=(*named, *inputs), **options)

    return with_inputs


def notice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes long the options `--quiet`, `--verbose` and `--log-file`: its `output` is as they say."""

    @display_option("-q", "--quiet", is_flag=True, help="Print only errors and results.")
    @display_option("-v", "--verbose", is_flag=True, help="Also print the logs of the engines' processes.")
    @display_option("--log-file", type=click.Path(path_type=Path), metavar="FILE", help=LOG_HELP)
    @wraps(command)
    def noticed(*args: Any, quiet: bool, verbose: bool, log_file: Path | None, **others: Any) -> Any:
        if quiet and verbose:
            raise UsageError("--quiet and --verbose: give one of them")
        context = click.get_current_context()
        with CommandOutput(quiet=quiet, verbose=verbose, log_file=log_file, urls=output().urls) as context.obj:
            return command(*args, **others)

    return noticed
