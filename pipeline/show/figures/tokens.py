"""Figures and tables of time and tokens: a ledger and latencies enter, plotly figures and tables leave. Pure."""

from collections.abc import Collection, Mapping, Sequence

import plotly.graph_objects as go

from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.analysis.ledger import Ledger
from pipeline.analysis.study import QUANTITIES, Percentiles
from pipeline.show.figures.style import (
    BLUE,
    BROWN,
    CYAN,
    GREEN,
    GREY,
    LIGHT,
    LIME,
    MINT,
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
    stacked_bars,
)

TOKENS = {
    "committed": ("accepted draft", GREEN),
    "unverified": ("draft, unverified", MINT),
    "guidance": ("guidance", BLUE),
    "written": ("written without a draft", TEAL),
    "fallback": ("fallback", ORANGE),
    "answer": ("answer", CYAN),
    "verification": ("verification", PURPLE),
    "trial": ("trial answers", LIME),
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
    "unstated": ("not stated by the engine", LIGHT),
    "unrecorded": TOKENS["unrecorded"],
}
"""A label and a colour for each outcome of prompt tokens (`ledger.EngineLedger.input`)."""
PERCENTILES = {"p50": GREEN, "p90": ORANGE, "p99": RED, "max": GREY}
TIMES = {
    "wait": "client queue",
    "queue": "engine queue",
    "prefill": "prefill",
    "decode": "decode",
    "first_token": "time to first token",
    "e2e": "end to end",
    "per_output_token": "time per output token",
}


def tokens(ledger: Ledger) -> go.Figure:
    """What became of the tokens that each engine sampled, as shares: one stacked bar each."""
    return _shares({role: each.output for role, each in ledger.engines.items()}, TOKENS, "share of output tokens")


def prompt_tokens(ledger: Ledger) -> go.Figure:
    """Where the prompt tokens came from that each engine read, as shares: one stacked bar each."""
    return _shares({role: each.input for role, each in ledger.engines.items()}, PROMPT_TOKENS, "share of prompt tokens")


def _shares(found: Mapping[str, Mapping[str, int]], words: Mapping[str, tuple[str, str]], title: str) -> go.Figure:
    """A stacked bar for each engine, of its tokens by outcome; `words` are the name and the colour of each outcome, in order."""
    sums = {role: sum(each.values()) for role, each in found.items()}
    parts = [
        (name, [count / total if total else 0.0 for count, total in zip(counts, sums.values(), strict=True)], colour, counts)
        for outcome, (name, colour) in words.items()
        if any(counts := [each.get(outcome, 0) for each in found.values()])
    ]
    figure = go.Figure(layout=layout(190 + 60 * len(sums), bargap=0.3))
    stacked_bars(figure, [f"{drawn(role)}<br>{total:,}" for role, total in sums.items()], parts, "%{customdata:,} tokens (%{x:.1%})")
    return figure.update_xaxes(title=title, tickformat=".0%").update_yaxes(title="engine, tokens")


def tokens_table(ledger: Ledger) -> Table:
    """A table of what became of each engine's sampled tokens, with the engine's own count."""
    engines = list(ledger.engines.values())
    sums = [sum(each.output.values()) for each in engines]
    rows = []
    for outcome, (name, _) in TOKENS.items():
        counts = [each.output.get(outcome, 0) for each in engines]
        if any(counts):
            rows.append((name, *(f"{count:,} ({count / total:.1%})" if total else "0" for count, total in zip(counts, sums, strict=True))))
    rows.append(("total", *(f"{total:,}" for total in sums)))
    rows.append(("reported by the engine", *("unknown" if (n := each.counted_output) is None else f"{n:,}" for each in engines)))
    rows.append(("prefix cache hit rate", *(_share(each.input, "cached") for each in engines)))
    shares = (("useful", ledger.useful_share), ("verification", ledger.verification_share), ("wasted", ledger.waste_share))
    note = f"Of all output tokens {', '.join(f'{plain_percent(share)} {name}' for name, share in shares)}."
    if why := sorted({reason for each in engines for reason in each.why_unrecorded}):
        note += f" Not traced: {'; '.join(why)}."
    return Table("Output tokens by outcome", ("tokens", *ledger.engines), tuple(rows), note)


def stage_times(latencies: Mapping[str, Mapping[str, Percentiles]], stages: Sequence[str]) -> go.Figure:
    """Percentiles of the time of a call, from being sent until answered, for each stage."""
    known = {stage: latencies[stage]["e2e"] for stage in _ordered(latencies, stages) if "e2e" in latencies[stage]}
    figure = go.Figure(layout=layout(150 + 44 * len(known)))
    for field, colour in PERCENTILES.items():
        figure.add_scatter(
            y=list(map(drawn, known)),
            x=[getattr(each, field) for each in known.values()],
            mode="markers",
            marker={"color": colour, "size": 12, "symbol": "line-ns", "line": {"width": 4, "color": colour}},
            name=field,
            hovertemplate="%{y}: %{x:.4~g} s",
        )
    ticks = decades([getattr(each, field) for each in known.values() for field in PERCENTILES])
    figure.update_xaxes(title="end-to-end latency (s, log scale)", type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return axes(figure.update_yaxes(autorange="reversed", title="stage"))


def latency_table(latencies: Mapping[str, Mapping[str, Percentiles]], stages: Sequence[str]) -> Table:
    """A table of all percentiles by stage and quantity, in milliseconds."""
    rows = tuple(
        (stage, TIMES[quantity], f"{p.count:,}", *(plain(1000 * value) for value in (p.mean, p.p50, p.p90, p.p99, p.max)))
        for stage in _ordered(latencies, stages)
        for quantity in QUANTITIES
        if (p := latencies[stage].get(quantity)) is not None
    )
    return Table("Call latency (ms)", ("stage", "quantity", "calls", "mean", *PERCENTILES), rows)


def _ordered(found: Collection[str], stages: Sequence[str]) -> list[str]:
    return [*(name for name in stages if name in found), *sorted(set(found) - set(stages))]


def _share(tokens: Mapping[str, int], outcome: str) -> str:
    whole = sum(tokens.values())
    return plain_percent(tokens.get(outcome, 0) / whole if whole else None)
