"""The `pipeline` command: which commands there are, how they print, and the exit code that an error becomes.

Commands only read options, call the package and print. The module of a command is imported when the command is called.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import CDLL
from importlib import import_module
from io import TextIOWrapper
from tempfile import NamedTemporaryFile
from typing import Any

import click
from msgspec import Struct

from pipeline.cli.terminal import CommandOutput, discard_stdout
from pipeline.errors import Interrupted, OutOfMemory, PipelineError, RunError, is_out_of_memory, nearest, reason


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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """An error names the nearest command."""
        if args[0] not in self.entries and not args[0].startswith("-"):
            near = nearest(args[0], self.entries)
            remedy = f"did you mean `{near}`?" if near else f"see {ctx.command_path} --help"
            raise click.UsageError(f"{ctx.command_path}: no command `{args[0]}`; {remedy}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.entries))
        for section, entries in self.sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), entry.what) for name, entry in entries.items()])


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
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "auto_envvar_prefix": "PIPELINE"}


SYNONYMS = {
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


def is_debugging() -> bool:
    """True if errors are to be tracebacks."""
    return bool(os.environ.get("PIPELINE_DEBUG"))


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
    if code in (1, 130):  # abandoned threads, such as an interrupted download, are not waited for
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
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
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        out.error(usage_sentence(error))
        return error.exit_code
    except BrokenPipeError:  # a reader that has gone (`| head`) wants no more
        discard_stdout()
        return 0
    except (PipelineError, OSError) as error:
        if is_debugging():
            raise
        if isinstance(error, PipelineError):
            for line in str(error).splitlines():
                out.error(line)
            return 1 if isinstance(error, RunError) else 2
        gone = isinstance(error, FileNotFoundError) and error.filename is None
        out.error(f"{'the working folder' if gone else error.filename or 'output'}: {reason(error)}")
        return 2 if gone or error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else 1  # both are errors of a name, which the user gave


def usage_sentence(error: click.ClickException) -> str:
    """What is wrong with the arguments of a command, as an error in this package's style."""
    context = getattr(error, "ctx", None)
    see = "" if context is None else f"; see {context.command_path} --help"
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.strip("-")
        known = [] if context is None else [word[2:] for param in context.command.params for word in param.opts if word.startswith("--")]
        meant = next((meant for meant, names in SYNONYMS.items() if name.replace("_", "-") in names.split()), "")
        near = nearest(name, known)
        remedy = f"; use {meant}" if meant[2:].split(" ")[0] in known else f"; did you mean `--{near}`?" if near else see
        return f"no option `{error.option_name}`{remedy}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        param = error.param
        name = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name.strip("[].")
        if isinstance(error, click.MissingParameter):
            choices = f": one of {', '.join(param.type.choices)}" if isinstance(param.type, click.Choice) else ""
            return f"{name} is missing{choices}{see}"
        said = re.sub(r"in the range (\S+)<=x<=(\S+)", r"between \1 and \2", error.message.rstrip("."))
        return f"{name}: {said.replace('a valid integer range', 'a whole number')}"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}{see}"


def sentence_of(error: BaseException) -> str:
    """A message for the user about an unexpected error, whose traceback is kept in a new file."""
    said = str(error).strip().partition("\n")[0]
    what = f"unexpected {type(error).__name__}{': ' * bool(said)}{said}"
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
