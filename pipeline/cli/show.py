"""`pipeline show RUN [CHAIN]` and `view`: a run's summary, its chains step by step, why some failed, how far it is; all of it as pages.

Of a folder of runs `show` prints a table of them.
"""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
import msgspec
from msgspec import structs
from rich.live import Live
from rich.text import Text

from pipeline.analysis.facts import of_answers
from pipeline.analysis.headline import headline, summary_of, tables
from pipeline.analysis.progress import RecentRates, RunState, duration, run_folders, run_state
from pipeline.analysis.tables import Table, plain, plain_percent, size
from pipeline.cli.console import WIDTH, PlainConsole, print_table
from pipeline.cli.options import RUNS, LocalPath, Located, RunFolder, json_option, one_run, option, runs_in
from pipeline.cli.terminal import output, print_line, print_notice, print_page
from pipeline.errors import InputError, UsageError, boundary, did_you_mean, require
from pipeline.files import one_line, whole_file
from pipeline.show.transcripts import ShownCandidate, ShownStep, Transcript, read_transcripts
from pipeline.store.folder import FILE
from pipeline.store.query import Query

STYLES = dict.fromkeys(("accepted", "unverified"), "green") | dict.fromkeys(("fallback", "first_steps"), "yellow")
STYLES |= {"guidance": "cyan", "interrupted": "magenta"}
"""Colours of steps by their decision; the others, which an engine wrote without a choice, are blue."""
VERDICTS = {"right": "bold green", "wrong": "bold red", "failed": "bold red"}
FOLLOW_S = 2.0
"""Seconds between two looks of `--follow`: rows are in the folder within these."""
EXAMPLES = 5
"""How many chains are named for each cause."""
FAILURES = r"""
SELECT error_type, error_stage AS stage, coalesce(arg_min(error_message, end_unix_ns), '') AS message, count(*) AS count,
       list(chain_id ORDER BY end_unix_ns, input_row, sample_index)[:$examples] AS examples
FROM chains WHERE error_type IS NOT NULL
GROUP BY error_type, error_stage, regexp_replace(coalesce(error_message, ''), '\d+(\.\d+)?', '#', 'g')
ORDER BY count DESC, min(end_unix_ns), min(input_row)
"""
"""Chains that failed for one cause: the same error in the same stage (null: before the first one), with the same message but for its
numbers. `message` is the first chain's, `examples` are the first few `chain_id`s."""


@click.command()
@click.argument("run", type=RunFolder(), default=str(RUNS), metavar="[RUN|DIR]")
@click.argument("problem", required=False, metavar="[CHAIN]")
@option("--sample", type=click.IntRange(min=0), metavar="I", default=0, show_default=True, help="Which sample of the problem, from 0.")
@option("--candidates", is_flag=True, help="Include rejected candidates.")
@option("--failed", is_flag=True, help="Print why chains failed, grouped by error, stage and message.")
@option("--follow", is_flag=True, help="Print how far the run is until it ends; with --json an object every two seconds.")
@json_option
def show(run: Located, problem: str | None, sample: int, candidates: bool, failed: bool, follow: bool, as_json: bool) -> None:
    """Show the summary of RUN, a folder or the name of one in runs/, or how it solved a problem, step by step; CHAIN is the problem_id, or
    the number of its row.

    Of a folder DIR of runs (default: runs) all runs are listed, latest first; with --json one object a line.

    Green: draft step, accepted or unverified. Yellow: written by the target after it rejected all drafts. Cyan: guidance. Blue: no drafts
    involved.
    `pipeline resume RUN --retry-failed` solves failed chains again.
    """
    asked = [name for name, given in (("CHAIN", problem), ("--failed", failed), ("--follow", follow)) if given]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]}: give one of them")
    if problem is None and (candidates or sample):
        raise UsageError(f"--{'candidates' if candidates else 'sample'}: only with CHAIN; name a problem")
    if problem is not None and as_json:
        raise UsageError("--json: not with CHAIN; for its steps as data use `pipeline export --as steps`")
    if not asked and not (run.path / FILE).exists() and (runs := run_folders(run.path, depth=1)):
        _list(runs, as_json)
        return
    one_run(run)
    if follow:
        _follow(run, as_json)
    elif failed:
        _print_failures(failures(run.path), as_json)
    elif problem is None:
        Query(run.path).close()
        print_summary(run, with_about=True, as_json=as_json)
    else:
        with Query(run.path) as db:
            chain = _chain(db, problem, sample)
            [transcript] = read_transcripts(db, [chain])
        console = PlainConsole()
        for line in _lines(transcript, candidates):
            console.print(line)


