"""What a run was: its `run.json` enters, the facts that a reader must know before the figures leave, as tables and notices."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.quality.selection import stages_of
from pipeline.trace.read import read_card

SIMULATED = "Simulated: every time on this page is that of a simulated clock, and every text was made up by a simulated engine."
MEASURED = "Measured: times are those of real engines on the machine below."
REPLAYED = "Replayed on a simulated clock: texts of replayed engines are those of a recorded run, times are simulated."


class Setup(Struct, frozen=True, kw_only=True):
    """What of a `run.json` is shown."""

    run_id: str
    status: str
    graph_file: str
    graph: dict[str, Any]
    params: dict[str, bool | int | float | str]
    engines: dict[str, dict[str, Any]]
    schedule: str
    batch_size: int
    samples: int
    seed: int
    input: dict[str, Any]
    virtual_time: bool
    versions: dict[str, str]
    host: dict[str, Any]
    command: list[str]
    started_unix_ns: int
    wall_time_s: float | None = None
    error: str | None = None
    engine_facts: dict[str, dict[str, Any]] = {}
    sessions: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = {}

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in the order of the graph."""
        return tuple(name for name, _ in stages_of(self.graph))

    @property
    def clock(self) -> str:
        """How to believe the times, in one sentence."""
        if not self.virtual_time:
            return MEASURED
        return REPLAYED if any(spec.get("backend") == "replay" for spec in self.engines.values()) else SIMULATED


def read_setup(folder: Path) -> Setup:
    """The `run.json` of a run folder; raises `InputError`."""
    return read_card(folder, Setup)


def notices(run: Setup) -> tuple[str, ...]:
    """What must be known before any figure is believed."""
    said = []
    if run.virtual_time:
        said.append(run.clock)
    if run.status != "finished":
        ended = f" ({run.error})" if run.error else ""
        said.append(f"This run is {run.status}{ended}: figures count what is in its folder.")
    return tuple(said)


def decisions(run: Setup) -> Table:
    """What was decided."""
    return Table("What was run", ("", ""), tuple(_setup_rows(run)))


def engine_setup(run: Setup) -> Table:
    """The engines, by role."""
    columns = ("role", "model", "backend", "where", "most in flight", "other options")
    return Table("Engines, as they were set", columns, tuple(_engine_row(run, role) for role in run.engines))


def _setup_rows(run: Setup) -> Iterator[tuple[str, str]]:
    yield "graph", run.graph_file
    yield "stages", ", ".join(f"{name} ({spec.get('kind')})" for name, spec in stages_of(run.graph))
    yield "params", _pairs(run.params) or "none"
    yield "batch size", f"{run.batch_size} chains live at once, {run.schedule}"
    yield "samples and seed", f"{run.samples} a problem, seed {run.seed}"
    rows = run.input.get("rows")
    yield "input", f"{run.input.get('file')}" + (f", {rows:,} rows" if isinstance(rows, int) else "")
    yield "clock", "simulated" if run.virtual_time else "measured"
    yield "host", _host(run.host)
    yield "versions", _pairs(run.versions, " ")
    yield "command", " ".join(run.command)
    if len(run.sessions) > 1:
        yield "sessions", ", ".join(str(session.get("status")) for session in run.sessions)


def _engine_row(run: Setup, role: str) -> tuple[str, ...]:
    spec, found = run.engines[role], run.engine_facts.get(role, {})
    place = found.get("device") or spec.get("base_url") or spec.get("device")
    place = place.get("name", "-") if isinstance(place, Mapping) else place
    shown = ("model", "backend", "device", "base_url", "max_in_flight")
    others = {name: value for name, value in spec.items() if name not in shown and isinstance(value, bool | int | float | str)}
    model, backend = str(spec.get("model", "-")), str(spec.get("backend", "-"))
    return role, model, backend, str(place or "-"), str(spec.get("max_in_flight", "-")), _pairs(others)


def _host(host: Mapping[str, Any]) -> str:
    memory = host.get("memory_bytes")
    size = f", {memory / 2**30:.0f} GiB" if isinstance(memory, int) else ""
    return f"{host.get('processor', 'unknown')}, {host.get('cores', '?')} cores{size}, {host.get('system', 'unknown')}"


def _pairs(values: Mapping[str, Any], sign: str = "=") -> str:
    return ", ".join(f"{name}{sign}{value:g}" if isinstance(value, float) else f"{name}{sign}{value}" for name, value in values.items())
