"""An HTML page in one file: sections of text, tables, figures and transcripts enter, HTML that needs no network leaves.

Text that comes from a run cannot become markup: jinja2 escapes it, or it is JSON that a script inserts with `textContent`. Only the
two scripts of the page itself may run: its content security policy names their hashes.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct
from plotly.offline import get_plotlyjs

from pipeline.analysis.compare.cells import Table
from pipeline.show.transcripts import Transcript
from pipeline.text import sanitize

GENERATOR = "pipeline report"
"""The content of the `generator` element that identifies a page made here."""
_HERE = Path(__file__).parent


class Figure(Struct, frozen=True):
    """A plot with its title and a note."""

    title: str
    plot: Any
    """A `plotly.graph_objects.Figure` whose layout has a height."""
    note: str = ""
    """What a reader must know to read it; shown below the plot."""


class Section(Struct, frozen=True, kw_only=True):
    """A part of a page; its contents are shown in the order of these fields."""

    title: str
    notices: Sequence[str] = ()
    """Warnings, shown in a box."""
    text: Sequence[str] = ()
    """Paragraphs."""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    """Tables; those of more than 16 rows are collapsed at first."""
    transcripts: Sequence[Transcript] = ()
    sections: Sequence["Section"] = ()


def page(title: str, sections: Sequence[Section]) -> str:
    """The HTML of a page with these sections."""
    scripts = {"plotly": asset("plotly.js"), "script": asset("page.js")}
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, scripts.values()))} 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    template = environment().get_template("page.html")
    return template.render(
        title=title,
        sections=sections,
        generator=GENERATOR,
        policy=policy,
        style=Markup(asset("page.css")),
        **{name: Markup(text) for name, text in scripts.items()},
    )


def is_page(start: str) -> bool:
    """Whether `start`, the first characters of a file, are those of a page made by `page`."""
    return f'<meta name="generator" content="{GENERATOR}">' in start


def as_json(value: Any) -> Markup:
    """`value`, such as transcripts, as JSON without characters that mean something in HTML."""
    return _escaped(msgspec.json.encode(value).decode())


def plot_json(figure: Figure) -> Markup:
    """A plot as JSON without characters that mean something in HTML."""
    return _escaped(figure.plot.to_json())


def numeric(table: Table) -> list[bool]:
    """For each column of a table whether it holds numbers; cells without a value are ignored."""
    columns = [[cell for cell in column if cell not in ("", "-", "baseline")] for column in zip(*table.rows, strict=True)]
    return [bool(cells) and all(cell[0] in "0123456789+-" for cell in cells) for cells in columns] or [False] * len(table.columns)


def prose(text: str) -> Markup:
    """A paragraph as HTML: escaped, with text in backticks as code."""
    parts = re.split(r"`([^`\n]+)`", sanitize(text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts))


def _escaped(text: str) -> Markup:
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def asset(name: str) -> str:
    """The text of a file that a page needs: `page.css`, `page.js` or `plotly.js`."""
    return get_plotlyjs() if name == "plotly.js" else (_HERE / name).read_text(encoding="utf-8")


@cache
def environment(*folders: Path) -> Environment:
    """What renders the templates in `folders`, which may import `parts.html`; text is escaped, control characters are made visible."""
    environment = Environment(
        autoescape=True, loader=FileSystemLoader([*folders, _HERE]), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"as_json": as_json, "plot_json": plot_json, "numeric": numeric, "prose": prose}
    environment.finalize = lambda value: sanitize(value) if type(value) is str else value
    return environment
