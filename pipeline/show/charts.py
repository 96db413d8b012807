"""The charts of a run: figures over time, tokens and counts of steps enter, charts and tables leave. Pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from pipeline.analysis.figures import wilson
from pipeline.analysis.ledger import USEFUL, WASTED, Ledger
from pipeline.analysis.steps import StepCounts
from pipeline.analysis.tables import Table, plain, plain_percent
from pipeline.analysis.time.latency import QUANTITIES, Latency
from pipeline.analysis.time.occupancy import Occupancy
from pipeline.analysis.time.work import Array
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel, stacked, up_to

SERIES = ("blue", "teal", "purple", "orange", "pink", "brown", "cyan", "sand")
"""Colours of names that have none of their own, in order."""
CAUSES = {
    "nothing_admitted": ("no chain in flight", "light"),
    "other_engine": ("all chains at the other engine", "cyan"),
    "recovery": ("waiting for a retry", "pink"),
    "orchestration": ("orchestrator", "red"),
    "barrier": ("barrier (lockstep)", "sand"),
    "tail": ("tail (too few chains left)", "purple"),
}
"""A label and a colour for each cause of idleness (`occupancy.CAUSES`)."""
TOKENS = {
    "committed": ("accepted draft", "green"),
    "unverified": ("draft, unverified", "mint"),
    "written": ("written", "teal"),
    "answer": ("answer", "cyan"),
    "verification": ("verification", "purple"),
    "rejected": ("draft, rejected", "red"),
    "cut": ("truncated", "sand"),
    "lost": ("failed or unfinished", "pink"),
    "unrecorded": ("not traced", "ink"),
}
"""A label and a colour for each outcome of tokens (`ledger.OUTCOMES`)."""
PROMPT_TOKENS = {
    "cached": ("prefix cache hit", "green"),
    "computed": ("computed", "blue"),
    "unstated": ("not stated by the engine", "light"),
    "unrecorded": TOKENS["unrecorded"],
}
"""A label and a colour for each outcome of prompt tokens (`ledger.EngineLedger.input`)."""
DECISIONS = {
    "guidance": ("guidance", "blue"),
    "accepted": ("accepted", "green"),
    "unverified": ("unverified", "mint"),
    "fallback": ("fallback", "orange"),
    "first_steps": ("first steps", "purple"),
    "written": ("written", "teal"),
    "rejected": ("rejected candidate", "red"),
}
"""A label and a colour by what became of a text."""
TIMES = {
    "wait": "client queue",
    "queue": "engine queue",
    "prefill": "prefill",
    "decode": "decode",
    "first_token": "time to first token",
    "e2e": "end to end",
    "per_output_token": "time per output token",
}
MAX_BINS = 60
SHARE = "{:.0%}"


def requests(occupancy: Occupancy) -> Chart:
    """Requests at each engine and in its lane, stacked, and the live chains, over time."""
    edges, panels = occupancy.edges_s, []
    for role, engine in occupancy.engines.items():
        marks = stacked(edges, (("running", "blue", engine.in_flight), ("client queue", "orange", engine.waiting)))
        panels.append(Panel(y=up_to(engine.in_flight + engine.waiting, title=f"requests at {role}"), marks=marks, height=130))
    live = Mark(kind="line", hue="ink", x=np.repeat(edges, 2)[1:-1], y=np.repeat(occupancy.live, 2), width=1.5)
    panels.append(Panel(y=up_to(occupancy.live, title="chains in flight"), marks=[live], height=110))
    return Chart(title="Requests running and queued", x=_time(occupancy), panels=panels)


def causes(occupancy: Occupancy) -> Chart:
    """For every engine and shared device the share of each bin that it was busy, or idle for each cause; and the overlap."""
    edges, panels = occupancy.edges_s, []
    devices = {f"device {name}": device for name, device in occupancy.devices.items() if len(device.roles) > 1}
    places: dict[str, list[tuple[str, str, Array]]] = {}
    for place, spent in {**occupancy.engines, **devices}.items():
        idle = [(*CAUSES[cause], spent.idle_s[cause]) for cause in CAUSES if cause in spent.idle_s]
        places[place] = [("busy", "green", spent.busy_s), *idle]
    places["engines at the same time"] = [("two or more engines busy", "teal", occupancy.overlap)]
    for place, parts in places.items() if edges[-1] > edges[0] else ():
        sums = (f"{name} {plain(seconds.sum())} s ({plain_percent(seconds.sum() / occupancy.span_s)})" for name, _, seconds in parts)
        shares = [(name, hue, seconds / np.diff(edges)) for name, hue, seconds in parts]
        y = ChartAxis(title=f"{place}: {', '.join(said for said in sums if not said.endswith('(0.0%)'))}", form=SHARE, at=(0, 1))
        panels.append(Panel(y=y, marks=stacked(edges, shares), height=64))
    return Chart(
        title="Busy and idle, by cause",
        x=_time(occupancy),
        panels=panels,
        note="An engine is busy while at least one request is at it. A device that serves several engines is busy while one of them is.",
    )


def _time(occupancy: Occupancy) -> ChartAxis:
    return ChartAxis(title="seconds since the start", high=occupancy.span_s or 1.0)


def tokens(ledger: Ledger) -> list[Chart]:
    """What became of the tokens that each engine sampled, and where the prompt tokens that it read came from."""
    engines = ledger.engines
    shares = (("useful", USEFUL), ("verification", ("verification",)), ("wasted", WASTED))
    note = f"Of all output tokens {', '.join(f'{plain_percent(ledger.share(*outcomes))} {name}' for name, outcomes in shares)}."
    if why := sorted({each.why_unrecorded for each in engines.values()} - {""}):
        note += f" Not traced: {'; '.join(why)}."
    return [
        _of_engines("Output tokens by outcome", TOKENS, {role: each.output for role, each in engines.items()}, note),
        _of_engines("Prompt tokens by source", PROMPT_TOKENS, {role: each.input for role, each in engines.items()}),
    ]


def _of_engines(title: str, words: Mapping[str, tuple[str, str]], rows: Mapping[str, Mapping[str, int]], note: str = "") -> Chart:
    """A bar for each engine, its parts one after the other."""
    panels = []
    for role, counts in rows.items():
        parts, whole = [(*words[outcome], count) for outcome, count in counts.items() if count], sum(counts.values()) or 1
        edges = np.cumsum([0, *(count for _, _, count in parts)]) / whole
        marks = [
            Mark(kind="bars", name=name, hue=hue, x=[begin], until=[end], y=[1], low=[0])
            for (name, hue, _), (begin, end) in zip(parts, pairwise(edges), strict=True)
        ]
        said = "; ".join(f"{name} {count:,} ({plain_percent(count / whole)})" for name, _, count in parts)
        panels.append(Panel(y=ChartAxis(title=f"{role}: {said or 'none'}", at=(-1,)), marks=marks, height=26))
    return Chart(title=title, x=ChartAxis(title="share of its tokens", form=SHARE, high=1.04), panels=panels, note=note)


def latency_table(latencies: Sequence[Latency], stages: Sequence[str]) -> Table:
    """A table of all percentiles by stage and quantity, in milliseconds."""
    order = {name: place for place, name in enumerate((*stages, *QUANTITIES))}
    rows = tuple(
        (p.stage, TIMES[p.quantity], f"{p.count:,}", *(plain(1000 * value) for value in (p.mean, p.p50, p.p90, p.p99, p.max)))
        for p in sorted(latencies, key=lambda each: (order.get(each.stage, len(order)), each.stage, order[each.quantity]))
    )
    return Table("Call latency (ms)", ("stage", "quantity", "calls", "mean", "p50", "p90", "p99", "max"), rows)


def steps(counts: StepCounts) -> list[Chart]:
    """Acceptance by step and by the verifier's value, and lengths; nothing of a run without steps."""
    charts = []
    if counts.verified.any():
        edges, rejected = np.arange(len(counts.verified) + 1) - 0.5, counts.verified - counts.accepted
        charts.append(acceptance("step number", "step number", edges, counts.accepted, rejected))
    for kind, each in counts.scores.items():
        scale, note = each.scale, "" if each.threshold is None else f" The threshold is {each.threshold:g}."
        bounded = scale.low is not None and scale.high is not None and not scale.is_share
        axis = f"{scale.name}, {scale.low:g} to {scale.high:g}" if bounded else scale.name
        charts.append(acceptance(f"the verifier's value ({kind})", axis, each.edges, each.accepted, each.rejected, note))
    return [*charts, lengths(counts.lengths)] if counts.lengths else charts


