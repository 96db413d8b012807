"""What each page shows: a shelf and the parameters of a URL enter, a template with its values leaves."""

import time
from collections.abc import Callable, Mapping
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
from pipeline.errors import UsageError
from pipeline.show.problems import ORDERS, VERDICTS, AskedChains, chain_page, neighbours
from pipeline.show.sections import clock, decisions, engine_setup, notices
from pipeline.show.shelf import Shelf
from pipeline.show.transcripts import Transcript, read_transcripts
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

_SAMPLES = """
SELECT chain_id FROM chains WHERE input_row = (SELECT any_value(input_row) FROM chains WHERE chain_id = $chain) ORDER BY sample_index"""


class Page(Struct, frozen=True):
    """A page to show."""

    template: str
    title: str
    values: Mapping[str, Any] = {}
    active: bool = False
    """Whether a run that it shows goes on, so that a browser asks for it again and again."""
    here: str = ""
    """The run that it is about."""


def runs_page(shelf: Shelf, request: Request) -> Page:
    """The list of runs."""
    runs = shelf.runs()
    active = any(each.state is not None and each.state.state in ACTIVE for each in runs)
    return Page("runs.html", "Runs", {"runs": runs}, active=active)


def run_page(shelf: Shelf, request: Request) -> Page:
    """A run: its line, its figures, and a page of its chains."""
    name, asked = _run_of(request), AskedChains.of(request.query_params)
    run, state = RunFile.read(shelf.folder_of(name)), _state(shelf, name)
    with shelf.query(name) as db:
        found = chain_page(db, asked, state.made_up)
    values = {"run": name, "state": state, "found": found, "asked": asked, "orders": ORDERS}
    values |= {"verdicts": [each for each in VERDICTS if each in found.counts or each == asked.verdict]}
    values |= {"setup": [decisions(run), engine_setup(run)], "notices": notices(run, state.state)}
    return Page("run.html", name, values, active=state.state in ACTIVE, here=name)


def figures_page(shelf: Shelf, request: Request) -> Page:
    """The summary of a run as `pipeline show` prints it; a part of its page, as it takes longer."""
    name = _run_of(request)
    folder = shelf.folder_of(name)
    with shelf.query(name, takes_long=True) as db:
        found = summary_of(folder, read_work(db))
    told = headline(found)
    head = Table(told.head, ("", "", ""), tuple((row.name, row.figure, row.text) for row in told.rows))
    tables = [head, summary_tables.facts(found), summary_tables.engines(found), summary_tables.stages(found)]
    return Page("figures.html", f"Figures of {name}", {"run": name, "tables": tables, "about": told.about}, here=name)


def chain_of(shelf: Shelf, request: Request) -> Page:
    """A chain step by step, with the way to those before and after it in the list that it was chosen from."""
    name, chain, asked = _run_of(request), _given(request, "chain"), AskedChains.of(request.query_params)
    run, state = RunFile.read(shelf.folder_of(name)), _state(shelf, name)
    with shelf.query(name) as db:
        transcript = _transcript(db, run, state, chain)
        place = neighbours(db, asked, chain, state.made_up)
        samples = [each for (each,) in db.stream(_SAMPLES, chain=chain)]
    values = {"run": name, "chain": chain, "transcript": transcript, "place": place, "asked": asked, "samples": samples}
    values |= {"clock": clock(run) if run.virtual_time else ""}
    return Page("chain.html", f"{chain} of {name}", values, here=name)


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
    "/chain": chain_of,
}
"""The pages by their paths."""
