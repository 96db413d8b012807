"""A comparison as text: Markdown for people, CSV for spreadsheets, JSON for programs. Pure."""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.compare.knobs import by_knob
from pipeline.analysis.compare.steps import draft_lengths, pairs, quality, reflective, selection
from pipeline.analysis.compare.systems import attempts, by_batch_size, by_resources, lengths, systems, tokens
from pipeline.analysis.quality.estimates import Estimate
from pipeline.text import cell

INTERVALS = (
    "Brackets: 95 % intervals. Of an accuracy: Wilson's, or with several samples a problem that of problems as clusters; of all "
    "else: bootstrap over problems, the same problems for both runs of a difference."
)
SIMULATED = (
    "Simulated runs: times are those of a simulated clock, and answers are right only as far as the references are simulated too; "
    "a replay's answers are those of the recorded run."
)


def tables(c: Comparison) -> tuple[Table, ...]:
    """All tables that these runs can fill."""
    whole = [systems(c), tokens(c), lengths(c), attempts(c), *by_resources(c), *by_batch_size(c), *by_knob(c)]
    return tuple(table for table in (*whole, pairs(c), selection(c), quality(c), draft_lengths(c), reflective(c)) if table.rows)


def markdown(comparison: Comparison) -> str:
    """The tables, what an interval is, and what to know before believing a difference."""
    simulated = [SIMULATED] if any(run.simulated for run in comparison.runs) else []
    parts = [f"Baseline: {_cell(comparison.baseline)}. {INTERVALS}", *simulated, *map(markdown_table, tables(comparison))]
    if comparison.flags:
        flags = (f"- {_cell(flag.run)}: {_cell(flag.what)}" for flag in comparison.flags)
        parts.append("\n".join(["Not the same in all runs:", "", *flags]))
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """One table, with its title over it and its note under it."""
    lines = [f"**{_cell(table.title)}**", ""]
    lines.append("| " + " | ".join(map(_cell, table.columns)) + " |")
    lines.append("|" + "---|" * len(table.columns))
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
    return "\n".join([*lines, "", _cell(table.note)] if table.note else lines)


def as_json(comparison: Comparison) -> str:
    """All of it."""
    return msgspec.json.format(msgspec.json.encode(comparison, order="sorted"), indent=2).decode() + "\n"


def as_csv(comparison: Comparison) -> str:
    """One row a run; an estimate takes three columns: its value, `_low` and `_high`. Differences are over the baseline."""
    rows = [dict(_flat("", run)) for run in comparison.runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[_harmless(row.get(name)) for name in names] for row in rows])
    return out.getvalue()


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Columns of a value: those of an estimate, those of all fields or entries with the path before them, or itself."""
    if isinstance(value, Estimate):
        yield from ((path, value.value), (f"{path}_low", value.low), (f"{path}_high", value.high))
    elif isinstance(value, Struct | Mapping):
        fields = structs.asdict(value) if isinstance(value, Struct) else value
        for name, inner in fields.items():
            yield from _flat(f"{path}.{name}".removeprefix("."), inner)
    else:
        yield path, value


def _cell(text: str) -> str:
    """Text that stays in its cell, and is no HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _harmless(value: Any) -> Any:
    return cell(value) if isinstance(value, str) else value
