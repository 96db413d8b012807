"""The `pipeline` command: which commands there are, how they print, and the exit code that an error becomes.

Commands only read options, call the package and print. The module of a command is imported when the command is called.
"""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import StringIO
from typing import NoReturn

import click

from pipeline.cli.terminal.defects import sentence_of
from pipeline.cli.terminal.interrupts import ignore_interrupts, keep_interrupts
from pipeline.cli.terminal.limits import TO_RUN, TO_START, fit_address_space, give_memory_back, let_arrow_return_memory
from pipeline.cli.terminal.notices import notices_end, print_error, print_notice
from pipeline.cli.terminal.places import forget_urls, opening, with_urls
from pipeline.cli.terminal.streams import discard_stdout, guard_streams
from pipeline.errors import Interrupted, OutOfMemory, PipelineError, RunError, did_you_mean, is_interrupt, is_out_of_memory, reason
from pipeline.text import one_line, sanitize

COMMANDS = {
    "run": ("run", "solve a data set"),
    "resume": ("run", "resume a stopped run"),
    "init": ("files", "write a graph and an engines file to begin with"),
    "graphs": ("files", "list the bundled graphs"),
    "schema": ("files", "print the JSON Schema of a file, for editors"),
    "check": ("graph", "check a graph file"),
    "doctor": ("doctor", "report what this machine can run"),
    "data": ("data", "prepare data sets"),
    "grade": ("grade", "regrade the answers of a run, or score its steps"),
    "errors": ("runs.folder", "group a run's failed chains by cause"),
    "fsck": ("runs.folder", "check a run folder and repair it"),
    "compare": ("compare", "compare runs"),
    "report": ("report", "write an HTML report on runs"),
    "calibrate": ("calibrate", "fit the simulator to a run"),
    "sweep": ("sweep", "measure throughput by batch size"),
    "train": ("train", "train adapters for the draft and the target"),
    "graph": ("graph", "draw a graph, annotated with the counts and times of a run"),
    "export": ("runs.export", "export the answers of a run"),
    "show": ("runs.show", "show one chain of a run, step by step"),
    "runs": ("runs.listing", "list runs"),
    "merge": ("runs.merge", "merge the runs of all shards of an input"),
    "rm": ("runs.listing", "delete runs"),
    "watch": ("runs.watch", "watch a run that goes on"),
    "trace": ("runs.trace", "export the trace of a run"),
}
"""Each command with the module of this folder that holds a function of its name, and what it does."""


NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the system that only the name of a file has, which the user gave."""


class Commands(click.Group):
    """Commands whose modules are imported when they are called, so that `--help` loads none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        fit_address_space(TO_START if name in ("check", "data", "doctor", "graph") else TO_RUN)
        if name in ("run", "resume", "sweep"):
            let_arrow_return_memory()
            give_memory_back()
        module, _ = COMMANDS[name]
        command: click.Command = getattr(import_module(f"pipeline.cli.{module}"), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group.resolve_command`; an unknown command is told with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"no command {args[0]!r}; {did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


def print_line(text: str) -> None:
    """Print one line on stdout."""
    print(one_line(with_urls(text)), flush=True)


def print_page(page: str | bytes) -> None:
    """Print text of several lines on stdout, control characters as `\\uXXXX`, which leaves JSON the same JSON."""
    text = page if isinstance(page, str) else page.decode()
    print(sanitize(with_urls(text)), end="" if text.endswith("\n") else "\n", flush=True)


class Printed:
    """Whether something could be printed."""

    lost = False

    def exit_code(self, code: int) -> int:
        """The exit code of a command that ends with `code` otherwise: 1 in place of 0 where its output is lost."""
        return 1 if self.lost and code == 0 else code


@contextmanager
def printing(what: str) -> Iterator[Printed]:
    """A body that prints `what`, which is also in files: where stdout cannot be written an error says so, and the command goes on."""
    printed = Printed()
    try:
        yield printed
    except OSError as error:
        print_error(f"{what} could not be printed: {reason(error)}")
        discard_stdout()
        printed.lost = True


def exit_now(code: int) -> NoReturn:
    """End the process at once, without waiting for abandoned threads, such as an interrupted download."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="speculative-pipeline")
def cli() -> None:
    """Batch reasoning with a draft and a target model that take turns on every step."""


def main() -> None:
    """The entry point of the console script: run the command that `sys.argv` names and exit with its code."""
    try:
        keep_interrupts()
        guard_streams()
        code = run_command(sys.argv[1:])
        ignore_interrupts()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        print_error(str(OutOfMemory()) if is_out_of_memory(error) else sentence_of(error))
        code = 1
    if code in (1, 130):
        exit_now(code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name and return its exit code.

    Errors of this package are one sentence on stderr, with `--debug` a traceback.
    """
    try:
        with opening():
            return cli(list(arguments), standalone_mode=False) or 0
    except SystemExit as ending:
        return int(ending.code or 0)
    except (click.exceptions.Abort, Interrupted, KeyboardInterrupt):
        return 130
    except BaseExceptionGroup as group:  # a task group raises what came as it ended
        if not is_interrupt(group):
            raise
        return 130
    except click.ClickException as error:
        usage = StringIO()
        error.show(usage)
        for line in usage.getvalue().splitlines():
            print_notice(line)
        return error.exit_code
    except PipelineError as error:
        if "--debug" in arguments:
            raise
        for line in str(error).splitlines():
            print_error(line)
        return 1 if isinstance(error, RunError) else 2
    except OSError as error:
        if "--debug" in arguments:
            raise
        gone = isinstance(error, FileNotFoundError) and error.filename is None
        print_error(f"{'the working folder' if gone else error.filename or 'output'}: {reason(error)}")
        return 2 if gone or error.errno in NO_NAMES else 1
    finally:
        notices_end()
        forget_urls()


if __name__ == "__main__":  # `accelerate launch -m pipeline.cli.main train ...`
    main()
