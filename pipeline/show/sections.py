"""One run as sections of a page: a run folder enters, read in a few passes; sections of tables, figures and transcripts leave."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.analysis import summary_tables
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.headline.baseline import summary_of
from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.headline.lines import headline
from pipeline.analysis.quality.step_counts import StepCounts, count_steps
from pipeline.analysis.resources import EngineFacts, engine_facts, replica_count
from pipeline.analysis.simulated import of_engines
from pipeline.analysis.study import Analysis, analyse_work
from pipeline.analysis.time.work import read_work
from pipeline.show.figures import engines as of_time
from pipeline.show.figures import steps as of_steps
from pipeline.show.figures import tokens as of_tokens
from pipeline.show.gantt import CONSECUTIVE, COUNTS, SHORTEST, ChainCounts, Gantt, draw_chains, read_charts, worth_reading
from pipeline.show.page import Figure, Section
from pipeline.show.transcripts import Transcripts, read_transcripts
from pipeline.store.query import Query
from pipeline.store.run_file import Host, RunFile

SIMULATED = "Simulated: every time on this page is from a simulated clock, and every text was made up by a simulated engine."
MEASURED = "Measured: times are those of real engines on the machine below."
REPLAYED = "Replayed on a simulated clock: texts of replayed engines are those of a recorded run, times are simulated."
MEANS = (
    "Requests and chains are totals over all {count} replicas; busy and idle time and the overlap are means over the replicas, each "
    "with its own engines."
)
"""Said of figures of engines where there are several replicas."""


CHAINS = 30
"""Chains of a run that are shown in full."""
BINS = 400
"""Bins that time is divided into."""


def run_sections(folder: Path) -> list[Section]:
    """The sections of a run folder; raises `InputError` when it is none or its trace cannot be read."""
    run = RunFile.read(folder)
    stages = [node.name for node in run.plan.stages()]
    with Query(folder) as db:
        work = read_work(db)
        analysis, summary = analyse_work(work, BINS), summary_of(folder, work)
        sections = [_overview(summary, run)]
        counts = db.row(COUNTS, ChainCounts)
        if any(each.total_busy_s for each in analysis.occupancy.engines.values()):
            sections += [_engines(analysis), _chains(read_charts(db), counts, stages), _time(analysis, stages), _tokens(analysis)]
        return [*sections, *_steps(count_steps(db)), *_reading(read_transcripts(db, run, worth_reading(db, CHAINS)), counts)]


def _overview(found: Summary, run: RunFile) -> Section:
    told = headline(found)
    head = Table(told.head, ("", "", ""), tuple((row.name, row.figure, row.text) for row in told.rows))
    tables = (head, summary_tables.facts(found), summary_tables.engines(found), summary_tables.stages(found))
    return Section(
        title="Summary",
        notices=notices(run, found.status or run.status),
        text=[told.about] if run.virtual_time else [told.about, clock(run)],
        tables=[*tables, decisions(run), engine_setup(run)],
    )


def _engines(analysis: Analysis) -> Section:
    occupancy = analysis.occupancy
    return Section(
        title="Engines over time",
        text=[
            f"Time is divided into {len(occupancy.live)} slices of {occupancy.edges_s[1]:.3g} s; "
            "each shows its mean. Drag to zoom, double-click to zoom out.",
            *([MEANS.format(count=occupancy.replicas)] if occupancy.replicas > 1 else []),
        ],
        tables=[of_time.causes_table(occupancy)],
        figures=[
            Figure("Requests running and queued per engine, and chains in flight", of_time.requests(occupancy)),
            Figure(
                "Utilization and idle time",
                of_time.causes(occupancy),
                "An engine is busy while at least one request is at it. A device that serves several engines is busy while one of them is.",
            ),
        ],
    )


def _chains(charts: Sequence[Gantt], counts: ChainCounts, stages: Sequence[str]) -> Section:
    shown = len(charts[0].names)
    titles = [f"All {shown:,} chains that ended, one row each"]
    if len(charts) > 1:
        sampled = f"{shown:,} of the {counts.ended:,} chains that ended, evenly spaced by start, one row each; the others are left out"
        titles = [sampled, f"{CONSECUTIVE:,} consecutive chains from the middle of the run, one row each"]
    note = (
        f"Waiting times below {SHORTEST:.1%} of a typical chain's time are not drawn. Drag over a few rows to zoom in and see their names."
    )
    figures = [Figure(title, draw_chains(chart, stages), note) for title, chart in zip(titles, charts, strict=True)]
    return Section(title="Chains over time", figures=figures)


def _time(analysis: Analysis, stages: Sequence[str]) -> Section:
    figures = []
    if analysis.latencies:
        figures.append(Figure("Call latency by stage", of_tokens.stage_times(analysis.latencies, stages)))
    return Section(title="Where the time goes", figures=figures, tables=[of_tokens.latency_table(analysis.latencies, stages)])


def _tokens(analysis: Analysis) -> Section:
    plots = [
        Figure("Shares of output tokens", of_tokens.tokens(analysis.ledger)),
        Figure("Prompt tokens by source", of_tokens.prompt_tokens(analysis.ledger)),
    ]
    return Section(title="Tokens and waste", figures=plots, tables=[of_tokens.tokens_table(analysis.ledger)])


def _steps(counts: StepCounts) -> Iterator[Section]:
    if not counts.lengths:
        return
    figures = [Figure("Length of steps and candidates", of_steps.lengths(counts.lengths))]
    if counts.verified.any():
        plot = of_steps.acceptance(counts.verified, counts.accepted)
        figures.append(Figure("Acceptance by step number", plot, "The band is Wilson's 95% interval, of each step number by itself."))
    figures += [Figure(f"Acceptance by the verifier's value ({kind})", of_steps.by_score(each)) for kind, each in counts.scores.items()]
    yield Section(title="Steps", figures=figures)


def _reading(found: Transcripts, counts: ChainCounts) -> Iterator[Section]:
    if not found.transcripts:
        return
    cancelled = f", {counts.cancelled:,} were cancelled" if counts.cancelled else ""
    text = (
        f"{len(found.transcripts)} of {counts.ended:,} chains, of which {counts.failed:,} failed{cancelled} and {counts.wrong:,} are "
        "wrong: failed and wrong ones evenly spread over the run, and the slowest."
    )
    left_out = [f"{found.left_out} more would have made this page too large."] if found.left_out else []
    yield Section(title="Transcripts", text=[text, *left_out], transcripts=found.transcripts)


def clock(run: RunFile) -> str:
    """Whether times were measured, simulated or replayed."""
    if not run.virtual_time:
        return MEASURED
    return REPLAYED if any(facts.replay is not None for facts in engine_facts(run).values()) else SIMULATED


def notices(run: RunFile, state: str) -> tuple[str, ...]:
    """What a reader must know before the figures of a run in this `state`: that its clock was simulated, that it did not finish."""
    said: list[str] = []
    if run.virtual_time:
        said += filter(None, [clock(run), of_engines(engine_facts(run).values())])
    if state != "finished":
        why = f" ({run.error})" if run.error and state == run.status else ""
        said.append(f"This run is {state}{why}: figures count what is in its folder.")
    return tuple(said)


def decisions(run: RunFile) -> Table:
    """A table of what was run: graph, params, batch size, input, machine, versions, command."""
    return Table("Configuration", ("", ""), tuple(_setup_rows(run)))


def engine_setup(run: RunFile) -> Table:
    """A table of the engines' settings, a row for each role."""
    columns = ("role", "model", "backend", "device", "max in flight", "other options")
    facts = engine_facts(run)
    rows = tuple(_engine_row(role, settings, facts[role]) for role, settings in run.engines.items())
    note = "Each replica has engines with these settings." if replica_count(run) > 1 else ""
    return Table("Engine settings", columns, rows, note)


