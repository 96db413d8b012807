"""The summary of a run as tables: a `Summary` enters, tables to print or to put on a page leave. Pure."""

from collections.abc import Collection

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.quality.option_mass import mass_sentence
from pipeline.analysis.resources import EngineFacts, answers
from pipeline.analysis.simulated import of_engines
from pipeline.analysis.summary import Summary
from pipeline.analysis.time.imbalance import Imbalance

MOST_REASONS = 3
"""How many reasons for missing grades are told."""


def facts(summary: Summary, *, simulated: bool, engines: Collection[EngineFacts]) -> Table:
    """The main figures of a run, one row each. `simulated`: its clock was simulated; `engines`: what they stated about themselves."""
    title = f"{summary.run}: {summary.status}" + (" (simulated time)" if simulated else "")
    error = of_engines(engines) if simulated else ""
    return Table(title, ("", ""), (*_fact_rows(summary, answers(engines)), *([("simulator", error)] if error else [])))


def engines(summary: Summary) -> Table:
    """A row for each engine: its calls, tokens and busy time."""
    columns = ("engine", "calls", "input tokens", "cached", "computed again", "output tokens", "tokens/s", "busy", "in flight")
    rows = []
    for name, engine in summary.engines.items():
        rows.append(
            (
                name,
                f"{engine.calls:,}",
                f"{engine.input_tokens:,}",
                _percent(engine.cached_share),
                "-" if engine.recomputed_input_tokens is None else f"{engine.recomputed_input_tokens:,}",
                f"{engine.output_tokens:,}",
                _number(engine.output_tokens_per_s),
                _percent(engine.busy_share),
                f"{engine.mean_in_flight:.1f}",
            )
        )
    note = f"Of all {summary.replicas.replicas} replicas; busy is the mean of their engines." if summary.replicas else ""
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


def _fact_rows(s: Summary, made: str | None) -> list[tuple[str, str]]:
    retried = sum(engine.retried_calls for engine in s.engines.values())
    failed = f", {s.failed} failed ({', '.join(f'{n} {kind}' for kind, n in s.errors.items())})" if s.failed else ""
    cancelled = f", {s.cancelled} cancelled" if s.cancelled else ""
    return [
        ("chains", f"{s.done} done{failed}{cancelled}"),
        *([("retries", f"{retried:,} failed attempts were retried")] if retried else []),
        *([("restarts", restarts)] if (restarts := _restarts(s)) else []),
        *((kind, f"for example: {message}") for kind, message in s.error_examples.items()),
        ("accuracy", _accuracy(s, made) if s.graded else _why_not_graded(s)),
        *([("grading", _grading_errors(s))] if s.graded and s.grading_errors else []),
        *_sample_rows(s, made),
        ("wall time", f"{_number(s.wall_time_s)} s ({_number(s.tail_time_s)} s tail: {_tail(s)})"),
        *([("replicas", _replicas(s.replicas))] if s.replicas else []),
        (
            "throughput",
            f"{_number(s.problems_per_s)} problems/s, {_number(s.steps_per_s)} steps/s, {_number(s.output_tokens_per_s)} output tokens/s",
        ),
        *_verification_rows(s),
        (
            "thought",
            f"{s.thought_tokens:,} tokens, {_percent(s.draft_share)} in accepted candidates; "
            f"{s.wasted_draft_tokens:,} drafted tokens unused",
        ),
        *([("options", mass_sentence(s.option_mass))] if s.option_mass else []),
        *_speculation_rows(s),
        *_order_rows(s),
        *([("admission", f"by cache, chains paused {s.pauses:,} times")] if s.pauses else []),
        ("overlap", f"{_percent(s.overlap_share)} of the time at least two engines {_of_one(s)}were busy"),
        ("stop reasons", ", ".join(f"{reason} {count}" for reason, count in s.stop_reasons.items())),
    ]


def _tail(s: Summary) -> str:
    """What the tail is."""
    return "a replica had fewer chains in flight than the batch size" if s.replicas else "fewer chains in flight than the batch size"


