"""`pipeline show RUN [PROBLEM]`: one chain of a run in the terminal, step by step."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.text import Text

from pipeline.cli.located import RunFolder
from pipeline.cli.runs.folder import print_flaws
from pipeline.cli.terminal.console import PlainConsole
from pipeline.errors import UsageError, did_you_mean
from pipeline.report.transcripts import Candidate, Step, Transcript, transcripts_of, unused_drafts
from pipeline.trace.read import check_folder, read_batches
from pipeline.trace.run_file import RunFile

STYLES = {"accepted": "green", "fallback": "yellow", "first_steps": "yellow", "guidance": "cyan", "interrupted": "magenta"}
"""Colours of steps by their decision; the others, which an engine wrote without a choice, are blue."""
VERDICTS = {"right": "bold green", "wrong": "bold red", "failed": "bold red"}


@click.command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@click.argument("problem", required=False, metavar="[PROBLEM]")
@click.option("--sample", type=click.IntRange(min=0), default=0, show_default=True, help="Sample of the problem.")
@click.option("--candidates", is_flag=True, help="Include rejected candidates.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def show(run: Path, problem: str | None, sample: int, candidates: bool, debug: bool) -> None:
    """Show how the run in folder RUN solved PROBLEM, a problem_id, step by step; by default its first problem.

    Green: accepted draft step. Yellow: written by the target after it rejected all drafts. Cyan: guidance. Blue: no drafts involved.
    """
    check_folder(run)
    print_flaws([run])
    chain = _chain(run, problem, sample)
    [transcript] = transcripts_of(run, RunFile.read(run), {chain: ()}).transcripts
    console = PlainConsole()
    unused = unused_drafts(run, RunFile.read(run), chain) if candidates else []
    for line in _lines(transcript, candidates, unused):
        console.print(line)


def _chain(run: Path, problem: str | None, sample: int) -> str:
    """The `chain_id` of a sample of a problem; raises `UsageError` where the run has no such chain yet."""
    first: tuple[int, str] | None = None
    known: dict[str, None] = {}
    for batch in read_batches(run, "chains", ["chain_id", "problem_id", "input_row", "sample_index"]):
        for row in batch.to_pylist():
            if row["sample_index"] != sample:
                continue
            if problem is None:
                first = min(first or (row["input_row"], row["chain_id"]), (row["input_row"], row["chain_id"]))
            elif row["problem_id"] == problem:
                return str(row["chain_id"])
            elif len(known) < 10_000:
                known[row["problem_id"]] = None
    if first is not None:
        return first[1]
    if problem is None:
        raise UsageError(f"{run}: no chain of sample {sample} has finished yet")
    raise UsageError(f"{run}: no finished chain of problem {problem!r}, sample {sample}; {did_you_mean(problem, list(known))}")


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


def _step(step: Step, candidates: bool) -> Iterator[Text]:
    head = f"[{step.index}] {step.decision} · {step.engine} · {step.tokens} token{'' if step.tokens == 1 else 's'} · {step.time_s:.3g} s"
    yield Text(" · ".join(filter(None, (head, step.verdict, "cut at its limit" if step.cut else ""))), "dim")
    yield Text(step.text.rstrip("\n"), STYLES.get(step.decision, "blue"))
    for number, each in enumerate(step.candidates, 1):
        if candidates and not each.chosen:
            yield Text(f"    {_candidate(number, each)}", "dim red")
    yield Text()


def _candidate(number: int, each: Candidate) -> str:
    said = f"same as {each.same_as + 1}" if each.same_as is not None else each.text.rstrip("\n")
    return f"({number}{'' if each.probability is None else f', {each.probability:.0%}'}) {said}"