def _setup_rows(run: RunFile) -> Iterator[tuple[str, str]]:
    yield "graph", str(run.options.graph)
    yield "stages", ", ".join(f"{node.name} ({node.spec.kind})" for node in run.plan.stages())
    yield "params", _pairs({name: value for name, value in run.plan.params.items() if value is not None}) or "none"
    count = replica_count(run)
    yield (
        "batch size",
        f"{run.options.batch_size} chains in flight{f' on each of {count} replicas' if count > 1 else ''}, {run.options.schedule}",
    )
    yield "admission", _admission(run)
    yield "samples and seed", f"{run.input.chains / max(run.input.rows, 1):g} per problem, seed {run.options.seed}"
    yield "input", f"{run.options.input[0]}, {run.input.rows:,} rows"
    yield "clock", "simulated" if run.virtual_time else "measured"
    yield "host", _host(run.host)
    yield "versions", _pairs(run.versions, " ")
    yield "command", " ".join(run.command)
    if len(run.sessions) > 1:
        yield "sessions", ", ".join(session.status for session in run.sessions)


def _admission(run: RunFile) -> str:
    """What decided which live chains continued."""
    if run.options.admission != "cache":
        return "the batch size alone"
    if run.totals.pauses is None:
        return "only the batch size: there is no loop, or no engine in it reports the size of its cache"
    return f"the engines' caches; chains paused {run.totals.pauses:,} times"


def _engine_row(role: str, settings: Mapping[str, Any], facts: EngineFacts) -> tuple[str, ...]:
    place = facts.device_model or ", ".join(facts.servers or facts.devices)
    shown = ("model", "backend", "device", "base_url", "max_in_flight")
    others = {name: value for name, value in settings.items() if name not in shown and isinstance(value, bool | int | float | str)}
    named = (str(settings.get(name, "-")) for name in ("model", "backend"))
    return role, *named, place or "-", str(settings.get("max_in_flight", "-")), _pairs(others)


def _host(host: Host) -> str:
    size = f", {host.memory_bytes / 2**30:.0f} GiB" if host.memory_bytes is not None else ""
    return f"{host.processor}, {'?' if host.cores is None else host.cores} cores{size}, {host.system}"


def _pairs(values: Mapping[str, Any], sign: str = "=") -> str:
    """Settings as a user writes them: `true`, not `True`."""
    return ", ".join(f"{name}{sign}{setting(value)}" for name, value in values.items())


def setting(value: Any) -> str:
    """A value as it is written in a YAML file."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
