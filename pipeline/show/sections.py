"""One run as a page: a run folder enters, read in a few passes; tiles, sections of charts, tables and transcripts leave."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.facts import EngineFacts, engine_facts, of_engines, replica_count
from pipeline.analysis.headline import Headline, engines_table, facts_table, headline, limit, stages_table, summary_of
from pipeline.analysis.ledger import read_ledger
from pipeline.analysis.steps import count_steps
from pipeline.analysis.summary import Summary, summarize_work
from pipeline.analysis.tables import Table, plain, plain_percent
from pipeline.analysis.time.latency import latencies
from pipeline.analysis.time.occupancy import occupancy
from pipeline.analysis.time.work import read_work
from pipeline.show import charts
from pipeline.show.gantt import draw_chains, read_gantt
from pipeline.show.plot import Chart, Shares
from pipeline.store.query import Query
from pipeline.store.run_file import Host, RunFile

SIMULATED = "Simulated: every time on this page is from a simulated clock, and every text was made up by a simulated engine."
MEASURED = "Measured: times are those of real engines on the machine below."
REPLAYED = "Replayed on a simulated clock: texts of replayed engines are those of a recorded run, times are simulated."
WARNINGS = ("stopped", "failed", "left", "cancelled", "restarts", "empty", "options", "grading", "note")
"""Rows of a headline that a reader must know before the figures."""
BINS = 300
"""Bins that time is divided into."""


class Tile(Struct, frozen=True):
    """A figure to see at a glance."""

    label: str
    figure: str
    text: str = ""


class Section(Struct, frozen=True, kw_only=True):
    """A part of a page; its contents are shown in the order of these fields."""

    title: str
    notices: Sequence[str] = ()
    """Warnings, shown in a box."""
    text: Sequence[str] = ()
    """Paragraphs."""
    charts: Sequence[Chart | Shares] = ()
    tables: Sequence[Table] = ()
    folded: bool = False
    """Whether it is closed at first."""


class RunFigures(Struct, frozen=True, kw_only=True):
    """What a page says of a run beside its problems."""

    about: str
    """What is solved with what."""
    notices: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    facts: Section


def run_figures(folder: Path, db: Query) -> RunFigures:
    """The figures of the run in `folder`, which is open in `db`; raises `InputError` where its trace cannot be read."""
    run, work = RunFile.read(folder), read_work(db)
    stages = [node.name for node in run.plan.stages()]
    over_time, counts = occupancy(work, BINS), count_steps(db)
    summary = summary_of(folder, summarize_work(work, over_time))
    told, sections = headline(summary), []
    head = Table(told.head, ("", "", ""), tuple(map(structs.astuple, told.rows)))
    tables = [head, facts_table(summary), engines_table(summary), stages_table(summary)]
    if any(each.total_busy_s for each in over_time.engines.values()):
        sections = [
            Section(title="Every problem over time", charts=[draw_chains(read_gantt(db), stages)]),
            Section(title="Engines over time", charts=[charts.requests(over_time), charts.causes(over_time)]),
            Section(title="Tokens by outcome", charts=charts.tokens(read_ledger(db))),
        ]
        tables += [charts.causes_table(over_time), charts.latency_table(latencies(db), stages)]
    if steps := charts.steps(counts):
        sections.append(Section(title="Steps", charts=steps))
    warnings = [f"{row.name}: {f'{row.figure}, ' if row.figure else ''}{row.text}" for row in told.rows if row.name in WARNINGS]
    return RunFigures(
        about=told.about,
        notices=[*notices(run, summary.status or run.status), *warnings],
        tiles=list(_tiles(summary, told)),
        sections=sections,
        facts=Section(title="Facts", tables=tables, folded=True),
    )


def _tiles(s: Summary, told: Headline) -> Iterator[Tile]:
    texts = {row.name: row.text for row in told.rows}
    right = s.graded and (s.correct or s.answers != "simulated")
    yield Tile("accuracy", plain_percent(s.accuracy) if right else "-", texts.get("accuracy", ""))
    yield Tile("problems/s", plain(s.problems_per_s), told.head)
    ratio = s.baseline and s.baseline.times_as_fast
    yield Tile("speed-up", f"{ratio:.2f}x" if ratio else "-", texts.get("baseline", "no baseline: run with --baseline"))
    yield Tile("acceptance", plain_percent(s.acceptance_rate), texts.get("drafting", "no step was verified"))
    what, *why = re.split(r": | \(", (limit(s) or "").rstrip(")"), maxsplit=1)
    yield Tile("bottleneck", what or "-", why[0] if why else "the figures show none")


def settings(run: RunFile) -> Section:
    """What was run, with which engines."""
    return Section(title="Settings", tables=[decisions(run), engine_setup(run)], folded=True)


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
