"""Tables: figures and the results of queries enter, text that is ready to print leaves, on a terminal, as Markdown, CSV or JSON. Pure.

The tables of the papers are the queries of `papers.sql`, each below lines with its name, title and source. They are over the table `runs`,
see `papers.make_runs`, and over the tables of the run folders; PIVOT gives them the layout of their paper.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.errors import UsageError, boundary, did_you_mean

PAPERS = Path(__file__).with_name("papers.sql")
THOUSAND = 999.5
"""What is 1,000 with three digits."""
TOO_FEW = "too few"
"""Said in the place of an interval of too few problems."""


class Table(Struct, frozen=True):
    """A table whose cells are text, ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What to know when reading it."""
    bold: tuple[int, ...] = ()
    """The numbers of rows that stand out."""


class NamedQuery(Struct, frozen=True):
    """A query whose result is a table."""

    title: str
    sql: str
    source: str = ""
    """Paper, table or figure, and section."""
    note: str = ""


def named_queries() -> dict[str, NamedQuery]:
    """The tables of the papers by name."""
    parts = re.split(r"^-- table: (.*)\n", PAPERS.read_text(), flags=re.MULTILINE)
    return {name: _query(name, sql) for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def read_query(name: str) -> NamedQuery:
    """The query of a table, by the table's name or from an SQL file; raises `UsageError` where there is none."""
    if name.endswith(".sql"):
        with boundary(UsageError, f"{name}: cannot be read", foreign=(OSError, UnicodeDecodeError)):
            return _query(Path(name).stem, Path(name).read_text())
    if (found := named_queries()).get(name) is None:
        raise UsageError(f"--table {name}: no such table; {did_you_mean(name, found)}, or an SQL file of yours")
    return found[name]


def _query(name: str, text: str) -> NamedQuery:
    head = dict(re.findall(r"^-- (title|source|note): (.*)$", text, re.MULTILINE))
    return NamedQuery(**{"title": name} | head, sql=text)


def plain(value: float | None) -> str:
    """A number without an interval: three digits, from 1,000 on a whole number; `-` for None."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"


def plain_percent(value: float | None) -> str:
    """A share in percent without an interval; `-` for None."""
    return "-" if value is None else f"{value:.1%}"


FORMS: Mapping[str, Callable[[float], str]] = {"number": plain, "percent": plain_percent, "reward": "{:.3f}".format}
"""How a figure is printed, by its `form`."""


def size(count: float) -> str:
    """A number of bytes with three digits and its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < THOUSAND:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{plain(count)} TB"


def times(over: float | None, under: float | None) -> str:
    """The ratio of `over` to `under`, with two decimals; `-` where one of them is None or 0."""
    return f"{over / under:.2f}" if over and under else "-"


def printed(value: Any) -> str:
    """A value of a query's result: of a figure its text."""
    if isinstance(value, Mapping) and "text" in value:
        return str(value["text"] or plain(value.get("value")))
    return "-" if value is None else plain(value) if isinstance(value, float) else str(value)


def as_markdown(found: Iterable[str | Table]) -> str:
    """Paragraphs and tables as Markdown."""
    said = (part if isinstance(part, str) else markdown_table(part) for part in found)
    return "\n\n".join(said) + "\n"


def markdown_table(table: Table) -> str:
    """One table as Markdown, with its title above and its note below."""
    lines = [f"**{table.title}**", ""]
    lines.append("| " + " | ".join(map(_cell, table.columns)) + " |")
    lines.append("|" + "---|" * len(table.columns))
    for place, row in enumerate(table.rows):
        lines.append("| " + " | ".join(f"**{_cell(cell)}**" if place in table.bold else _cell(cell) for cell in row) + " |")
    return "\n".join([*lines, "", table.note] if table.note else lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def as_json(found: Any) -> str:
    """A table or a comparison as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Write rows as CSV, with a header of `columns`."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows((columns, *rows))
    return out.getvalue()