def acceptance(by: str, axis: str, edges: Array, accepted: Array, rejected: Array, note: str = "") -> Chart:
    """The share of accepted steps in each bin between `edges`, with Wilson's 95% interval, over how many were accepted and rejected."""
    there = np.flatnonzero(count := accepted + rejected)
    x, share = ((edges[1:] + edges[:-1]) / 2)[there], accepted[there] / count[there]
    bounds = [wilson(float(p), int(n)) for p, n in zip(share, count[there], strict=True)]
    within = Mark(kind="bounds", hue="green", x=x, y=[high for _, high in bounds], low=[low for low, _ in bounds], width=1.5)
    marks = [within, Mark(kind="line", hue="green", x=x, y=share), Mark(kind="dots", hue="green", x=x, y=share)]
    bars = stacked(edges, (("accepted", "green", accepted), ("rejected", "red", rejected)))
    return Chart(
        title=f"Acceptance by {by}",
        x=ChartAxis(title=axis, low=float(edges[0]), high=float(edges[-1])),
        panels=[
            Panel(y=ChartAxis(title="accepted", form=SHARE, high=1.03), marks=marks, height=180),
            Panel(y=up_to(count, title="steps"), marks=bars, height=90),
        ],
        note=f"Upright lines are Wilson's 95% intervals.{note}",
    )


def lengths(counts: Mapping[str, Array]) -> Chart:
    """The tokens of steps and candidates, a line for each kind of text, as shares of that kind.

    It ends where nearly all are shown; guidance, whose length is a setting, is left out beside others.
    """
    shown = {kind: counts[kind] for kind in DECISIONS if kind in counts and (kind != "guidance" or len(counts) == 1)}
    # The least length that 99.5 % of all texts of a kind do not exceed.
    usual = max((int(np.searchsorted(sums := np.cumsum(each), 0.995 * sums[-1])) for each in shown.values()), default=1)
    width, marks = max(1, -(-usual // MAX_BINS)), []
    for kind, each in shown.items():
        binned = np.append(np.add.reduceat(each, np.arange(0, len(each), width)), 0)
        total, mean = int(binned.sum()), float(np.average(np.arange(len(each)), weights=each))
        name, hue = DECISIONS[kind]
        at, y = np.repeat(np.arange(len(binned) + 1) * width, 2)[1:-1], np.repeat(binned / total, 2)
        marks.append(Mark(kind="line", name=f"{name}: {total:,}, mean {mean:.1f}", hue=hue, x=at, y=y, width=1.5))
    high = up_to(np.concatenate([mark.y for mark in marks] or [[]]), title="share of texts", form=SHARE)
    x = ChartAxis(title=f"tokens{f', in bins of {width}' if width > 1 else ''}", high=usual + width)
    return Chart(title="Length of steps and candidates", x=x, panels=[Panel(y=high, marks=marks)])
