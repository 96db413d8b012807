"""How a command is put together: groups that import a command when it is called, options under headings, errors in one sentence."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from ctypes import CDLL
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import click
from msgspec import Struct

from pipeline.errors import nearest

F = TypeVar("F", bound=Callable[..., Any] | click.Command)
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "auto_envvar_prefix": "PIPELINE"}
_SYNONYMS = {
    "--input FILE": "data dataset dataset-name dataset-path data-path input-file file task tasks benchmark",
    "--output DIR": "out output-dir output-path save-dir log-dir results",
    "--limit N": "num-prompts num-problems max-problems num-examples",
    "--samples K, or --limit N for problems": "num-samples n-samples",
    "--samples K": "n k epochs num-return-sequences",
    "--batch-size N": "max-connections concurrency max-concurrency num-concurrent max-num-seqs max-samples max-workers num-workers",
    "--model target=NAME": "model-name model-path target target-model base-model large-model",
    "--model draft=NAME": "draft draft-model speculative-model assistant-model small-model",
    "--model ROLE=http://HOST:PORT/v1#NAME": "base-url api-base model-base-url endpoint server url",
    "--set engines.ROLE.args.tensor_parallel_size=N": "tensor-parallel-size tp tp-size",
    "--set engines.ROLE.args.gpu_memory_utilization=SHARE": "gpu-memory-utilization",
    "--set engines.ROLE.args.max_model_len=N": "max-model-len max-length context-length",
    "--set engines.ROLE.api_key_env=VARIABLE": "api-key",
    "--set engines.ROLE.timeout_s=SECONDS": "timeout request-timeout",
    "--set engines.ROLE.args.NAME=VALUE": "model-args dtype quantization",
    "--set engines.ROLE.NAME=VALUE": "max-retries trust-remote-code device",
    "--set token_budget=N": "max-tokens max-new-tokens max-completion-tokens max-gen-toks max-thinking-tokens reasoning-tokens",
    "--set prompts=FILE": "system-prompt prompt-template prompts",
    "--set NAME=VALUE": "gen-kwargs generation-config",
} | {f"--set {name.replace('-', '_')}=VALUE": name for name in ("temperature", "top-p", "top-k", "min-p", "candidates", "threshold")}
"""What people who come from vLLM, lm_eval, inspect or OpenAI call an option, by what to give here."""


SOLVING = ("run", "serve", "sweep")
"""Modules whose commands may take much memory."""


class Option(click.Option):
    """An option with a heading for the help of long commands."""

    def __init__(self, *args: Any, heading: str = "Options", **settings: Any) -> None:
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


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """As `click.option`, for an `Option`."""
    return click.option(*names, cls=Option, **settings)


def headed(heading: str) -> Callable[..., Callable[[F], F]]:
    """`option` for options under this heading."""
    return partial(option, heading=heading)


class CommandEntry(Struct, frozen=True):
    """A command in a table of commands: what it does, in a few words, and MODULE:NAME of its function; of a group its commands."""

    what: str
    place: str = ""
    inside: Mapping[str, "CommandEntry"] = {}


def _give_memory_back() -> None:
    """Let memory go back to the system as it is freed: a quarter of it in a simulated run of 40,000 chains.

    Arrow's own allocator keeps some 60 MiB of the rows that a run writes, and glibc what lies between longer-lived
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
        module, _, function = entry.place.partition(":")
        if module in SOLVING:
            _give_memory_back()
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
        remedy, near = _meant(name, known), nearest(name.strip("-"), [each.strip("-") for each in known])
        return f"no option `{name}`" + (f"; use {remedy}" if remedy else f"; did you mean `--{near}`?" if near else see)
    if isinstance(error, click.BadParameter) and error.param is not None:
        param = error.param
        name = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name.strip("[].")
        if isinstance(error, click.MissingParameter):
            choices = f": one of {', '.join(param.type.choices)}" if isinstance(param.type, click.Choice) else ""
            return f"{name} is missing{choices}{see}"
        return f"{name}: {_plain(error.message.rstrip('.'))}"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}{see}"


def _meant(name: str, known: Collection[str]) -> str | None:
    """What to give, of the `known` options of a command, for an option that is called `name` elsewhere."""
    wanted = name.strip("-").replace("_", "-")
    found = next((meant for meant, names in _SYNONYMS.items() if wanted in names.split()), None)
    return found if found is not None and found.split()[0] in known else None


def _plain(said: str) -> str:
    """What click says of a number, in words: `0<=x<=1` is between 0 and 1."""
    return re.sub(r"in the range (\S+)<=x<=(\S+)", r"between \1 and \2", said.replace("a valid integer range", "a whole number"))
