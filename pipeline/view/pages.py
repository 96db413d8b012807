"""What each page shows: a shelf and the parameters of a URL enter, a template with its values leaves."""

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import Request

from pipeline.analysis import summary_tables
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.headline.baseline import summary_of
from pipeline.analysis.headline.lines import headline
from pipeline.analysis.progress import ACTIVE
from pipeline.analysis.time.work import read_work
from pipeline.errors import UsageError
from pipeline.report.figures.result import KINDS
from pipeline.report.report import report
from pipeline.report.run_sections import ReportOptions, decisions, engine_setup, notices
from pipeline.report.transcripts import Transcript, read_transcripts
from pipeline.store.query import TABLES, Query, columns_of_view
from pipeline.store.run_file import RunFile
from pipeline.system.local_web import is_foreign
from pipeline.view.chains import ORDER_WORDS, PAGE, VERDICTS, AskedChains, chain_page, neighbours
from pipeline.view.pairs import GROUPS, PAIR_ORDERS, AskedPairs, pair_page
from pipeline.view.shelf import Shelf
from pipeline.view.sql import EXAMPLES, sql_answer


class Page(Struct, frozen=True):
    """A page to show."""

    template: str
    title: str
    values: Mapping[str, Any] = {}
    plots: bool = False
    """Whether it draws."""
    active: bool = False
    """Whether a run that it shows goes on, so that it is asked for again and again."""
    here: str = ""
    """The run that it is about."""
    html: str | None = None
    """The whole page, of one that has no template."""


def runs_page(shelf: Shelf, request: Request) -> Page:
    """The list of runs."""
    runs = shelf.runs()
    active = any(each.state is not None and each.state.state in ACTIVE for each in runs)
    return Page("runs.html", "Runs", {"runs": runs}, active=active)


def run_page(shelf: Shelf, request: Request) -> Page:
    """A run: its line, its figures, and a page of its chains."""
    name, asked = _run_of(request), AskedChains.of(request.query_params)
    listed = shelf.listed(name)
    if listed.state is None:
        raise UsageError(listed.flaw)
    run = RunFile.read(shelf.folder_of(name))
    active = listed.state.state in ACTIVE
    with shelf.query(name) as db:
        found = chain_page(db, asked)
        live = shelf.live.look(shelf.folder_of(name), db, run) if active else None
    values = {"run": name, "state": listed.state, "found": found, "asked": asked, "orders": ORDER_WORDS, "verdicts": VERDICTS}
    values |= {"per_page": PAGE, "setup": [decisions(run), engine_setup(run)], "notices": notices(run), "others": _others(shelf, name)}
    return Page("run.html", name, values | {"live": live}, active=active, here=name)


def figures_page(shelf: Shelf, request: Request) -> Page:
    """The summary of a run as `pipeline show` prints it; a part of its page, as it takes longer."""
    name = _run_of(request)
    folder = shelf.folder_of(name)
    with shelf.query(name, of_user=True) as db:
        found = summary_of(folder, read_work(db))
    told = headline(found)
    head = Table(told.head, ("", "", ""), tuple((row.name, row.figure, row.text) for row in told.rows))
    tables = [head, summary_tables.facts(found), summary_tables.engines(found), summary_tables.stages(found)]
    return Page("figures.html", f"Figures of {name}", {"run": name, "tables": tables, "about": told.about}, here=name)


def report_of(shelf: Shelf, request: Request) -> Page:
    """The report on a run, made anew."""
    name = _run_of(request)
    if is_foreign(request.headers):
        raise UsageError(f"the report of {name} takes a while to make: it is made from the page of the run alone")
    return Page("", name, html=report([shelf.folder_of(name)], ReportOptions()))


def chain_of(shelf: Shelf, request: Request) -> Page:
    """A chain step by step, with the way to those before and after it in the list that it was chosen from."""
    name, chain, asked = _run_of(request), _given(request, "chain"), AskedChains.of(request.query_params)
    folder = shelf.folder_of(name)
    with shelf.query(name) as db:
        transcript = _transcript(db, RunFile.read(folder), name, chain)
        place = neighbours(db, asked, chain)
        [(problem, row)] = db.stream("SELECT problem_id, input_row FROM chains WHERE chain_id = $chain LIMIT 1", chain=chain)
        samples = [each for (each,) in db.stream("SELECT DISTINCT chain_id FROM chains WHERE input_row = $row ORDER BY 1", row=row)]
    values = {"run": name, "chain": chain, "transcript": transcript, "place": place, "asked": asked, "problem": problem}
    values |= {"samples": samples, "others": _others(shelf, name)}
    return Page("chain.html", f"{chain} of {name}", values, here=name)


