"""Tables and comparisons as text: Markdown, CSV for spreadsheets, JSON for programs. Pure."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.compare.figures import Figures
from pipeline.analysis.quality.estimates import Estimate


def as_markdown(found: Iterable[str | Table]) -> str:
    """Paragraphs and tables as Markdown."""
    said = (part if isinstance(part, str) else markdown_table(part) for part in found)
    return "\n\n".join(said) + "\n"


def markdown_table(table: Table) -> str:
    """One table as Markdown, with its title above and its note below."""
    lines = [f"**{table.title}**", ""]
    lines.append("| " + " | ".join(map(_cell, table.columns)) + " |")
    lines.append("|" + "---|" * len(table.columns))
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
    return "\n".join([*lines, "", table.note] if table.note else lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def as_json(comparison: Comparison) -> str:
    """The comparison as indented JSON, its keys in alphabetical order."""
    found = msgspec.json.encode(comparison, order="sorted", enc_hook=lambda figures: figures.as_dict())
    return msgspec.json.format(found, indent=2).decode() + "\n"


def table_json(table: Table) -> str:
    """One table as indented JSON: its title, columns, rows and note, all of them text."""
    return msgspec.json.format(msgspec.json.encode(table), indent=2).decode() + "\n"


def table_csv(table: Table) -> str:
    """One table as CSV, its cells as they are printed."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows((table.columns, *table.rows))
    return out.getvalue()


def as_csv(comparison: Comparison) -> str:
    """The runs as CSV, one row each. An estimate takes three columns: its value, `_low` and `_high`. Differences are over the baseline."""
    rows = [dict(_flat("", run)) for run in comparison.runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[row.get(name) for name in names] for row in rows])
    return out.getvalue()


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The columns of a value and their names: three of an estimate, those of all fields of a struct, mapping or sequence, or one."""
    if isinstance(value, Estimate):
        yield from ((path, value.value), (f"{path}_low", value.low), (f"{path}_high", value.high))
    elif isinstance(value, Figures | Struct | Mapping):
        fields = value.as_dict() if isinstance(value, Figures) else structs.asdict(value) if isinstance(value, Struct) else value
        for name, inner in fields.items():
            yield from _flat(f"{path}.{name}".removeprefix("."), inner)
    elif isinstance(value, tuple) and not all(isinstance(each, str) for each in value):
        for place, each in enumerate(value):
            yield from _flat(f"{path}.{place}", each)
    else:
        yield path, " ".join(value) if isinstance(value, tuple) else value
