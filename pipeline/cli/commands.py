"""How a command is put together: groups that import a command when it is called, options under headings, errors."""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from ctypes import CDLL
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from pipeline.cli.synonyms import meant
from pipeline.errors import UsageError, nearest

F = TypeVar("F", bound=Callable[..., Any] | click.Command)
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "auto_envvar_prefix": "PIPELINE"}


class Opened(ExitStack):
    """What a command opens, the `obj` of its context: closed when the command has ended, whether it succeeded or not."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: dict[str, str] = {}
        """The URLs that paths of this machine stand for."""

    def named(self, text: str) -> str:
        """A message with each local path replaced by its URL."""
        for path, url in self.urls.items():
            text = text.replace(path, url)
        return text


class Option(click.Option):
    """An option with a heading for the help of long commands."""

    def __init__(self, *args: Any, heading: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading

    @property
    def long_name(self) -> str:
        """Its long name, such as `--batch-size`."""
        return max(self.opts, key=len)

    def repeated(self, given: Any, times: int) -> str | None:
        """What is given several times though only one of its values can hold: the option, or a NAME of its NAME=VALUE."""
        if not self.multiple:
            return self.long_name if times > 1 and not self.is_flag else None
        names = [value.partition("=")[0] for value in given] if "=" in str(self.metavar) else []
        return next((f"{self.long_name} {name}" for name in names if names.count(name) > 1), None)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Ranges are for errors: in help they are mostly noise."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command, if it is `headed` with its options under headings."""

    def __init__(self, *args: Any, headed: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.headed = headed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what is given twice."""
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        for param in order:
            if isinstance(param, Option) and (name := param.repeated(values[str(param.name)], order.count(param))):
                raise click.UsageError(f"{name} is given twice", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.headed:
            super().format_options(ctx, formatter)
            return
        found: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                found.setdefault(getattr(param, "heading", "") or "Display", []).append(record)
        for heading, records in found.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def command(**settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """As `click.command`, for a `Command`."""
    return click.command(cls=Command, **settings)


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """As `click.option`, for an `Option`."""
    return click.option(*names, cls=Option, **settings)


def headed(heading: str) -> Callable[..., Callable[[F], F]]:
    """`option` for options under this heading."""
    return partial(option, heading=heading)


json_option = option("--json", "as_json", is_flag=True, help="Print JSON.", heading="Output")
overwrite_option = option("--overwrite", is_flag=True, help="Overwrite an existing file.", heading="Output")


def check_output(path: Path, overwrite: bool) -> None:
    """Raise `UsageError` where `path` may not be written, before anything is read."""
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f"{path}: file exists; choose another file with --output, or add --overwrite")
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path}: not writable; choose another file with --output")


class CommandEntry(Struct, frozen=True):
    """A command in a table of commands."""

    what: str
    """What it does, in a few words."""
    place: str = ""
    """MODULE:NAME of its function, in this folder."""
    solves: bool = False
    """It solves problems, which may take much memory."""
    inside: Mapping[str, "CommandEntry"] = {}
    """For a group: its commands."""


def _give_memory_back() -> None:
    """Let memory go back to the system as it is freed: a quarter of it in a simulated run of 40,000 chains.

    Arrow's own allocator keeps some 60 MiB of the rows that a run writes (bench/overhead.py), and glibc what lies between longer-lived
    objects; other C libraries have no such settings. To be called before Arrow is imported. See mallopt(3).
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(OSError, AttributeError):
        set_option = CDLL(None).mallopt
        for number, value in ((-8, 1), (-1, 1 << 17), (-3, 1 << 16)):  # M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
            set_option(number, value)


class Commands(click.Group):
    """A group of commands in sections, whose modules are imported when a command is called, so that `--help` loads none of them."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, CommandEntry]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.no_args_is_help = False  # `parse_args` prints it
        self.sections = sections
        self.entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        if entry.inside:
            return Commands(cmd_name, sections={"Commands": entry.inside}, help=f"{entry.what[:1].upper()}{entry.what[1:]}.")
        if entry.solves:
            _give_memory_back()
        module, _, function = entry.place.partition(":")
        found: click.Command = getattr(import_module(f"pipeline.cli.{module}"), function)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a command the help is printed."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """An error names the nearest command."""
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            near = nearest(args[0], self.entries)
            remedy = f"did you mean `{near}`?" if near else f"see {ctx.command_path} --help"
            raise click.UsageError(f"{ctx.command_path}: no command `{args[0]}`; {remedy}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.entries))
        for section, entries in self.sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), entry.what) for name, entry in entries.items()])


def usage_sentence(error: click.ClickException) -> str:
    """What is wrong with the arguments of a command, as an error in this package's style."""
    context = getattr(error, "ctx", None)
    see = "" if context is None else f"; see {context.command_path} --help"
    if isinstance(error, click.NoSuchOption):
        known = [] if context is None else [name for param in context.command.params for name in param.opts if name.startswith("--")]
        name = error.option_name
        remedy, near = meant(name, known), nearest(name.strip("-"), [each.strip("-") for each in known])
        return f"no option `{name}`" + (f"; use {remedy}" if remedy else f"; did you mean `--{near}`?" if near else see)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_name(error.param)} is missing{_choices(error.param)}{see}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_name(error.param)}: {_plain(error.message.rstrip('.'))}"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}{see}"


def _plain(said: str) -> str:
    """What click says of a number, in words: `0<=x<=1` is between 0 and 1."""
    return re.sub(r"in the range (\S+)<=x<=(\S+)", r"between \1 and \2", said.replace("a valid integer range", "a whole number"))


def _name(param: click.Parameter) -> str:
    return param.long_name if isinstance(param, Option) else param.human_readable_name.strip("[].")


def _choices(param: click.Parameter) -> str:
    return f": one of {', '.join(param.type.choices)}" if isinstance(param.type, click.Choice) else ""
