"""Tables by a knob: runs of one system that differ in one param, or in their schedule. Pure."""

from collections.abc import Iterator

from pipeline.analysis.compare.cells import Table, number, percent
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.compare.differences import Difference
from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.compare.groups import Group, Member
from pipeline.analysis.compare.systems import system

FIGURES = {
    "threshold": "SpecReason figure 5; figure 4 of its first version",
    "first_steps": "SpecReason figure 6",
    "token_budget": "SpecReason figure 4b",
    "candidates": "SpecCoT figure 4b and c, SCoT 4.3",
    "guidance_tokens": "SpecCoT figure 4a",
}
"""Where the papers show what a param does."""


def by_knob(c: Comparison) -> Iterator[Table]:
    """One table for each param, and for the schedule, in which runs of one system differ alone."""
    for group in c.groups:
        if group.by == "schedule" or group.by.startswith("params."):
            yield _table(c, group)


def _table(c: Comparison, group: Group) -> Table:
    runs = {run.run: run for run in c.runs}
    name, base = group.by.removeprefix("params."), runs[c.baseline].graph
    first = runs[group.members[0].run]
    peers = any(base in member.peers for member in group.members)
    columns = (name, "accuracy", "gain", "latency s", "r", "tokens", "steps by the draft", "fallback", "change")
    rows = tuple(_row(c, member, runs[member.run], first.run) + ((_gap(c, member, base),) if peers else ()) for member in group.members)
    title = f"{system(first)}: by {name}" + (f" (see {FIGURES[name]})" if name in FIGURES else "")
    over = f" The last column: accuracy over that of {base} at the same {name}." if peers else ""
    note = f"Gain, r and change of the fallback rate are over the first row.{over}"
    return Table(title, (*columns, f"gain over {base}") if peers else columns, rows, note)


def _row(c: Comparison, member: Member, run: Compared, first: str) -> tuple[str, ...]:
    over = _over(c, run.run, first)
    return (
        member.value,
        percent(run.accuracy),
        percent(over.accuracy_gain, sign=True) if over else "-",
        number(run.latency_s),
        number(over.speed_up) if over else "-",
        number(run.tokens),
        percent(run.draft_share),
        percent(run.fallback_rate),
        percent(over.fallback_change, sign=True) if over else "-",
    )


def _gap(c: Comparison, member: Member, base: str) -> str:
    over = _over(c, member.run, member.peers.get(base, ""))
    return percent(over.accuracy_gain, sign=True) if over else "-"


def _over(c: Comparison, run: str, other: str) -> Difference | None:
    return next((each for each in c.differences.get(run, ()) if each.over == other), None)