def pair_of(shelf: Shelf, request: Request) -> Page:
    """Two runs: the chains that both have or, of one chain, both transcripts."""
    names, asked, chain = request.query_params.getlist("run"), AskedPairs.of(request.query_params), request.query_params.get("chain")
    if len(set(names)) != 2 or len(names) != 2:
        raise UsageError(f"{request.url.path}: {len(set(names))} runs; two are shown side by side")
    cards = [RunFile.read(shelf.folder_of(name)) for name in names]
    values: dict[str, Any] = {"runs": names, "asked": asked, "groups": GROUPS, "orders": PAIR_ORDERS, "per_page": PAGE, "chain": chain}
    values |= {"same": cards[0].input.sha256 == cards[1].input.sha256, "states": [shelf.listed(name).state for name in names]}
    if chain is None:
        with shelf.query(*names) as db:
            return Page("pair.html", " and ".join(names), values | {"found": pair_page(db, asked)})
    transcripts = []
    for name, run in zip(names, cards, strict=True):
        with shelf.query(name) as db:
            transcripts.append(_transcript(db, run, name, chain))
    return Page("pair.html", f"{chain} of {' and '.join(names)}", values | {"transcripts": transcripts})


def sql_page(shelf: Shelf, request: Request) -> Page:
    """A query over runs, with its result; one that comes from another site's page is shown, and not asked."""
    given = request.query_params
    names, sql, draw = given.getlist("run"), given.get("sql", "").strip(), given.get("draw", "")
    values: dict[str, Any] = {
        "chosen": names,
        "names": list(shelf.folders()),
        "sql": sql,
        "draw": draw,
        "kinds": KINDS,
        "examples": EXAMPLES,
    }
    values |= {"columns": {table: columns_of_view(table) for table in TABLES}, "answer": None, "flaw": "", "command": ""}
    if sql and names and is_foreign(request.headers):
        values["flaw"] = "This query comes from another site: read it before you run it."
    elif sql and names:
        paths = [str(shelf.folder_of(name)) for name in names]
        values["command"] = shlex.join(["pipeline", "query", *paths, sql, "-o", "result.csv"])
        try:
            with shelf.query(*names, of_user=True) as db:
                values["answer"] = sql_answer(db, sql, draw)
        except UsageError as error:
            values["flaw"] = str(error)
    elif sql:
        values["flaw"] = "Choose a run to ask."
    answer = values["answer"]
    return Page("sql.html", "SQL", values, plots=answer is not None and answer.figure is not None, here=names[0] if len(names) == 1 else "")


def _transcript(db: Query, run: RunFile, name: str, chain: str) -> Transcript:
    """A chain in full; raises `UsageError` where the run has no such chain yet."""
    if not db.scalar("SELECT count(*) FROM chains WHERE chain_id = $chain", chain=chain):
        raise UsageError(f"{name}: no chain {chain!r} that has ended")
    [transcript] = read_transcripts(db, run, {chain: ()}).transcripts
    return transcript


def _others(shelf: Shelf, name: str) -> list[str]:
    return [each for each in shelf.folders() if each != name]


def _run_of(request: Request) -> str:
    return _given(request, "run")


def _given(request: Request, name: str) -> str:
    """A parameter of the URL; raises `UsageError` where it is missing."""
    if not (value := request.query_params.get(name)):
        raise UsageError(f"{request.url.path}: the parameter `{name}` is missing")
    return value


def age(unix_ns: int) -> str:
    """How long ago that was, such as `3 h`; empty for 0."""
    seconds = max(0.0, time.time() - unix_ns / 1e9)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}" if unix_ns else ""
    return "now" if unix_ns else ""


def bytes_of(size: float) -> str:
    """A size with three digits and its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


PAGES: dict[str, Callable[[Shelf, Request], Page]] = {
    "/": runs_page,
    "/run": run_page,
    "/figures": figures_page,
    "/report": report_of,
    "/chain": chain_of,
    "/pair": pair_of,
    "/sql": sql_page,
}
"""The pages by their paths."""
