"""The summary of a run as tables: a `Summary` enters, tables to print or to put on a page leave. Pure."""

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.quality.option_mass import mass_sentence


def facts(s: Summary) -> Table:
    """Further figures of a run, one row each."""
    ready = [("engines ready", f"after {_number(s.startup_s)} s")] if s.startup_s is not None and not s.simulated else []
    rows = (
        *ready,
        ("wall time", f"{_number(s.wall_time_s)} s ({_number(s.tail_time_s)} s tail: {_tail(s)})"),
        ("steps", f"{s.steps:,}, {_number(s.steps_per_s)} steps/s; {s.thought_tokens:,} tokens"),
        *([("options", mass_sentence(s.option_mass))] if s.option_mass else []),
        *([("admission", f"by cache, chains paused {s.pauses:,} times")] if s.pauses else []),
        ("overlap", f"{_percent(s.overlap_share)} of the time at least two engines {_of_one(s)}were busy"),
        ("stop reasons", ", ".join(f"{reason} {count}" for reason, count in s.stop_reasons.items())),
        *((kind, f"for example: {message}") for kind, message in s.error_examples.items()),
    )
    return Table("Facts", ("", ""), rows)


def engines(summary: Summary) -> Table:
    """A row for each engine: its calls, tokens and busy time."""
    columns = ("engine", "calls", "input tokens", "cached", "output tokens", "generated tokens/s", "busy", "in flight")
    rows = []
    for name, engine in summary.engines.items():
        rows.append(
            (
                name,
                f"{engine.calls:,}",
                f"{engine.input_tokens:,}",
                _percent(engine.cached_share),
                f"{engine.output_tokens:,}",
                _number(engine.output_tokens_per_s),
                _percent(engine.busy_share),
                f"{engine.mean_in_flight:.1f}",
            )
        )
    note = f"Of all {summary.replicas} replicas; busy is the mean of their engines." if summary.replicas > 1 else ""
    return Table("Engines", columns, tuple(rows), note)


def stages(summary: Summary) -> Table:
    """A row for each stage: its calls, tokens and times."""
    columns = ("stage", "calls", "failed", "input tokens", "output tokens", "total s", "mean ms", "queued s")
    rows = []
    for name, stage in summary.stages.items():
        rows.append(
            (
                name,
                f"{stage.calls:,}",
                f"{stage.failed_calls:,}",
                f"{stage.input_tokens:,}",
                f"{stage.output_tokens:,}",
                f"{stage.in_flight_s:,.1f}",
                f"{1000 * stage.in_flight_s / stage.calls:.1f}" if stage.calls else "-",
                f"{stage.wait_s:,.1f}",
            )
        )
    return Table("Stages", columns, tuple(rows))


def _tail(s: Summary) -> str:
    """What the tail is."""
    return "a replica had fewer chains in flight than the batch size" if s.replicas > 1 else "fewer chains in flight than the batch size"


def _of_one(s: Summary) -> str:
    """Which engines an overlap is of."""
    return "of a replica, on average, " if s.replicas > 1 else ""


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
