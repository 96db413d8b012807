"""Figures and tables of time and tokens: critical path, ledger and latencies enter, plotly figures and tables leave. Pure."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.ledger import OUTCOMES, Ledger
from pipeline.analysis.time.latency import END, QUANTITIES, SEGMENTS, CriticalPath, Percentiles
from pipeline.report.figures.style import (
    BLUE,
    BROWN,
    CYAN,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    SAND,
    TEAL,
    axes,
    decades,
    drawn,
    layout,
)

PATH = {
    "between": ("between calls", RED),
    "retry": ("waiting for a retry", BROWN),
    "wait": ("client queue", ORANGE),
    "queue": ("engine queue", SAND),
    "prefill": ("prefill", PURPLE),
    "decode": ("decode", BLUE),
    "transfer": ("transport", PINK),
    "engine": ("at the engine (no breakdown)", TEAL),
}
"""A label and a colour for each kind of segment (`latency.SEGMENTS`)."""
TOKENS = {
    "committed": ("accepted draft", GREEN),
    "guidance": ("guidance", BLUE),
    "written": ("written without a draft", TEAL),
    "fallback": ("fallback", ORANGE),
    "answer": ("answer", CYAN),
    "verification": ("verification", PURPLE),
    "not_chosen": ("draft, not chosen", GREY),
    "rejected": ("draft, rejected", RED),
    "cut": ("draft, truncated", SAND),
    "retried": ("failed attempts", BROWN),
    "lost_chains": ("failed or cancelled chains", PINK),
    "unfinished": ("unfinished chains", LIGHT),
    "unrecorded": ("not traced", "#222b36"),
}
"""A label and a colour for each outcome of tokens (`ledger.OUTCOMES`)."""
PROMPT_TOKENS = {
    "cached": ("prefix cache hit", GREEN),
    "computed": ("computed", BLUE),
    "recomputed": ("recomputed after eviction", RED),
    "unstated": ("not stated by the engine", LIGHT),
    "unrecorded": TOKENS["unrecorded"],
}
"""A label and a colour for each outcome of prompt tokens (`ledger.EngineLedger.input`)."""
PERCENTILES = (("p50", "p50", GREEN), ("p90", "p90", ORANGE), ("p99", "p99", RED), ("max", "max", GREY))
TIMES = {
    "wait": "client queue",
    "queue": "engine queue",
    "prefill": "prefill",
    "decode": "decode",
    "first_token": "time to first token",
    "e2e": "end to end",
    "per_output_token": "time per output token",
}


def paths(path: CriticalPath, stages: Sequence[str]) -> go.Figure:
    """The critical path of the mean chain: for each stage a stacked bar of its kinds of segments."""
    means = path.mean_s
    rows = [*(name for name in (*stages, END) if any(stage == name for stage, _ in means))]
    rows += sorted({stage for stage, _ in means} - set(rows))
    figure = go.Figure(layout=layout(150 + 44 * len(rows), barmode="stack", bargap=0.3))
    for segment in (name for name in SEGMENTS if any(key[1] == name for key in means)):
        name, colour = PATH.get(segment, (segment, GREY))
        figure.add_bar(
            y=[drawn("after the last call" if stage == END else stage) for stage in rows],
            x=[means.get((stage, segment), 0.0) for stage in rows],
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate="%{y}: %{x:.4~g} s",
        )
    figure.update_xaxes(title="mean time per chain (s)")
    figure.update_yaxes(autorange="reversed", title="stage")
    return axes(figure)


def tokens(ledger: Ledger) -> go.Figure:
    """What became of the tokens that each engine sampled, as shares: one stacked bar each."""
    words = {outcome: TOKENS.get(outcome, (outcome, GREY)) for outcome in OUTCOMES}
    return _shares({role: each.output for role, each in ledger.engines.items()}, words, "share of output tokens")


def prompt_tokens(ledger: Ledger) -> go.Figure:
    """Where the prompt tokens came from that each engine read, as shares: one stacked bar each."""
    return _shares({role: each.input for role, each in ledger.engines.items()}, PROMPT_TOKENS, "share of prompt tokens")


def _shares(found: Mapping[str, Mapping[str, int]], words: Mapping[str, tuple[str, str]], title: str) -> go.Figure:
    """A stacked bar for each engine, of its tokens by outcome; `words` are the name and the colour of each outcome, in order."""
    sums = {role: sum(each.values()) for role, each in found.items()}
    rows = [f"{drawn(role)}<br>{total:,}" for role, total in sums.items()]
    figure = go.Figure(layout=layout(190 + 60 * len(rows), barmode="stack", bargap=0.3))
    for outcome, (name, colour) in words.items():
        counts = [each.get(outcome, 0) for each in found.values()]
        if any(counts):
            figure.add_bar(
                y=rows,
                x=[count / total if total else 0.0 for count, total in zip(counts, sums.values(), strict=True)],
                customdata=counts,
                orientation="h",
                name=name,
                marker={"color": colour},
                hovertemplate="%{customdata:,} tokens (%{x:.1%})",
            )
    figure.update_xaxes(title=title, tickformat=".0%")
    figure.update_yaxes(autorange="reversed", title="engine, tokens")
    return axes(figure)


def tokens_table(ledger: Ledger) -> Table:
    """A table of what became of each engine's sampled tokens, with the engine's own count."""
    roles = list(ledger.engines)
    rows = []
    for outcome in OUTCOMES:
        counts = [ledger.engines[role].output.get(outcome, 0) for role in roles]
        if any(counts):
            sums = [sum(ledger.engines[role].output.values()) for role in roles]
            rows.append((TOKENS.get(outcome, (outcome, ""))[0], *map(_part, counts, sums)))
    rows.append(("total", *(f"{sum(ledger.engines[role].output.values()):,}" for role in roles)))
    rows.append(("reported by the engine", *(_count(ledger.engines[role].counted_output) for role in roles)))
    rows.append(("prefix cache hit rate", *(_share(ledger.engines[role].input, "cached") for role in roles)))
    rows.append(("prompt tokens recomputed after eviction", *(_share(ledger.engines[role].input, "recomputed") for role in roles)))
    why = sorted({reason for each in ledger.engines.values() for reason in each.why_unrecorded})
    shares = (("useful", ledger.useful_share), ("verification", ledger.verification_share), ("wasted", ledger.waste_share))
    note = f"Of all output tokens {', '.join(f'{plain_percent(share)} {name}' for name, share in shares)}."
    if why:
        note += f" Not traced: {'; '.join(why)}."
    return Table("Output tokens by outcome", ("tokens", *roles), tuple(rows), note)


def stage_times(latencies: Mapping[str, Mapping[str, Percentiles]], stages: Sequence[str]) -> go.Figure:
    """Percentiles of the time of a call, from being sent until answered, for each stage."""
    rows = _ordered(latencies, stages)
    known = [stage for stage in rows if "e2e" in latencies[stage]]
    figure = go.Figure(layout=layout(150 + 44 * len(known)))
    for field, name, colour in PERCENTILES:
        figure.add_scatter(
            y=[drawn(stage) for stage in known],
            x=[getattr(latencies[stage]["e2e"], field) for stage in known],
            mode="markers",
            marker={"color": colour, "size": 12, "symbol": "line-ns", "line": {"width": 4, "color": colour}},
            name=name,
            hovertemplate="%{y}: %{x:.4~g} s",
        )
    ticks = decades([getattr(latencies[stage]["e2e"], field) for stage in known for field, *_ in PERCENTILES])
    figure.update_xaxes(title="end-to-end latency (s, log scale)", type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_yaxes(autorange="reversed", title="stage")
    return axes(figure)


def latency_table(latencies: Mapping[str, Mapping[str, Percentiles]], stages: Sequence[str]) -> Table:
    """A table of all percentiles by stage and quantity, in milliseconds."""
    rows = tuple(
        (stage, TIMES.get(quantity, quantity), f"{p.count:,}", *(_ms(value) for value in (p.mean, p.p50, p.p90, p.p99, p.max)))
        for stage in _ordered(latencies, stages)
        for quantity in QUANTITIES
        if (p := latencies[stage].get(quantity)) is not None
    )
    return Table("Call latency (ms)", ("stage", "quantity", "calls", "mean", "p50", "p90", "p99", "max"), rows)


def _ordered(latencies: Mapping[str, object], stages: Sequence[str]) -> list[str]:
    return [*(name for name in stages if name in latencies), *sorted(set(latencies) - set(stages))]


def _part(count: int, whole: int) -> str:
    return f"{count:,} ({count / whole:.1%})" if whole else f"{count:,}"


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def _share(tokens: Mapping[str, int], outcome: str) -> str:
    whole = sum(tokens.values())
    return plain_percent(tokens.get(outcome, 0) / whole if whole else None)


def _ms(seconds: float) -> str:
    return plain(1000 * seconds)
