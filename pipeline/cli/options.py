"""The options and arguments that several commands have, and how their values are read.

Options of a run derive from the fields of `RunOptions`. Runs and problems are given by path, name or URL, and become paths: what a URL
names is on this machine until the command ends; what the command wrote there is uploaded then.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce, wraps
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
from msgspec import Struct

from pipeline.cli.terminal import CommandOutput, output
from pipeline.errors import InputError, UsageError, boundary
from pipeline.options import ABOUT, RunOptions
from pipeline.remote.url import is_url, parse_url

F = TypeVar("F", bound=Callable[..., Any] | click.Command)
T = TypeVar("T")
RUNS = Path("runs")
"""The folder in which a run is found by its name alone."""
NO_URL = "a URL, where only a path of this machine can be used"
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
    " Engines are chosen that fit on this machine. Not together with --engines. May be repeated."
)
METRICS_HELP = "Serve Prometheus metrics on this port, of 127.0.0.1 or HOST."
LOG_HELP = "Append messages, progress and engine logs to FILE."
_KINDS = get_type_hints(RunOptions)
_DEFAULTS = RunOptions(graph=Path(), input=())


class Option(click.Option):
    """An option with a heading for the help of long commands."""

    def __init__(self, *args: Any, heading: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Ranges are for errors: in help they are mostly noise."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class HeadedCommand(click.Command):
    """A command whose help has its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                found.setdefault(getattr(param, "heading", "Display"), []).append(record)
        for heading, records in found.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def headed(heading: str) -> Callable[..., Callable[[F], F]]:
    """`click.option` for options under this heading."""
    return partial(click.option, cls=Option, heading=heading)


option, display_option = headed("Options"), headed("Display")


class Located(Struct, frozen=True):
    """A run folder on this machine, and the URL that it stands for, if there is one; as text what the user calls it."""

    path: Path
    url: str = ""

    def __str__(self) -> str:
        return self.url or str(self.path)


class LocalPath(click.Path):
    """A path of this machine, for what no command reads from or writes to an object store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A URL is an error."""
        if is_url(str(value)):
            self.fail(f"{value}: {NO_URL}", param, ctx)
        return Path(value)


class RunFolder(click.Path):
    """A run folder that a command reads: a path, the name of a run in `runs`, or a URL; one that it `writes` is on this machine."""

    def __init__(self, *, writes: bool = False) -> None:
        super().__init__()
        self._writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(str(value)) or not _is_carried_out(ctx):
            path = Path(value)
            return Located(RUNS / path if not path.exists() and (RUNS / path).exists() else path)
        if self._writes:
            self.fail(f"{value}: {NO_URL}", param, ctx)
        folder = _opened(import_module("pipeline.remote.folder").read_folder(str(value)))
        return _known_as(folder, str(parse_url(str(value))))


