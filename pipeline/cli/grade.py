"""`pipeline grade RUN`: new verdicts for the chains of a run folder, or with `--prm` rewards for its steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape
from rich.progress import Progress

from pipeline.cli.located import ProblemFile, RunFolder
from pipeline.cli.main import print_line, print_page
from pipeline.cli.runs.folder import print_flaws
from pipeline.cli.terminal.console import PlainConsole
from pipeline.errors import UsageError
from pipeline.grading.grader import LIMIT_S
from pipeline.rewards.score import OnProgress, score_run
from pipeline.rewards.tally import ScoringResult
from pipeline.session.explain import Explanation, explanations
from pipeline.session.regrade import Change, Regrade, regrade
from pipeline.text import one_line

SHOWN = 10
"""Changed verdicts that are printed without `--json`."""
OF_ANSWERS, OF_STEPS = ("dry_run", "workers", "limit_s"), ("input", "settings")
"""The options that are for use without `--prm` only, and those for use with it only."""
_MEANS = {"all": "drafted steps", "accepted": "of these, one selected", "fallback": "of these, none: fallback"}
_WORDS = {True: "right", False: "wrong", None: "no verdict"}


@click.command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@click.argument("row", required=False, metavar="[ROW]")
@click.option("--explain", is_flag=True, help="Say how the verdict on ROW comes about, write nothing. ROW: a problem_id or a chain_id.")
@click.option("--dry-run", is_flag=True, help="Report what would change, write nothing.")
@click.option("--workers", type=click.IntRange(1, 256), help="Number of grading processes.  [default: one per core, at most 8]")
@click.option("--limit-s", type=click.FloatRange(0.1, 600), default=LIMIT_S, show_default=True, help="Time limit per comparison (s).")
@click.option(
    "--prm", type=click.Path(path_type=Path), help="Score all steps with the reward model of this file, instead of grading answers."
)
@click.option("--input", type=ProblemFile(), help="With --prm: where the input file is now, if it has moved.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="With --prm: engines.reward.NAME=VALUE.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def grade(
    ctx: click.Context, /, run: Path, row: str | None, explain: bool, prm: Path | None, as_json: bool, debug: bool, **options: Any
) -> None:
    """Grade the answers in the run folder RUN again, and store the verdicts there.

    With --explain, say of one row what was taken as its answer, from where, and which rule compared it with the reference.

    With --prm FILE (graphs/rewards/*.yaml) a process reward model scores every drafted and committed step, in the table
    rewards/*.parquet of RUN.

    Exit codes: 0 graded, whatever changed; 1 the folder cannot be written, the grader cannot start, or the reward model is lost; 2 it is
    not a run folder, cannot be read, or an option or FILE is wrong; 130 interrupted, an earlier table of rewards is kept.
    """
    _check(ctx, prm, row, explain)
    print_flaws([run])
    if row is not None:
        explained = explanations(run, row, options["limit_s"])
        _print(explained, [line for each in explained for line in _explained(each)], as_json)
    elif prm is not None:
        with watched(run) as watch:
            scored = score_run(run, prm, input_file=options["input"], settings=options["settings"], watch=watch)
        _print(scored, reward_lines(scored, run), as_json)
    else:
        found = regrade(run, **{name: options[name] for name in OF_ANSWERS})
        _print(found, _lines(found), as_json)


def _check(ctx: click.Context, prm: Path | None, row: str | None, explain: bool) -> None:
    """Raise `UsageError` for options that would be ignored."""
    if explain and row is None:
        raise UsageError("--explain says how one verdict comes about, and needs to know of which: pipeline grade --explain RUN ROW")
    if row is not None and not explain:
        raise UsageError(f"`pipeline grade RUN` grades all rows; add --explain to see how the verdict on {row!r} comes about")
    if explain and prm is not None:
        raise UsageError("--explain is about the grades of answers, --prm FILE about rewards of steps; leave one of them out")
    source = click.core.ParameterSource.COMMANDLINE
    with_what: tuple[tuple[str, ...], str] = (OF_ANSWERS, "with --prm; leave one of them out")
    if explain:
        with_what = ((*OF_STEPS, "dry_run", "workers"), "with --explain, which writes nothing; leave it out")
    elif prm is None:
        with_what = (OF_STEPS, "without --prm; add it")
    names, what = with_what
    for name in names:
        if ctx.get_parameter_source(name) is source:
            raise UsageError(f"--{'set' if name == 'settings' else name.replace('_', '-')} has no effect {what}")


def _print(result: msgspec.Struct | list[Explanation], lines: list[str], as_json: bool) -> None:
    if as_json:
        print_page(msgspec.json.encode(result, order="sorted"))
    else:
        for line in lines:
            print_line(line)


def _lines(found: Regrade) -> list[str]:
    changed = f"{found.changed:,} verdicts {'would change' if found.dry_run else 'changed'}"
    lines = [f"{found.run}: {changed}, {found.became_right:,} to right and {found.became_wrong:,} to wrong"]
    lines += [_line(change) for change in found.changes[:SHOWN]]
    lines += [f"  and {found.changed - SHOWN:,} more, all of them with --json"] if found.changed > SHOWN else []
    lines += [f"not compared to the end: {count:,}, {why}" for why, count in found.errors.items()]
    share = f" ({found.correct / found.graded:.1%})" if found.graded else ""
    return [*lines, f"{found.correct:,} of {found.graded:,} graded are right{share}, of {found.chains:,} chains"]


def _line(change: Change) -> str:
    answer, reference = (_short(text) for text in (change.answer or "no answer", change.reference_answer))
    return f"  {change.chain_id}: {_WORDS[change.before]} -> {_WORDS[change.after]}: {answer}  for  {reference}"


def _explained(each: Explanation) -> Iterator[str]:
    """The lines about one verdict."""
    yield f"{each.chain_id}: {_WORDS[each.verdict]}" + (
        f", recorded as {_WORDS[each.recorded]}" if each.recorded is not each.verdict else ""
    )
    facts = [
        ("answer's text", each.answer_text and _short(each.answer_text)),
        ("answer", each.answer and f"{_short(each.answer)}  ({each.answer_is})"),
        ("reference", each.reference),
        ("kind", each.kind),
        ("answer, compared as", each.normal_answer),
        ("reference, compared as", each.normal_reference),
        ("decided by", each.rule),
    ]
    yield from (f"  {name:<24}{_short(value) if name != 'answer' else value}" for name, value in facts if value is not None)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


@contextmanager
def watched(run: Path) -> Iterator[OnProgress]:
    """A progress bar on stderr, if that is a terminal; yields what updates it."""
    console = PlainConsole(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(escape(f"{one_line(run.name)}: steps"), total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def reward_lines(scored: ScoringResult, run: Path) -> list[str]:
    """The lines to print: the mean rewards, and how many texts have none."""
    lines = [
        f"{scored.run}: {scored.steps:,} steps and {scored.candidates:,} candidates scored by {scored.model}",
        f"{scored.requests:,} requests in {scored.wall_s:,.1f} s",
    ]
    if scored.quality:
        lines.append(f"{'mean reward':<28}{'steps':>9}{'drafted':>10}{'committed':>11}")
    for decision, title in _MEANS.items():
        if (quality := scored.quality.get(decision)) is not None:
            means = ("-" if value is None else f"{value:.4f}" for value in (quality.drafted, quality.committed))
            lines.append("  {:<26}{:>9,}{:>10}{:>11}".format(title, quality.steps, *means))
    if not scored.quality:
        lines.append("no step of this run was drafted")
    if scored.errors:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in scored.errors.items())
        lines.append(f"texts without a reward: {kinds}; the first: {scored.first_error}")
    return [*lines, f"rewards: {run / 'rewards'}/*.parquet"]