def _of_one(s: Summary) -> str:
    """Which engines an overlap is of."""
    return "of a replica, in the mean, " if s.replicas else ""


def _replicas(found: Imbalance) -> str:
    """How many replicas there were, and how evenly they worked."""
    said = [f"the busiest {found.busy:.2f} times the mean busy time"] if found.busy is not None else []
    said += [f"most chains {found.chains:.2f} times the mean"] if found.chains is not None else []
    said += [f"idle {found.tail_idle_share:.1%} of the tail of {_number(found.tail_s)} s"] if found.tail_idle_share is not None else []
    return f"{found.replicas}{': ' if said else ''}{', '.join(said)}"


def _verification_rows(s: Summary) -> list[tuple[str, str]]:
    """How often the verifier accepted; no row of a graph without one."""
    said = f"{_percent(s.acceptance_rate)} accepted, {_percent(s.fallback_rate)} fallback, of {s.verified_steps:,} verified steps"
    return [("verification", said)] if s.verified_steps else []


def _restarts(s: Summary) -> str:
    """Which engines died and were started again, and how often; empty where none did."""
    return ", ".join(
        f"{name} crashed and was restarted {'once' if engine.restarts == 1 else f'{engine.restarts} times'}"
        for name, engine in s.engines.items()
        if engine.restarts
    )


def _accuracy(s: Summary, made: str | None) -> str:
    if made == "simulated" and not s.correct:
        return "- (answers are simulated)"
    lost = f", {s.failed_as_wrong} of them failed and count as wrong" if s.failed_as_wrong else ""
    said = f"{_percent(s.accuracy)} ({s.correct} of {s.graded} graded{f', of {made} answers' if made else ''}{lost})"
    if s.accuracy_interval is None:
        return said
    low, high = s.accuracy_interval.low, s.accuracy_interval.high
    return f"{said}, 95% interval {low:.1%} to {high:.1%}{', problems as clusters' if s.accuracy_interval.method == 'clusters' else ''}"


def _why_not_graded(s: Summary) -> str:
    """Why no answer of the run was graded."""
    if s.grading_errors:
        return f"not graded, which `pipeline grade` can do later: {_grading_errors(s)}"
    return "no reference answers" if s.done else "no chain finished"


def _grading_errors(s: Summary) -> str:
    """What kept answers from being compared, the most frequent reasons."""
    first = dict(list(s.grading_errors.items())[:MOST_REASONS])
    more = len(s.grading_errors) - len(first)
    said = [f"{count:,} not compared to the end: {why}" for why, count in first.items()]
    return "; ".join(said) + (f"; and {more} other reasons" if more else "")


def _sample_rows(s: Summary, made: str | None) -> list[tuple[str, str]]:
    """pass@k and the majority vote; no rows with one sample a problem."""
    if s.samples < 2:
        return []
    voted = f"the most frequent of their {made} answers" if made else "their most frequent answer"
    return [
        ("samples", ", ".join(f"pass@{k} {share:.1%}" for k, share in s.pass_at.items())),
        ("majority vote", f"{_percent(s.majority_accuracy)} of problems right by {voted}, of up to {s.samples}"),
    ]


def _order_rows(s: Summary) -> list[tuple[str, str]]:
    """How good the expectation was by which chains began; no row in the order of the input."""
    if s.order in (None, "input"):
        return []
    known = "not known" if s.order_correlation is None else f"{s.order_correlation:.2f} (1: in this order, 0: by chance)"
    return [("order", f"{s.order}; rank correlation of expected and actual lengths of thoughts: {known}")]


def _speculation_rows(s: Summary) -> list[tuple[str, str]]:
    """A row for each engine that used token-level speculation."""
    rows = []
    for name, engine in s.engines.items():
        if engine.speculated_tokens and engine.speculations:
            accepted = engine.accepted_speculated_tokens or 0
            share, length = accepted / engine.speculated_tokens, 1 + accepted / engine.speculations
            said = (
                f"{name} accepted {share:.1%} of {engine.speculated_tokens:,} tokens proposed inside it, {length:.2f} tokens an iteration"
            )
            rows.append(("speculation", said))
    return rows


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