class ProblemFile(click.Path):
    """A file of problems by path or URL, or a data set by name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return problems_of(str(value))[0] if _is_carried_out(ctx) else Path(value)


def written_run(text: str, *, new: bool) -> Located:
    """The run folder that a command writes, by path or URL, until the command ends; `new`: there is no run yet. Raises `UsageError`."""
    if not is_url(text):
        found: Located = RunFolder().convert(text, None, None) if not new else Located(Path(text))
        return found
    return _known_as(_opened(import_module("pipeline.remote.folder").written_folder(text, new=new)), text.rstrip("/"))


def one_run(run: Located) -> Path:
    """The folder of a run; raises `InputError` for a folder of runs, and names one of them."""
    if runs := import_module("pipeline.analysis.progress").run_folders(run.path, depth=1):
        raise InputError(str(run), f"a folder of runs; name one of them, such as {runs[0]}")
    return run.path


def runs_in(folder: Path) -> list[Path]:
    """The run in the folder, or else the runs in it, latest first; raises `InputError` where there is none."""
    there = import_module("pipeline.store.folder")
    found: list[Path] = [] if (folder / there.FILE).exists() else import_module("pipeline.analysis.progress").run_folders(folder, depth=2)
    if not found:
        there.check_run(folder)
    return found or [folder]


def check_reachable(*inputs: str) -> None:
    """Raise `UsageError` within seconds where an input is on the hub and the hub does not answer; its libraries ask for half a minute."""
    hub, recipes = import_module("pipeline.engines.hub"), import_module("pipeline.data.prepare").RECIPES
    for name in inputs:
        is_recipe = name in recipes and recipes[name].hub and not Path(name).exists() and not Path("data", f"{name}.parquet").exists()
        if (is_recipe or name.startswith("hf://")) and not hub.is_offline():
            with boundary(UsageError, name, foreign=hub.NotOnHub):
                hub.hub_json("api/datasets?limit=1")


def problems_of(*inputs: str) -> list[Path]:
    """The paths of inputs of a command, until it ends; see `problem_files`."""
    check_reachable(*inputs)
    files, fetch = import_module("pipeline.data.inputs").problem_files, import_module("pipeline.remote.inputs").fetch_problems
    paths: list[Path] = _opened(files(inputs, fetch, output().notice))
    output().urls.update((str(path), name) for path, name in zip(paths, inputs, strict=True) if str(path) != name)
    return paths


def _is_carried_out(ctx: click.Context | None) -> bool:
    """Whether a command is; others are only parsed, for completion or by a test."""
    return ctx is not None and ctx.obj is not None


def _known_as(folder: Path, url: str) -> Located:
    """The folder, called by its URL in all that the command prints."""
    output().urls[str(folder)] = url
    return Located(folder, url)


def _opened(manager: AbstractContextManager[T]) -> T:
    """What the manager gives; it is closed when the command has ended, whether it succeeded or not."""
    return click.get_current_context().find_root().with_resource(manager)


def run_options(*names: str, unset: bool = False) -> Callable[[F], F]:
    """Give a command the options of these fields of `RunOptions`; `unset`: they may be left out, and are None then."""

    return lambda command: reduce(lambda each, name: _run_option(name, unset=unset)(each), reversed(names), command)


def _run_option(name: str, *, unset: bool) -> Callable[[F], F]:
    known, kind, default = ABOUT[name], _KINDS[name], getattr(_DEFAULTS, name)
    names, settings = [f"--{name.replace('_', '-')}"], dict[str, Any](help=known.help, heading=known.group, metavar=known.metavar or None)
    if NoneType in get_args(kind):
        kind = get_args(kind)[0]
    if name in SHORT:
        names.append(SHORT[name])
    if name in LEFT_OUT:
        settings["help"] += f"  [default: {LEFT_OUT[name]}]"
    elif not unset and default not in (None, {}) and kind is not bool:
        settings |= {"default": default, "show_default": True}
    if name == "columns":
        names = ["--column", name]
        settings |= {"multiple": True, "callback": _column, "help": f"{known.help} May be repeated."}
    elif kind is bool:
        settings["is_flag"] = True
    elif get_origin(kind) is Literal:
        settings["type"] = click.Choice(get_args(kind))
    elif known.bounds:
        low, high = known.bounds
        settings["type"] = click.IntRange(int(low), int(high)) if kind is int else click.FloatRange(low, high)
    else:
        settings["type"] = click.Path() if kind is Path else kind
    return option(*names, **settings)


def _column(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    if not all(field and column for field, column in pairs.items()):
        raise click.BadParameter("expected FIELD=COLUMN, for example problem=question")
    return pairs


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> Address:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise click.BadParameter(f"{text!r}: expected PORT or HOST:PORT, for example 9090 or 0.0.0.0:9090")
    return host or "127.0.0.1", int(port)


json_option = option("--json", "as_json", is_flag=True, help="Print JSON.", heading="Output")
engines_option = option("--engines", type=click.Path(path_type=Path), metavar="NAME|FILE", help=ENGINES_HELP, heading="Models")
model_option = option("--model", "models", multiple=True, metavar="ROLE=MODEL", help=MODEL_HELP, heading="Models")
settings_option = option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help=SET_HELP, heading="Prompting")
preset_option = option("--preset", type=click.Path(path_type=Path), metavar="NAME|FILE", help=PRESET_HELP, heading="Prompting")
metrics_option = display_option("--metrics-port", callback=_address, metavar="[HOST:]PORT", help=METRICS_HELP)


def graph_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command of a graph `--engines`, `--model`, `--set` and `--preset`, which `bound` reads."""
    return engines_option(model_option(settings_option(preset_option(command))))


def bound(graphs: Sequence[Path], options: Mapping[str, Any], batch_size: int = 64) -> dict[str, Any]:
    """The options of a command with what its `preset` and `models` mean in their place: settings, samples where the user says none, and
    `planned_engines` that fit on this machine.

    Raises `UsageError` where none of the graphs has anything that the preset sets, and where no engines fit.
    """
    found = dict(options)
    name, models = found.pop("preset", None), found.pop("models", ())
    with_preset = import_module("pipeline.graph.load").with_preset
    found["settings"], samples = with_preset(name, graphs, found["settings"], found.get("samples"))
    if "samples" in found:
        found["samples"] = samples
    if models and found.get("engines"):
        raise UsageError("--model: chooses the engines, and so does --engines; change a model of the file by --set engines.ROLE.model=NAME")
    if models:
        placement = import_module("pipeline.engines.placement")
        given = {"settings": found["settings"], "batch_size": batch_size}
        given["replicas"] = 1 if found.get("cluster") else found.get("replicas", 1)
        found["planned_engines"], sentences = placement.place(graphs, placement.pairs(models), **given)
        for sentence in sentences:
            output().notice(sentence)
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
