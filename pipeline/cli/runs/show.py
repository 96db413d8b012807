"""`pipeline show RUN [CHAIN]`: a run's summary, one of its chains step by step, why chains failed, or how far the run is until it ends.

Of a folder of runs it is a table of them.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import click
import msgspec
from msgspec import Struct
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.analysis.facts import of_answers
from pipeline.analysis.progress import RecentRates, RunProgress, RunState, duration, run_folders, run_progress, run_state
from pipeline.analysis.tables import Table, plain, plain_percent, size
from pipeline.cli.commands import command, json_option, option
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.summary import print_summary
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.errors import InputError, UsageError, did_you_mean
from pipeline.show.transcripts import ShownCandidate, ShownStep, Transcript, read_transcripts, unused_drafts
from pipeline.store.folder import FILE, check_folder
from pipeline.store.query import Query, check_readable
from pipeline.store.run_file import RunFile

STYLES = {
    "accepted": "green",
    "unverified": "green",
    "fallback": "yellow",
    "first_steps": "yellow",
    "guidance": "cyan",
    "interrupted": "magenta",
}
"""Colours of steps by their decision; the others, which an engine wrote without a choice, are blue."""
VERDICTS = {"right": "bold green", "wrong": "bold red", "failed": "bold red"}
COUNTS = ("over", "steps", "calls")
"""Counts of a run of which `--follow` prints rates."""
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


class Failure(Struct, frozen=True, kw_only=True):
    """Chains that failed for one cause: the same error in the same stage, with the same message but for its numbers."""

    error_type: str
    stage: str | None
    """Null where the chain failed before its first stage."""
    message: str
    """The message of the first of them."""
    count: int
    """The number of chains."""
    examples: tuple[str, ...]
    """The first few `chain_id`s."""


@command()
@click.argument("run", type=RunFolder(), default="runs", metavar="[RUN|DIR]")
@click.argument("problem", required=False, metavar="[CHAIN]")
@option("--attempt", type=click.IntRange(min=0), metavar="I", default=0, show_default=True, help="Which sample of the problem, from 0.")
@option("--candidates", is_flag=True, help="Include rejected candidates.")
@option("--failed", is_flag=True, help="Print why chains failed, grouped by error, stage and message.")
@option("--follow", is_flag=True, help="Print how far the run is until it ends; with --json an object every two seconds.")
@json_option
def show(run: Located, problem: str | None, attempt: int, candidates: bool, failed: bool, follow: bool, as_json: bool) -> None:
    """Show the summary of the run in folder RUN, or how it solved a problem, step by step; CHAIN is the problem_id.

    Of a folder DIR of runs (default: runs) all runs are listed, latest first; with --json one object a line.

    Green: draft step, accepted or unverified. Yellow: written by the target after it rejected all drafts. Cyan: guidance. Blue: no drafts
    involved.
    `pipeline resume RUN --retry-failed` solves failed chains again. With --follow the run may be on another machine.
    """
    if as_json and problem is not None:
        raise UsageError("--json: not with CHAIN; for its steps as data use `pipeline export --as steps`")
    folder = run.path
    check_folder(folder)
    if not (folder / FILE).exists() and (runs := run_folders(folder, depth=1)):
        if problem is not None or attempt or candidates or failed or follow:
            raise UsageError(f"{folder}: a folder of runs; name one of them")
        _list(runs, as_json)
        return
    if follow:
        if problem is not None or candidates or failed:
            raise UsageError(f"--follow: about the whole run; leave out {'--failed' if failed else 'CHAIN and --candidates'}")
        _follow(run, as_json)
        return
    check_readable(folder)
    if failed:
        if problem is not None or candidates:
            raise UsageError("--failed: about all chains; leave out " + ("--candidates" if candidates else f"CHAIN {problem!r}"))
        _print_failures(failures(folder), as_json)
        return
    if problem is None:
        if candidates or attempt:
            raise UsageError(f"--{'candidates' if candidates else 'attempt'}: only with CHAIN; name a problem_id")
        print_summary(run, with_about=True, as_json=as_json)
        return
    with Query(folder) as db:
        chain = _chain(db, problem, attempt)
        [transcript] = read_transcripts(db, [chain])
        unused = unused_drafts(db, RunFile.read(folder), chain) if candidates else []
    console = PlainConsole()
    for line in _lines(transcript, candidates, unused):
        console.print(line)


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
    columns = ("run", "graph", "models", "state", "chains", "accuracy", "problems/s", "size")
    print_table(Table("Runs", columns, tuple(tuple(_cells(state)) for state in states)), PlainConsole())


def _cells(state: RunState) -> Iterator[str]:
    of = "" if state.of is None else f" of {state.of:,}"
    yield from (state.folder, state.graph, state.models, state.state, f"{state.chains:,}{of}")
    yield "-" if state.answers == "simulated" else plain_percent(state.accuracy)
    yield plain(state.problems_per_s)
    yield size(state.bytes)


def _follow(run: Located, as_json: bool) -> None:
    """Print how far the run is until no process is at work on it."""
    rates = RecentRates("over")
    live = Live(console=PlainConsole(), auto_refresh=False) if sys.stdout.isatty() and not as_json else None
    with live or nullcontext():
        while True:
            found = run_progress(run.path)
            rates.look(time.monotonic(), {name: float(getattr(found, name)) for name in COUNTS})
            if as_json:
                print_page(msgspec.json.encode(found))
            elif live is None:
                print_line(_progress_line(found, rates))
            else:
                live.update(_panel(found, rates), refresh=True)
            if found.state != "running":
                return
            time.sleep(FOLLOW_S)


def _progress_line(found: RunProgress, rates: RecentRates) -> str:
    """How far the run is, in one line."""
    of = "" if found.chains is None else f"/{found.chains:,}"
    parts = [f"{found.run}: {found.state}, {found.over:,}{of} chains", f"{found.failed:,} failed", f"{found.steps:,} steps"]
    if found.graded:
        parts.append(of_answers(f"{found.correct:,} of {found.graded:,} right", found.answers))
    per_s = {name: rates.per_s(name) for name in COUNTS}
    if per_s["over"] is not None:
        parts.append(f"{per_s['over']:.3g} problems/s, {per_s['steps']:.3g} steps/s, {per_s['calls']:.3g} calls/s")
    if per_s["over"] and found.chains is not None:
        parts.append(f"ETA {duration((found.chains - found.over) / per_s['over'])}")
    return " · ".join(parts)


def _panel(found: RunProgress, rates: RecentRates) -> Group:
    said = Text(_progress_line(found, rates))
    if found.chains is None:
        return Group(said)
    bar = RichTable.grid(expand=True)
    bar.add_row(ProgressBar(total=found.chains, completed=found.over))
    return Group(bar, said)


def failures(run: Path) -> list[Failure]:
    """The failed chains of the run folder, most frequent cause first; raises `InputError` where it cannot be read."""
    with Query(run) as query:
        return query.rows(FAILURES, Failure, examples=EXAMPLES)


def _print_failures(found: list[Failure], as_json: bool) -> None:
    if as_json:
        print_page(msgspec.json.encode(found))
        return
    if not found:
        print_line("no chain failed")
    for failure in found:
        chains = ", ".join(failure.examples) + (", ..." if failure.count > len(failure.examples) else "")
        place = f"in {failure.stage}" if failure.stage else "while reading input"
        print_line(f"{failure.count} x {failure.error_type} ({place}): {failure.message}")
        print_line(f"    {chains}")


def _chain(db: Query, problem: str, attempt: int) -> str:
    """The `chain_id` of an attempt at a problem; raises `UsageError` where the run has no such chain yet."""
    asked = "SELECT chain_id FROM chains WHERE problem_id = $problem AND sample_index = $attempt"
    for (chain,) in db.stream(asked, problem=problem, attempt=attempt):
        return str(chain)
    there = db.stream("SELECT sample_index FROM chains WHERE problem_id = $problem ORDER BY 1", problem=problem)
    if attempts := ", ".join(str(index) for (index,) in there):
        raise UsageError(f"{db.folders[0]}: no finished attempt {attempt} at problem {problem!r}, but {attempts}")
    known = [name for (name,) in db.stream("SELECT DISTINCT problem_id FROM chains LIMIT 10_000")]
    raise UsageError(f"{db.folders[0]}: no finished chain of problem {problem!r}; {did_you_mean(problem, known)}")


def _lines(transcript: Transcript, candidates: bool, unused: Sequence[str]) -> Iterator[Text]:
    yield Text(transcript.chain_id, "bold")
    yield Text(transcript.facts, "dim")
    yield Text(f"\n{transcript.problem or '(the text of the problem was not kept, and its file is gone or has changed)'}\n")
    for step in transcript.steps:
        yield from _step(step, candidates)
    if unused:
        yield Text(f"drafts of which no step came: {len(unused)}", "dim")
        yield from (Text(f"    ({number}) {draft.rstrip()}", "dim red") for number, draft in enumerate(unused, 1))
        yield Text()
    if transcript.answer_text:
        yield Text(transcript.answer_text)
    yield Text.assemble(
        "answer: ", (transcript.answer or "none", "bold"), f"   reference: {transcript.reference or 'none'}   ", _verdict(transcript)
    )
    yield Text(f"ended: {transcript.ended}", "dim")


def _verdict(transcript: Transcript) -> tuple[str, str]:
    return transcript.verdict, VERDICTS.get(transcript.verdict, "")


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
