"""`pipeline compare RUN...`, `query RUN... SQL` and `export RUN...`: what runs hold, as one table, as the answer to a question, as files.

What only one of them needs is imported when it is called.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.analysis.tables import Table, as_csv, as_markdown, printed, read_query
from pipeline.analysis.tables import as_json as as_json_of
from pipeline.cli.console import PlainConsole, print_parts, print_table
from pipeline.cli.options import HeadedCommand, LocalPath, Located, RunFolder, headed, json_option, one_run, option, runs_in
from pipeline.cli.terminal import print_json, print_line, print_page
from pipeline.errors import UsageError, boundary
from pipeline.export.answers_file import form_of, write_query, write_rows
from pipeline.files import sanitize, whole_file
from pipeline.store.query import Query, words_of
from pipeline.store.rows import ROWS

QUERY_SUFFIXES = (".parquet", ".csv", ".json", ".jsonl")
MAX_ROWS = 100
"""Rows that `query` prints."""
BATCH, TRACE, TRAINING = "openai-batch", "perfetto", ("sft", "selection")
KINDS = {"answers": "csv", BATCH: "jsonl", **dict.fromkeys(ROWS, "parquet"), **dict.fromkeys(TRAINING, "jsonl"), TRACE: "json"}
"""What is exported, with the suffix of its file where none is named."""
ONLY_WITH = {"thoughts": ("answers",), "correct": TRAINING, "validation": TRAINING, "completion": ("sft",), "labels": ("selection",)}
"""The options that not every kind of export has, with the kinds that have them."""
FILE_HELP = "Output file: .jsonl, .csv or .parquet; - for JSON lines on stdout.  [default: RUN-KIND.csv, by KIND]"
SHARE = click.FloatRange(0.0, 1.0, max_open=True)
COMPLETIONS, LABELS = click.Choice(["thought", "response"]), click.Choice(["answers", "rewards", "verdicts"])
output_option, training_option = headed("Output"), headed("Training data")


@click.command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN|DIR...")
@option("--baseline", metavar="RUN|GRAPH", help="Baseline of speed-ups.  [default: `target`, else the first run without drafts]")
@option("--table", metavar="NAME|FILE.sql", help="Print the table of a paper (`pipeline list tables`), or one of your own.")
@option("--no-pool", is_flag=True, help="Do not pool runs that differ only in the seed.")
@json_option
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Also write to this file: .md, .csv or .json.")
def compare(runs: tuple[Located, ...], baseline: str | None, table: str | None, no_pool: bool, as_json: bool, output: Path | None) -> None:
    """Compare the accuracy and speed of the runs RUN..., or those in the folder DIR, each with the baseline over the same problems.

    The baseline is the target alone, if there is such a run. Prints one table and a verdict; --table prints the table of a paper.
    """
    if table is not None:
        read_query(table)
    if table is not None and baseline is not None:
        raise UsageError("--table and --baseline cannot be combined: paper tables always compare with the target alone")
    if output is not None and output.suffix not in (".md", ".csv", ".json"):
        raise UsageError(f"--output {output}: its name must end in .md, .csv or .json")
    comparing = import_module("pipeline.analysis.compare")
    read = comparing.read_runs(_folders(runs), pooled=not no_pool)
    if table is not None:
        one: Table = import_module("pipeline.analysis.papers").paper_table(table, read)
        shown, data = [one], one
    else:
        found = comparing.compare(read, baseline)
        one, shown, data = comparing.speeds(found), comparing.brief(found), found.as_dict()
    forms = {".json": partial(as_json_of, data), ".md": partial(as_markdown, shown), ".csv": partial(as_csv, one.columns, one.rows)}
    if output is not None:
        with _writable(output), whole_file(output) as file:
            file.write(sanitize(forms[output.suffix]()).encode())
    if as_json:
        print_page(forms[".json"]())
    elif PlainConsole().is_terminal:
        print_parts(shown)
    else:
        print_page(forms[".md"]())


@click.command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN|DIR...")
@click.argument("sql", metavar="SQL|FILE.sql")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Write all rows to this file: .parquet, .csv, .json or .jsonl.")
@json_option
def query(runs: tuple[Located, ...], sql: str, output: Path | None, as_json: bool) -> None:
    """Print the result of an SQL query over the run folders RUN..., or those in a folder DIR, also while they are running.

    The tables are calls, steps, chains, problems and rewards, with the columns in docs/pages/reference/run-folder.md and `run`, the name of
    the folder. chains also has finished (the chain gave an answer) and counted (whether it counts as right). A table runs has a row for
    each run, with its settings and figures, as `compare --json` names them. The dialect is DuckDB's.
    """
    if sql.endswith(".sql"):
        sql = read_query(sql).sql
    if output is not None and output.suffix not in QUERY_SUFFIXES:
        raise UsageError(f"--output {output}: its name must end in {', '.join(QUERY_SUFFIXES)}")
    with Query(*_folders(runs)) as asked, asked.errors_of_sql():
        if "runs" in words_of(sql):
            read_runs = import_module("pipeline.analysis.compare").read_runs
            import_module("pipeline.analysis.papers").make_runs(asked, read_runs(asked.folders), "")
        found = asked.select(sql)
        if output is not None:
            with _writable(output):
                if output.suffix != ".json":
                    write_query(output, asked, sql)
                else:
                    with whole_file(output) as file:
                        file.writelines(map(str.encode, _array(asked.json_rows(sql))))
            print_line(f"{output}: written")
        elif as_json:
            print_json(_array(asked.json_rows(sql)))
        else:
            rows = found.limit(MAX_ROWS + 1).fetchall()
            shown = tuple(tuple(map(_printed, row)) for row in rows[:MAX_ROWS])
            print_table(Table("", tuple(found.columns), shown), PlainConsole())
            if len(rows) > MAX_ROWS:
                print_line(f"only the first {MAX_ROWS:,} rows; -o FILE writes all of them")


def _folders(runs: Sequence[Located]) -> list[Path]:
    return [folder for run in runs for folder in runs_in(run.path)]


def _writable(output: Path) -> Any:
    return boundary(UsageError, f"--output {output}: cannot be written", foreign=OSError)


def _printed(value: Any) -> str:
    if isinstance(value, Mapping):  # it may be a figure with its interval
        return str(printed(value))
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _array(rows: Iterable[list[str]]) -> Iterator[str]:
    """The pieces of a JSON array of these rows."""
    before = "[\n"
    for some in rows:
        yield before + ",\n".join(some)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


@click.command(cls=HeadedCommand)
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@output_option("-o", "--output", type=LocalPath(), metavar="FILE", help=FILE_HELP)
@output_option("--as", "kind", type=click.Choice(tuple(KINDS)), metavar="KIND", default="answers", help="One of the above.")
@option("--thoughts", is_flag=True, help="answers: include the reasoning before each answer.", heading="Answers")
@training_option("--correct", is_flag=True, help="Only chains whose answer is right.")
@training_option("--validation", type=SHARE, metavar="SHARE", default=0.1, show_default=True, help="Share of the validation split.")
@training_option("--completion", type=COMPLETIONS, default="thought", show_default=True, help="sft: with or without the answer.")
@training_option("--labels", type=LABELS, help="selection: what is right.  [default: answers; of steps rewards, or else verdicts]")
def export(runs: tuple[Located, ...], output: Path | None, kind: str, thoughts: bool, **wanted: Any) -> None:
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
    folders = list(map(one_run, runs))
    output = output or Path(f"{folders[0].resolve().name}-{kind}.{KINDS[kind]}")
    _check(kind, folders, output)
    Query(*folders).close()
    if str(output) == "-":
        _print_rows(folders[0], kind, thoughts)
        return
    with _writable(output):
        for line in _exported(folders, kind, output, thoughts, wanted):
            print_line(line)


def _check(kind: str, runs: Sequence[Path], output: Path) -> None:
    """Raise `UsageError` for options that do not fit what is exported, or each other."""
    source = click.get_current_context().get_parameter_source
    for name, kinds in ONLY_WITH.items():
        if kind not in kinds and source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name}: only with --as {' or '.join(kinds)}, not --as {kind}")
    if len(runs) > 1 and kind not in TRAINING:
        raise UsageError(f"--as {kind}: one RUN at a time; several only with --as {' or '.join(TRAINING)}")
    if str(output) == "-":
        if kind not in ("answers", *ROWS):
            raise UsageError("-o -: only JSON lines of answers or of a table can be printed; name a file")
    elif kind == BATCH and output.suffix in (".csv", ".parquet"):
        raise UsageError(f"{output}: the batch API's files are JSON lines; name it .jsonl")


def _print_rows(run: Path, kind: str, thoughts: bool) -> None:
    """Print the answers, or a table, of a run as JSON lines."""
    if kind == "answers":
        for row in import_module("pipeline.export.answers").Answers(run, thoughts=thoughts).rows():
            print_page(msgspec.json.encode(row, enc_hook=str))
        return
    with Query(run) as db:
        print_json("\n".join([*rows, ""]) for rows in db.json_rows(db.whole(kind)))


def _exported(runs: Sequence[Path], kind: str, output: Path, thoughts: bool, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Write the file, and say in lines what is in it; `wanted` are the options of training data."""
    if kind == BATCH:
        batch = import_module("pipeline.export.openai_batch")
        answered, failed = batch.write_batch_files(runs[0], output)
        yield f"{output}: {answered:,} answered"
        yield f"{batch.errors_file(output)}: {failed:,} {'error' if failed == 1 else 'errors'}"
    elif kind == TRACE:
        calls = import_module("pipeline.export.perfetto").export(runs[0], output)
        yield f"{output}: {calls:,} calls; open it in https://ui.perfetto.dev"
    elif kind in TRAINING:
        training = import_module("pipeline.training.write")
        written = training.write_training_data(output, runs, training.Wanted(format=kind, **wanted))
        rows = ", ".join(f"{count:,} {split}" for split, count in sorted(written.rows.items()))
        yield f"{output}: {sum(written.rows.values()):,} rows ({rows}) of {len(written.problems):,} problems"
        yield from (f"left out: {count:,} {why}" for why, count in written.left_out.items())
    elif kind == "answers":
        answers = import_module("pipeline.export.answers").Answers(runs[0], thoughts=thoughts)
        columns = answers.columns() if form_of(output) != ".jsonl" else {}
        yield f"{output}: {write_rows(output, columns, answers.rows()):,} problems"
    else:
        with Query(runs[0]) as db:
            yield f"{output}: {write_query(output, db, db.whole(kind)):,} rows"
