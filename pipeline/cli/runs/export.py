"""`pipeline export RUN... -o FILE`: answers of a run, a table of its trace, training data, or its calls for a trace viewer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.cli.commands import Option, check_output, command, headed, option, overwrite_option
from pipeline.cli.located import LocalPath, Located, RunFolder
from pipeline.cli.terminal import print_json, print_line, print_page
from pipeline.errors import RunFolderError, UsageError, boundary
from pipeline.export.answers import Answers
from pipeline.export.answers_file import form_of, write_query, write_rows
from pipeline.export.openai_batch import errors_file, write_batch_files
from pipeline.export.perfetto import export as write_trace
from pipeline.store.folder import check_run
from pipeline.store.query import Query, check_readable
from pipeline.store.rows import ROWS
from pipeline.training.selections import LABELS
from pipeline.training.write import FORMATS, Wanted, write_training_data

BATCH, TRACE = "openai-batch", "perfetto"
KINDS = ("answers", BATCH, *ROWS, *FORMATS, TRACE)
ONLY_WITH: dict[str, tuple[str, ...]] = {
    "thoughts": ("answers",),
    **dict.fromkeys(("correct", "validation"), FORMATS),
    "completion": ("sft",),
    "labels": ("selection",),
}
"""The options that not every kind of export has, with the kinds that have them."""


output_option, training_option = headed("Output"), headed("Training data")


@command(headed=True)
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@output_option(
    "-o",
    "--output",
    required=True,
    type=LocalPath(allow_dash=True),
    metavar="FILE",
    help="Output file: .jsonl, .csv or .parquet; - for JSON lines on stdout.",
)
@output_option(
    "--as", "kind", type=click.Choice(KINDS), metavar="KIND", default="answers", show_default=True, help="What to export, as above."
)
@overwrite_option
@option("--thoughts", is_flag=True, help="answers: include the reasoning before each answer.", heading="Answers")
@training_option("--correct", is_flag=True, help="Only chains whose answer is right.")
@training_option(
    "--validation",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    metavar="SHARE",
    default=0.1,
    show_default=True,
    help="Share of the problems in the validation split.",
)
@training_option(
    "--completion",
    type=click.Choice(["thought", "response"]),
    metavar="NAME",
    default="thought",
    show_default=True,
    help="sft: thought (the reasoning), or response (the reasoning and the answer).",
)
@training_option(
    "--labels",
    type=click.Choice(LABELS),
    metavar="NAME",
    help="selection: answers, rewards or verdicts decide what is right.  "
    "[default: answers for thoughts; rewards, or else verdicts, for steps]",
)
def export(runs: tuple[Located, ...], output: Path, kind: str, overwrite: bool, **options: Any) -> None:
    """Export runs to a file.

    answers: one row for each problem, in the order of the input: all input columns, the answer and whether it is correct; with several
    samples also their votes, and the answer is the majority's. Input columns with conflicting names get the prefix input_.

    openai-batch: the output file of the OpenAI batch API, and beside it FILE.errors.jsonl with the requests that failed or were refused.

    calls, steps, chains, rewards, problems: a table of the trace, also while the run is running.

    sft, selection: training data of one RUN or several. sft has what the chains wrote, as prompt and completion; selection every
    verification that is answered with one token, with all right options. A row says which run it comes from, and its split, which depends
    on the problem's text alone.

    perfetto: chains and calls for https://ui.perfetto.dev, with engines as processes and their slots as threads.
    """
    folders = [run.path for run in runs]
    for folder in folders:
        check_run(folder)
    _check(kind, folders, output)
    check_readable(*folders)
    if kind == BATCH:
        _export_batch(folders[0], output, overwrite)
        return
    if kind == TRACE:
        check_output(output, overwrite)
        with boundary(RunFolderError, str(output), foreign=OSError):
            calls = write_trace(folders[0], output)
        print_line(f"{output}: {calls:,} calls; open it in https://ui.perfetto.dev")
        return
    if str(output) == "-":
        _print_rows(folders[0], kind, options["thoughts"])
        return
    form = form_of(output)
    check_output(output, overwrite)
    if kind in FORMATS:
        _export_training_data(folders, output, kind, options)
        return
    with boundary(RunFolderError, str(output), foreign=OSError):
        if kind == "answers":
            answers = Answers(folders[0], thoughts=options["thoughts"])
            count, of = write_rows(output, answers.columns() if form != ".jsonl" else {}, answers.rows()), "problems"
        else:
            with Query(folders[0]) as db:
                count, of = write_query(output, db, db.whole(kind)), "rows"
    print_line(f"{output}: {count:,} {of}")


def _check(kind: str, runs: Sequence[Path], output: Path) -> None:
    """Raise `UsageError` for options that do not fit what is exported, or each other."""
    context = click.get_current_context()
    for param in context.command.params:
        kinds = ONLY_WITH.get(str(param.name), KINDS)
        if kind not in kinds and context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE:
            assert isinstance(param, Option)
            raise UsageError(f"{param.long_name}: only with --as {_any_of(kinds)}, not --as {kind}")
    if len(runs) > 1 and kind not in FORMATS:
        raise UsageError(f"--as {kind}: one RUN at a time; several only with --as {_any_of(FORMATS)}")
    if str(output) == "-" and kind not in ("answers", *ROWS):
        raise UsageError("-o -: only JSON lines of answers or of a table can be printed; name a file")
    if kind == BATCH and output.name.lower().removesuffix(".gz").endswith((".csv", ".parquet")):
        raise UsageError(f"{output}: the batch API's files are JSON lines; name it .jsonl or .jsonl.gz")


def _any_of(kinds: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))


def _print_rows(run: Path, kind: str, thoughts: bool) -> None:
    """Print the answers, or a table, of a run as JSON lines."""
    if kind == "answers":
        for row in Answers(run, thoughts=thoughts).rows():
            print_page(msgspec.json.encode(row, enc_hook=str))
        return
    with Query(run) as db:
        print_json("\n".join([*rows, ""]) for rows in db.json_rows(db.whole(kind)))


def _export_batch(run: Path, output: Path, overwrite: bool) -> None:
    errors = errors_file(output)
    for file in (output, errors):
        check_output(file, overwrite)
    with boundary(RunFolderError, str(output), foreign=OSError):
        answered, failed = write_batch_files(run, output)
    print_line(f"{output}: {answered:,} answered")
    print_line(f"{errors}: {failed:,} {'error' if failed == 1 else 'errors'}")


def _export_training_data(runs: Sequence[Path], output: Path, kind: str, options: dict[str, Any]) -> None:
    wanted = Wanted(format=kind, **{name: options[name] for name in Wanted.__struct_fields__ if name != "format"})  # type: ignore[arg-type]
    written = write_training_data(output, runs, wanted)
    rows = ", ".join(f"{count:,} {split}" for split, count in sorted(written.rows.items()))
    print_line(f"{output}: {sum(written.rows.values()):,} rows ({rows}) of {len(written.problems):,} problems")
    for why, count in written.left_out.items():
        print_line(f"left out: {count:,} {why}")
