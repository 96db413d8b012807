"""What each page shows: a shelf and the parameters of a URL enter, a template with its values leaves."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs
from starlette.requests import Request

from pipeline.analysis import summary_tables
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.headline.baseline import summary_of
from pipeline.analysis.headline.lines import headline
from pipeline.analysis.progress import ACTIVE
from pipeline.analysis.run_list import RunState
from pipeline.analysis.time.work import read_work
from pipeline.errors import PipelineError, UsageError
from pipeline.report.figures.result import KINDS
from pipeline.report.report import report
from pipeline.report.run_sections import ReportOptions, clock, decisions, engine_setup, notices
from pipeline.report.transcripts import Transcript, read_transcripts
from pipeline.store.query import TABLES, Query, columns_of_view
from pipeline.store.run_file import RunFile
from pipeline.system.local_web import is_foreign
from pipeline.view.asked import AskedRows
from pipeline.view.chains import ORDERS, VERDICTS, chain_page, neighbours
from pipeline.view.pairs import GROUPS, PAIR_ORDERS, pair_page
from pipeline.view.shelf import Shelf
from pipeline.view.sql import EXAMPLES, sql_answer

_SAMPLES = """
SELECT chain_id FROM chains WHERE input_row = (SELECT any_value(input_row) FROM chains WHERE chain_id = $chain) ORDER BY sample_index"""


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
    name, asked = _run_of(request), AskedRows.of(request.query_params, VERDICTS, ORDERS)
    folder, state = shelf.folder_of(name), _state(shelf, name)
    run, active = RunFile.read(folder), state.state in ACTIVE
    with shelf.query(name) as db:
        found = chain_page(db, asked, _made_up(db, [state]))
        live = shelf.live.look(folder, db, run, state) if active else None
    values = {"run": name, "state": state, "found": found, "asked": asked, "orders": ORDERS}
    values |= {"verdicts": {each: each for each in VERDICTS if each in found.counts or each == asked.verdict}}
    values |= {"setup": [decisions(run), engine_setup(run)], "notices": notices(run, state.state), "others": _others(shelf, name)}
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
    name, chain, asked = _run_of(request), _given(request, "chain"), AskedRows.of(request.query_params, VERDICTS, ORDERS)
    run, state = RunFile.read(shelf.folder_of(name)), _state(shelf, name)
    with shelf.query(name) as db:
        transcript = _transcript(db, run, state, chain)
        place = neighbours(db, asked, chain, _made_up(db, [state]))
        samples = [each for (each,) in db.stream(_SAMPLES, chain=chain)]
    values = {"run": name, "chain": chain, "transcript": transcript, "place": place, "asked": asked, "samples": samples}
    values |= {"clock": clock(run) if run.virtual_time else "", "others": _others(shelf, name)}
    return Page("chain.html", f"{chain} of {name}", values, here=name)


def pair_of(shelf: Shelf, request: Request) -> Page:
    """Two runs: the chains that both have or, of one chain, both transcripts."""
    names, chain = request.query_params.getlist("run"), request.query_params.get("chain")
    asked = AskedRows.of(request.query_params, GROUPS, PAIR_ORDERS)
    if len(set(names)) != 2 or len(names) != 2:
        raise UsageError(f"{request.url.path}: {len(set(names))} runs; two are shown side by side")
    cards = [RunFile.read(shelf.folder_of(name)) for name in names]
    states = [_state(shelf, name) for name in names]
    values: dict[str, Any] = {"runs": names, "asked": asked, "orders": PAIR_ORDERS, "chain": chain, "states": states}
    values |= {"same": cards[0].input.sha256 == cards[1].input.sha256}
    if chain is None:
        with shelf.query(*names) as db:
            found = pair_page(db, asked, _made_up(db, states))
        groups = {each: words for each, words in GROUPS.items() if each != "ungraded" or each in (*found.counts, asked.verdict)}
        return Page("pair.html", " and ".join(names), values | {"found": found, "groups": groups})
    transcripts = []
    for name, run, state in zip(names, cards, states, strict=True):
        with shelf.query(name) as db:
            transcripts.append(_transcript(db, run, state, chain))
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
        try:
            paths = [str(shelf.folder_of(name)) for name in names]
            values["command"] = shlex.join(["pipeline", "query", *paths, sql, "-o", "result.csv"])
            with shelf.query(*names, of_user=True) as db:
                values["answer"] = sql_answer(db, sql, draw)
        except PipelineError as error:
            values["flaw"] = str(error)
    elif sql:
        values["flaw"] = "Choose a run to ask."
    answer = values["answer"]
    return Page("sql.html", "SQL", values, plots=answer is not None and answer.figure is not None, here=names[0] if len(names) == 1 else "")


def _transcript(db: Query, run: RunFile, state: RunState, chain: str) -> Transcript:
    """A chain in full; raises `UsageError` where the run has no such chain yet."""
    if not db.scalar("SELECT count(*) FROM chains WHERE chain_id = $chain", chain=chain):
        raise UsageError(f"{state.folder}: no chain {chain!r} that has ended")
    [transcript] = read_transcripts(db, run, {chain: ()}).transcripts
    says_nothing = state.made_up and transcript.verdict in ("right", "wrong")
    return structs.replace(transcript, verdict="simulated") if says_nothing else transcript


def _state(shelf: Shelf, name: str) -> RunState:
    """The state of a run; raises `UsageError` where it cannot be read."""
    listed = shelf.listed(name)
    if listed.state is None:
        raise UsageError(listed.flaw)
    return listed.state


def _made_up(db: Query, states: Sequence[RunState]) -> list[str]:
    """The runs of `db`, which are in these states, in which right and wrong say nothing."""
    return [name for name, state in zip(db.names, states, strict=True) if state.made_up]


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