def print_summary(run: Located, *, with_about: bool = False, as_json: bool = False) -> None:
    """Print the summary of a run as the command was asked to; `with_about`: with a line that says what is solved with what.

    Raises `InputError` where there is no run.
    """
    found, out = summary_of(run.path), output()
    if as_json:
        print_page(msgspec.json.encode(found, order="sorted"))
        return
    if run.url:
        found = structs.replace(found, resumable=False)  # a baseline needs a folder on this machine
    told = headline(found, shlex.quote(str(run)))
    if out.quiet:
        print_line(f"{told.essential}   {run}")
        return
    width = PlainConsole().width if PlainConsole().is_terminal else 1000
    indent = 8 + sum(max((len(getattr(row, part)) for row in told.rows), default=0) for part in ("name", "figure"))
    blocks = [
        [*([told.about] if with_about else []), f"{told.head}   {run}"],
        [part for line in told.lines for part in wrap(f"  {line}", width, subsequent_indent=" " * indent, break_on_hyphens=False)],
        [f"{what:<10}  {command}" for what, command in told.commands],
    ]
    print_page("\n\n".join("\n".join(map(one_line, block)) for block in blocks))
    if out.verbose:
        print_page("".join(f"\n{name:<14} {one_line(text)}" for name, text in tables(found)[0].rows))
        for table in tables(found)[1:]:
            print_table(table, PlainConsole())


def _list(runs: Sequence[Path], as_json: bool) -> None:
    """Print a line for each run, as JSON or in a table."""
    states = []
    for run in runs:
        try:
            states.append(run_state(run, run.name))
        except InputError as error:
            print_notice(str(error))
    if as_json:
        for state in states:
            print_line(msgspec.json.encode(state).decode())
        return
    columns = ("run", "graph", "state", "chains", "accuracy", "problems/s", "size", "models")
    kept = len(columns) if (console := PlainConsole()).width >= WIDTH else -1
    print_table(Table("Runs", columns[:kept], tuple(tuple(_cells(state))[:kept] for state in states)), console)


def _cells(state: RunState) -> Iterator[str]:
    of = "" if state.of is None else f"/{state.of:,}"
    yield from (state.folder, state.graph, state.state, f"{state.chains:,}{of}")
    yield of_answers(state.accuracy, state.answers)
    yield plain(state.problems_per_s)
    yield size(state.bytes)
    yield state.models


def _follow(run: Located, as_json: bool) -> None:
    """Print how far the run is until no process is at work on it."""
    rates = RecentRates("chains")
    changing = sys.stdout.isatty() and not as_json
    with Live(console=PlainConsole(), auto_refresh=False) if changing else nullcontext() as live:
        while True:
            found = run_state(run.path)
            rates.look(time.monotonic(), {"chains": found.chains})
            if as_json:
                print_page(msgspec.json.encode(found))
            elif live is None:
                print_line(_progress_line(found, rates))
            else:
                live.update(Text(one_line(_progress_line(found, rates))), refresh=True)
            if found.state != "running":
                return
            time.sleep(FOLLOW_S)


def _progress_line(found: RunState, rates: RecentRates) -> str:
    """How far the run is, in one line."""
    of = "" if found.of is None else f"/{found.of:,}"
    parts = [f"{found.folder}: {found.state}, {found.chains:,}{of} chains", f"{found.failed:,} failed"]
    if found.accuracy is not None:
        parts.append(of_answers(found.accuracy, found.answers, f"{plain_percent(found.accuracy)} right"))
    if per_s := rates.per_s("chains"):
        parts.append(f"{per_s:.3g} problems/s")
        parts += [] if found.of is None else [f"{duration((found.of - found.chains) / per_s)} left"]
    return " · ".join(parts)


def failures(run: Path) -> list[dict[str, Any]]:
    """What `FAILURES` finds in the run folder, most frequent cause first; raises `InputError` where it cannot be read."""
    with Query(run) as query:
        return list(query.arrow(FAILURES, examples=EXAMPLES).to_pylist())


