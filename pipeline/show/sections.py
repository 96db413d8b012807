"""One run as a page: a run folder enters, read in a few passes; tiles, and sections of charts and tables leave."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.analysis.facts import engine_facts, made_up, of_engines
from pipeline.analysis.headline import Headline, headline, limit, summary_of, tables
from pipeline.analysis.ledger import read_ledger
from pipeline.analysis.steps import count_steps
from pipeline.analysis.summary import Summary, summarize_work
from pipeline.analysis.tables import Table, plain, plain_percent
from pipeline.analysis.time.latency import latencies
from pipeline.analysis.time.occupancy import occupancy
from pipeline.analysis.time.work import read_work
from pipeline.show import charts
from pipeline.show.gantt import chains_chart
from pipeline.show.plot import Chart
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

SIMULATED = "Simulated: every time on this page is from a simulated clock, and every text was made up by a simulated engine."
REPLAYED = "Replayed on a simulated clock: texts of replayed engines are those of a recorded run, times are simulated."
WARNINGS = ("stopped", "failed", "left", "cancelled", "restarts", "empty", "judge", "cut", "options", "grading", "note")
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
    charts: Sequence[Chart] = ()
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


def run_figures(folder: Path, db: Query) -> RunFigures:
    """The figures of the run in `folder`, which is open in `db`; raises `InputError` where its trace cannot be read."""
    run, work = RunFile.read(folder), read_work(db)
    stages = [node.name for node in run.plan.stages()]
    over_time, counts = occupancy(work, BINS), count_steps(db)
    summary = summary_of(folder, summarize_work(work, over_time))
    told, sections = headline(summary), []
    head = Table(told.head, ("", "", ""), tuple(map(structs.astuple, told.rows)))
    shown = [head, *tables(summary), charts.latency_table(latencies(db), stages)]
    if any(each.total_busy_s for each in over_time.engines.values()):
        sections = [
            Section(title="Every problem over time", charts=[chains_chart(db, stages)]),
            Section(title="Engines over time", charts=[charts.requests(over_time), charts.causes(over_time)]),
            Section(title="Tokens by outcome", charts=charts.tokens(read_ledger(db))),
        ]
    if steps := charts.steps(counts):
        sections.append(Section(title="Steps", charts=steps))
    warnings = [f"{row.name}: {f'{row.figure}, ' if row.figure else ''}{row.text}" for row in told.rows if row.name in WARNINGS]
    sections += [Section(title="Facts", tables=shown, folded=True), settings(run)]
    return RunFigures(
        about=told.about,
        notices=[*notices(run, summary.status), *warnings],
        tiles=list(_tiles(summary, told)),
        sections=sections,
    )


def _tiles(s: Summary, told: Headline) -> Iterator[Tile]:
    texts = {row.name: row.text for row in told.rows}
    yield Tile("accuracy", "-" if made_up(s.answers, s.accuracy) else plain_percent(s.accuracy), texts.get("accuracy", ""))
    yield Tile("problems/s", plain(s.problems_per_s), told.head)
    ratio = s.baseline and s.baseline.times_as_fast
    yield Tile("speed-up", f"{ratio:.2f}x" if ratio else "-", texts.get("baseline", "no baseline: run with --baseline"))
    yield Tile("acceptance", plain_percent(s.acceptance_rate), texts.get("drafting", "no step was verified"))
    what, *why = re.split(r": | \(", (limit(s) or "").rstrip(")"), maxsplit=1)
    yield Tile("bottleneck", what or "-", why[0] if why else "the figures show none")


def settings(run: RunFile) -> Section:
    """What was run, with which engines: tables of the options that were given, the machine and the engines' settings."""
    return Section(title="Settings", tables=[Table("Configuration", ("", ""), tuple(_options(run))), _engines(run)], folded=True)


def clock(run: RunFile) -> str:
    """Whether times were simulated or replayed; empty where they were measured."""
    if not run.virtual_time:
        return ""
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


def _options(run: RunFile) -> Iterator[tuple[str, str]]:
    yield "params", _pairs({name: value for name, value in run.plan.params.items() if value is not None}) or "none"
    shown = ("graph", "input", "samples", "seed", "batch_size", "schedule", "admission", "replicas")
    options = structs.asdict(run.options)
    yield from ((name.replace("_", " "), _value(options[name])) for name in shown)
    host = run.host
    memory = f", {host.memory_bytes / 2**30:.0f} GiB" if host.memory_bytes is not None else ""
    yield "host", f"{host.processor}, {'?' if host.cores is None else host.cores} cores{memory}, {host.system}"
    yield "versions", _pairs(run.versions, " ")
    yield "command", " ".join(run.command)


def _engines(run: RunFile) -> Table:
    """Where each engine was, and its settings."""
    rows = []
    for (role, given), facts in zip(run.engines.items(), engine_facts(run).values(), strict=True):
        plain_settings = {name: value for name, value in given.items() if isinstance(value, bool | int | float | str)}
        rows.append((role, facts.device_model or ", ".join(facts.servers or facts.devices) or "-", _pairs(plain_settings)))
    return Table("Engine settings", ("role", "device", "settings"), tuple(rows))


def _pairs(values: Mapping[str, Any], sign: str = "=") -> str:
    return ", ".join(f"{name}{sign}{_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    """A value as it is written in a YAML file."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
