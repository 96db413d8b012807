"""The `pipeline` command: prints and sets exit codes, holds no logic. A command's module is imported when it is called."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import StringIO
from typing import NoReturn

import click

from pipeline.errors import Interrupted, PipelineError, RunError, reason
from pipeline.redaction import redact
from pipeline.text import one_line, sanitize

COMMANDS = {
    "run": "solve a data set",
    "resume": "go on with a run that was stopped",
    "check": "check a graph file",
    "doctor": "say what this machine can run",
    "data": "prepare data sets",
    "grade": "grade a run's answers again, or its steps",
    "errors": "group a run's failed chains by cause",
    "compare": "put runs side by side",
    "report": "write tables, plots and chains of runs into one HTML file",
    "calibrate": "fit simulated engines to a run",
    "sweep": "measure throughput by batch size",
    "graph": "draw a graph, with a run's numbers on it",
    "trace": "hand a run's trace to other programs",
}


class Commands(click.Group):
    """Subcommands by module name, so that `--help` loads none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"pipeline.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def say(text: str) -> None:
    """A line on stderr, without secrets; a stderr that is closed or full never stops a run."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(one_line(redact(text)), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """A line on stdout."""
    click.echo(one_line(text))


def show(page: str | bytes) -> None:
    """Lines on stdout, JSON among them: it stays the same JSON."""
    text = page if isinstance(page, str) else page.decode()
    click.echo(sanitize(text), nl=not text.endswith("\n"))


def leave(code: int) -> NoReturn:
    """End the process now: an abandoned thread, such as a download that was interrupted, must not hold it."""
    with suppress(OSError, AttributeError):
        sys.stdout.flush()
    os._exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="speculative-pipeline")
def cli() -> None:
    """Batch reasoning with a draft and a target model that take turns on every step."""


def main() -> None:
    """Entry point."""
    code = perform(sys.argv[1:])
    if code in (1, 130):
        leave(code)
    sys.exit(code)


def perform(arguments: Sequence[str]) -> int:
    """Carry a command out; its exit code. One sentence on stderr for every error of ours, a traceback only with `--debug`."""
    try:
        return cli(list(arguments), standalone_mode=False) or 0
    except SystemExit as ending:
        return int(ending.code or 0)
    except (click.exceptions.Abort, Interrupted):
        return 130
    except click.ClickException as error:
        said = StringIO()
        error.show(said)
        for line in said.getvalue().splitlines():
            say(line)
        return error.exit_code
    except PipelineError as error:
        if "--debug" in arguments:
            raise
        say(f"error: {error}")
        return 1 if isinstance(error, RunError) else 2
    except OSError as error:
        if "--debug" in arguments:
            raise
        say(f"error: {error.filename or 'output'}: {reason(error)}")
        return 1
