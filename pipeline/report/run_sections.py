"""One run as sections of a page: the run folder enters, read in a few passes; tables, figures and stories leave."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from pipeline.analysis import summary_tables
from pipeline.analysis.card import read_run_card
from pipeline.analysis.quality.step_counts import StepCounts, count_steps
from pipeline.analysis.quality.verdict_values import GOOD, Scores
from pipeline.analysis.resources import answers
from pipeline.analysis.study import Analysis, analyse
from pipeline.analysis.summary import summarize
from pipeline.report.chain_list import ChainList, read_chain_list, worth_reading
from pipeline.report.figures import gantt as figures_gantt
from pipeline.report.figures import steps as figures_steps
from pipeline.report.figures import time as figures_time
from pipeline.report.figures import tokens as figures_tokens
from pipeline.report.gantt import SHORTEST, Clock, middle, read_gantt, sample
from pipeline.report.page import Figure, Section
from pipeline.report.setup import Setup, decisions, engine_setup, notices, read_setup
from pipeline.report.stories import read_stories

MOST_ROWS = 400
"""Chains of the second plot, where not all are in the first."""


class ReportOptions(Struct, frozen=True):
    """How much of a run is shown."""

    chains: int = 30
    """Read in full."""
    bins: int = 400
    """Of time."""


def run_sections(run: Path, asked: ReportOptions) -> list[Section]:
    """The sections of a run folder; raises `InputError` when it is none or its trace cannot be read."""
    setup, chains = read_setup(run), read_chain_list(run)
    overview = _overview(run, setup)
    analysis = analyse(run, asked.bins)
    sections = [overview]
    if any(each.total_busy_s for each in analysis.occupancy.engines.values()):
        sections += [_engines(analysis), _chains(run, setup, chains), _time(analysis, setup), _tokens(analysis)]
    sections += _steps(count_steps(run, chains.grades))
    return [*sections, *_reading(run, setup, chains, asked.chains)]


def _overview(run: Path, setup: Setup) -> Section:
    found = summarize(run)
    facts = summary_tables.facts(found, simulated=setup.virtual_time, answers=answers(setup.engines, setup.engine_facts))
    tables = (facts, summary_tables.engines(found), summary_tables.stages(found))
    return Section(
        title="What came out",
        notices=notices(setup),
        text=[] if setup.virtual_time else [setup.clock],
        tables=[*tables, decisions(setup), engine_setup(setup)],
    )


def _engines(analysis: Analysis) -> Section:
    occupancy = analysis.occupancy
    return Section(
        title="Engines over time",
        text=[
            f"Time is divided into {len(occupancy.live)} slices of {occupancy.edges_s[1]:.3g} s; "
            "what is drawn of a slice is its mean. Drag to zoom, double-click to go back."
        ],
        tables=[figures_time.causes_table(occupancy)],
        figures=[
            Figure("Requests at each engine and in its lane, and live chains", figures_time.requests(occupancy)),
            Figure(
                "Busy, or idle for what reason",
                figures_time.causes(occupancy),
                "An engine is busy while at least one request is at it. A device that serves several engines is busy while one of them is.",
            ),
        ],
    )


def _chains(run: Path, setup: Setup, chains: ChainList) -> Section:
    card = read_run_card(run)
    clock = Clock(card.started_unix_ns or (int(chains.start.min()) if len(chains.start) else 0), card.pauses)
    drawn, count = sample(chains), len(chains.names)
    if len(drawn) == count:
        shown = {f"All {count:,} chains that ended, one row each": drawn}
    else:
        some = middle(chains, MOST_ROWS)
        shown = {
            f"{len(drawn):,} of the {count:,} chains that ended, evenly spaced by their start, a row each; the others are left out": drawn,
            f"{len(some):,} chains that began one after the other in the middle of the run, one row each": some,
        }
    note = (
        f"Waiting of less than {SHORTEST:.1%} of a usual chain's time is not drawn. Drag over a few rows to see them; their names appear."
    )
    plots = {title: figures_gantt.chains(read_gantt(run, chains, places, clock), setup.stages) for title, places in shown.items()}
    return Section(title="Chains over time", figures=[Figure(title, plot, note) for title, plot in plots.items()])


def _time(analysis: Analysis, setup: Setup) -> Section:
    latencies = analysis.latencies
    figures = []
    if analysis.critical_path.total_s:
        plot = figures_tokens.paths(analysis.critical_path, setup.stages)
        note = (
            f"The calls that determined when a chain ended, one after the other; mean of {analysis.critical_path.chains:,} finished chains."
        )
        figures.append(Figure("Where the time of a chain goes", plot, note))
    if latencies:
        figures.append(Figure("How long calls take", figures_tokens.stage_times(latencies, setup.stages)))
    return Section(title="Where the time goes", figures=figures, tables=[figures_tokens.latency_table(latencies, setup.stages)])


def _tokens(analysis: Analysis) -> Section:
    plot = Figure("What became of the tokens that each engine sampled", figures_tokens.tokens(analysis.ledger))
    return Section(title="Tokens and waste", figures=[plot], tables=[figures_tokens.tokens_table(analysis.ledger)])


def _steps(counts: StepCounts) -> Iterator[Section]:
    if not counts.lengths:
        return
    figures = [Figure("How long steps and candidates are", figures_steps.lengths(counts.lengths))]
    if counts.verified.any():
        plot = figures_steps.acceptance(counts.verified, counts.accepted)
        figures.append(Figure("Acceptance by step number", plot, "The band is Wilson's 95 % interval, of each step number by itself."))
    figures += [
        Figure(f"Acceptance by the verifier's value ({kind})", figures_steps.by_score(each)) for kind, each in counts.scores.items()
    ]
    yield Section(title="Steps", figures=figures)
    judged = {kind: each for kind, each in counts.scores.items() if any(share.count for share in (*each.right, *each.good))}
    if judged:
        yield _calibration(judged)


def _calibration(judged: Mapping[str, Scores]) -> Section:
    text = (
        "Whether a step itself was right is not in a trace. What is: whether the chain that it is part of ended right, and, after "
        f"`pipeline grade RUN --prm FILE`, whether a reward model gives it {GOOD:g} or more. Both are asked of accepted steps, by the "
        "value that the verifier gave. Intervals are of 95 %, with problems as clusters, as steps of one chain share its end."
    )
    missing = [] if any(each.good for each in judged.values()) else ["This run has no rewards: the second question is not answered."]
    figures = [Figure(f"How often what was accepted is right ({kind})", figures_steps.calibration(each)) for kind, each in judged.items()]
    return Section(title="How far the verifier can be trusted", text=[text, *missing], figures=figures)


def _reading(run: Path, setup: Setup, chains: ChainList, most: int) -> Iterator[Section]:
    found = read_stories(run, setup, chains, worth_reading(chains, most))
    if not found.stories:
        return
    failed, wrong = int(chains.failed.sum()), int((chains.correct == 0).sum())
    text = (
        f"{len(found.stories)} of {len(chains.names):,} chains, of which {failed:,} failed and {wrong:,} are wrong: failed and wrong ones "
        "evenly spread over the run, and the slowest. `--chains N` shows more."
    )
    left_out = [f"{found.left_out} more would have made this page too large."] if found.left_out else []
    yield Section(title="Chains to read", text=[text, *left_out], stories=found.stories)