def _print_failures(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_page(msgspec.json.encode(found))
    elif not found:
        print_line("no chain failed")
    else:
        for failure in found:
            chains = ", ".join(failure["examples"]) + (", ..." if failure["count"] > len(failure["examples"]) else "")
            place = f"in {failure['stage']}" if failure["stage"] else "while reading input"
            print_line(f"{failure['count']} x {failure['error_type']} ({place}): {failure['message']}")
            print_line(f"    {chains}")


def _chain(db: Query, problem: str, sample: int) -> str:
    """The `chain_id` of a sample of a problem, which is named or given by its row; raises `UsageError` where there is no such chain yet."""
    asked = """
    SELECT sample_index, chain_id FROM chains WHERE problem_id = $problem
    OR (input_row = try_cast($problem AS BIGINT) AND NOT EXISTS (FROM chains WHERE problem_id = $problem)) ORDER BY 1"""
    there = {int(index): str(chain) for index, chain in db.stream(asked, problem=problem)}
    if sample in there:
        return there[sample]
    if there:
        raise UsageError(f"{db.folders[0]}: no finished sample {sample} of problem {problem!r}, but {', '.join(map(str, there))}")
    known = [name for (name,) in db.stream("SELECT DISTINCT problem_id FROM chains LIMIT 10_000")]
    raise UsageError(f"{db.folders[0]}: no finished chain of problem {problem!r}; {did_you_mean(problem, known)}")


def _lines(transcript: Transcript, candidates: bool) -> Iterator[Text]:
    yield Text(transcript.chain_id, "bold")
    yield Text(transcript.facts, "dim")
    yield Text(f"\n{transcript.problem or '(the run has not kept the problem)'}\n")
    for step in transcript.steps:
        yield from _step(step, candidates)
    if transcript.answer_text:
        yield Text(transcript.answer_text)
    answer, verdict = (transcript.answer or "none", "bold"), (transcript.verdict, VERDICTS.get(transcript.verdict, ""))
    yield Text.assemble("answer: ", answer, f"   reference: {transcript.reference or 'none'}   ", verdict)
    yield Text(f"ended: {transcript.ended}", "dim")


def _step(step: ShownStep, candidates: bool) -> Iterator[Text]:
    head = f"[{step.index}] {step.decision} · {step.engine} · {step.tokens} token{'' if step.tokens == 1 else 's'} · {step.time_s:.3g} s"
    yield Text(" · ".join(filter(None, (head, *step.gates, step.verdict, "cut at its limit" if step.cut else ""))), "dim")
    yield Text(step.text.rstrip("\n"), STYLES.get(step.decision, "blue"))
    for number, each in enumerate(step.candidates, 1):
        if candidates and not each.chosen:
            yield Text(f"    {_candidate(number, each)}", "dim red")
    yield Text()


def _candidate(number: int, each: ShownCandidate) -> str:
    said = f"same as {each.same_as + 1}" if each.same_as is not None else each.text.rstrip("\n")
    return f"({number}{'' if each.probability is None else f', {each.probability:.0%}'}) {said}"


@click.command()
@click.argument("runs", type=RunFolder(), nargs=-1, metavar="[RUN|DIR]...")
@option("-o", "--output", type=LocalPath(), metavar="FILE", help="Write one HTML file that needs no server.")
@option("--port", type=click.IntRange(0, 65535), default=8642, show_default=True, help="Port on 127.0.0.1; 0: any free one.")
def view(runs: tuple[Located, ...], output: Path | None, port: int) -> None:
    """Show RUN, or the runs in DIR (default: runs), in a browser, also while they go on.

    With -o the page of RUN, of several runs with their comparison, or of a sweep becomes a file. Otherwise pages are served to this machine
    alone until Ctrl-C. Nothing in RUN or DIR changes.
    """
    runs = runs or (Located(RUNS),)
    if output is not None:
        write_page([run.path for run in runs], output)
        print_line(f"page: {output} ({output.stat().st_size / 1e6:.1f} MB); open it in a browser")
        return
    if len(runs) > 1:
        raise UsageError("several runs are compared in a file: add -o FILE, or name one folder")
    require("view", "view", "latex2mathml", "starlette", "uvicorn")
    import_module("pipeline.show.pages").serve_view(
        runs[0].path, port, lambda url: print_line(f"view: {runs[0]} at {url} (Ctrl-C ends it)")
    )


def write_page(folders: Sequence[Path], output: Path) -> None:
    """Write the page of runs, of those in folders of runs, or of a sweep, over any file of that name.

    Raises `InputError` for other folders, `UsageError` where the file cannot be written, and `MissingExtra`.
    """
    require("view", "view", "latex2mathml")
    pages = import_module("pipeline.show.report")
    runs = [run for folder in folders for run in ([folder] if pages.is_sweep(folder) else runs_in(folder))]
    if not any(map(pages.is_sweep, runs)):
        Query(*runs).close()
    with boundary(UsageError, f"--output {output}: cannot be written", foreign=OSError), whole_file(output) as file:
        file.write(pages.report(runs).encode(errors="backslashreplace"))
