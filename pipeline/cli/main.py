"""The `pipeline` command: which commands there are, how they print, and the exit code that an error becomes.

Commands only read options, call the package and print. The module of a command is imported when the command is called.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from tempfile import NamedTemporaryFile
from typing import NoReturn

import click

from pipeline.cli.commands import SETTINGS, CommandEntry, Commands, usage_sentence
from pipeline.cli.terminal import CommandOutput, discard_stdout
from pipeline.errors import Interrupted, OutOfMemory, PipelineError, RunError, is_out_of_memory, reason

GRAPH = {
    "check": CommandEntry("check a graph and its engines, and print the plan", "graph:check"),
    "show": CommandEntry("draw a graph", "graph:show"),
    "prompt": CommandEntry("print the prompt of a stage as its engine gets it", "graph:prompt"),
}
TRAIN = {
    "draft": CommandEntry("train a draft to think like its target", "train:draft"),
    "select": CommandEntry("train a target to choose among drafts, or to score a step", "train:select"),
}
COMMANDS = {
    "Solve": {
        "run": CommandEntry("solve a data set", "run:run"),
        "resume": CommandEntry("resume a stopped run", "run:resume"),
        "serve": CommandEntry("serve a graph at an endpoint of the OpenAI API", "serve:serve"),
        "merge": CommandEntry("merge the runs of all shards of an input", "run:merge"),
    },
    "Author": {
        "list": CommandEntry("list what is bundled: graphs, engines, presets, prompts, ...", "bundled:list_"),
        "graph": CommandEntry("check or draw a graph, show its prompts", inside=GRAPH),
        "doctor": CommandEntry("report what this machine can run", "graph:doctor"),
    },
    "Look": {
        "show": CommandEntry("list runs, show one, or one of its chains step by step", "show:show"),
        "view": CommandEntry("show runs as pages in a browser, live", "show:view"),
        "compare": CommandEntry("compare the accuracy and speed of runs", "ask:compare"),
        "query": CommandEntry("ask runs in SQL", "ask:query"),
        "export": CommandEntry("export answers, tables, training data or traces", "ask:export"),
    },
    "Study": {
        "sweep": CommandEntry("compare throughput by batch size; run a study file", "sweep:sweep"),
        "calibrate": CommandEntry("fit the simulator to runs", "grade:calibrate"),
        "grade": CommandEntry("grade the answers of a run again", "grade:grade"),
        "score": CommandEntry("score the steps of a run with a reward model", "grade:score"),
    },
    "Data and training": {
        "prepare": CommandEntry("prepare a published data set", "bundled:prepare"),
        "train": CommandEntry("train adapters for the draft and the target", inside=TRAIN),
    },
}
"""The commands, by what they are for."""

EPILOG = """\b
Help on a command:  pipeline COMMAND --help
Options can be set in the environment: PIPELINE_RUN_BATCH_SIZE=32 is the same
as `pipeline run --batch-size 32`.
Documentation: docs/pages/index.md in the source; `make docs` builds the site.
"""
"""The text below the commands in the help."""
NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the system that only the name of a file has, which the user gave."""


def is_debugging() -> bool:
    """True if errors are to be tracebacks."""
    return bool(os.environ.get("PIPELINE_DEBUG"))


def exit_now(code: int) -> NoReturn:
    """End the process at once, without waiting for abandoned threads, such as an interrupted download."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


@click.group(cls=Commands, sections=COMMANDS, context_settings=SETTINGS, epilog=EPILOG)
@click.version_option(package_name="speculative-pipeline")
def cli() -> None:
    """Answer many reasoning problems with a small draft model and a large target model that take turns on every step.

    \b
    Example:
      pipeline run speccot arith --limit 20 --output runs/first
      pipeline show runs/first
    """


def main() -> None:
    """The entry point of the console script: run the command that `sys.argv` names and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # it is closed: nobody reads it
                stream.reconfigure(errors="backslashreplace")
    try:
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if is_debugging():
            raise
        CommandOutput().error(str(OutOfMemory()) if is_out_of_memory(error) else sentence_of(error))
        code = 1
    if code in (1, 130):
        exit_now(code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name and return its exit code.

    Errors of this package are one message on stderr, with `PIPELINE_DEBUG=1` a traceback.
    """
    out = CommandOutput()
    try:
        return cli(list(arguments), prog_name="pipeline", standalone_mode=False, obj=out) or 0
    except SystemExit as ending:
        return int(ending.code or 0)
    except (click.exceptions.Abort, Interrupted, KeyboardInterrupt):
        return 130
    except BaseExceptionGroup as group:
        if group.split((Interrupted, KeyboardInterrupt))[1]:
            raise
        return 130
    except click.ClickException as error:
        out.error(usage_sentence(error))
        return error.exit_code
    except BrokenPipeError:  # a reader that has gone (`| head`) wants no more
        discard_stdout()
        return 0
    except PipelineError as error:
        if is_debugging():
            raise
        for line in str(error).splitlines():
            out.error(line)
        return 1 if isinstance(error, RunError) else 2
    except OSError as error:
        if is_debugging():
            raise
        gone = isinstance(error, FileNotFoundError) and error.filename is None
        out.error(f"{'the working folder' if gone else error.filename or 'output'}: {reason(error)}")
        return 2 if gone or error.errno in NO_NAMES else 1


def sentence_of(error: BaseException) -> str:
    """A message for the user about an unexpected error, whose traceback is kept in a new file."""
    lines = [*str(error).strip().splitlines(), ""]
    what = f"unexpected {type(error).__name__}{': ' if lines[0] else ''}{lines[0]}"
    kept = "the traceback that PIPELINE_DEBUG=1 shows"
    with (
        suppress(OSError),
        NamedTemporaryFile("w", prefix="pipeline-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.write("".join(traceback.format_exception(error)))
        kept = f"{file.name} (or {kept})"
    return f"{what}; this is a bug in pipeline: please report it with {kept}"


if __name__ == "__main__":  # `accelerate launch -m pipeline.cli.main train ...`
    main()
