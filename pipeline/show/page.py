"""HTML that needs no network and no other file: a template and its values enter, a page with its style, script and policy leaves.

Text that comes from a run cannot become markup: jinja2 escapes it, and makes control characters visible. Only the script of the page may
run: its content security policy names its hash.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.analysis.progress import duration
from pipeline.analysis.tables import Table, plain, plain_percent
from pipeline.files import sanitize
from pipeline.show.charts import DECISIONS
from pipeline.show.maths import answer, with_maths
from pipeline.show.plot import path
from pipeline.show.problems import ORDERS, VERDICTS

_HERE = Path(__file__).parent


def page(template: str, title: str, **values: Any) -> str:
    """The HTML of a page; `values` are what its template names, with defaults for `run`, `root`, `active` and `served`."""
    defaults = {"run": "", "root": "", "active": False, "served": False}
    return str(_environment().get_template(template).render(defaults | values, title=title, policy=policy()))


@cache
def policy() -> str:
    """The content security policy of every page."""
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'"
    )


def numeric(table: Table) -> list[bool]:
    """For each column of a table whether it holds numbers, or nothing."""
    cells = [[cell for cell in column if cell not in ("", "baseline")] for column in zip(*table.rows, strict=True)]
    return [all(cell[0] in "0123456789+-" for cell in column) for column in cells] or [False] * len(table.columns)


def prose(text: str) -> Markup:
    """A paragraph as HTML: escaped, with text in backticks as code."""
    parts = re.split(r"`([^`\n]+)`", sanitize(text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts))


def url(path: str, params: Mapping[str, Any]) -> str:
    """The URL of a page: `path` with parameters."""
    return f"{path}?{urlencode(params)}"


def moment(unix_ns: int) -> str:
    """A moment as date and time of this machine's place, such as `2026-11-30 08:30`; empty for 0."""
    return f"{datetime.fromtimestamp(unix_ns / 1e9):%Y-%m-%d %H:%M}" if unix_ns else ""


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """What renders the templates; text is escaped, control characters are made visible."""
    loader = FileSystemLoader(_HERE)
    environment = Environment(autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"style": Markup(_asset("page.css")), "script": Markup(_asset("page.js"))}
    environment.globals |= {"url": url, "path": path, "kinds": DECISIONS, "orders": ORDERS, "verdicts": VERDICTS}
    environment.filters |= {"numeric": numeric, "prose": prose, "maths": with_maths, "answer": answer, "plain": plain}
    environment.filters |= {"percent": plain_percent, "duration": duration}
    environment.filters |= {"json": json.dumps, "moment": moment}
    environment.finalize = lambda value: sanitize(value) if type(value) is str else value
    return environment
