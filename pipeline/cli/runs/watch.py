"""`pipeline watch RUN`: how far a run is, from any other terminal or machine that sees its folder."""

import sys
import time
from contextlib import nullcontext

import click
import msgspec
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.analysis.progress import ACTIVE, RecentRates, RunProgress, duration, run_progress
from pipeline.analysis.resources import of_answers
from pipeline.cli.commands import command, option
from pipeline.cli.console import PlainConsole
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.options import json_option
from pipeline.cli.terminal import print_line, print_page
from pipeline.store.read import check_folder

COUNTS = ("over", "steps", "calls")


@command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS", help="Seconds between updates.")
@option("--once", is_flag=True, help="Print the current state and exit.")
@json_option
def watch(run: Located, interval: float, once: bool, as_json: bool) -> None:
    """Watch the run in the folder RUN until it ends; the run may be on another machine. With --json each update is one object."""
    check_folder(run.path)
    rates = RecentRates("over")
    live = Live(console=PlainConsole(), auto_refresh=False) if sys.stdout.isatty() and not (as_json or once) else None
    with live or nullcontext():
        while True:
            run.refresh()
            found = run_progress(run.path)
            rates.look(time.monotonic(), {name: float(getattr(found, name)) for name in COUNTS})
            if as_json:
                print_page(msgspec.json.encode(found))
            elif live is None:
                print_line(progress_line(found, rates))
            else:
                live.update(_panel(found, rates), refresh=True)
            if once or found.state not in ACTIVE:
                return
            time.sleep(interval)


def progress_line(found: RunProgress, rates: RecentRates) -> str:
    """How far the run is, in one line."""
    of = "" if found.chains is None else f"/{found.chains:,}"
    parts = [f"{found.run}: {found.state}, {found.over:,}{of} chains", f"{found.failed:,} failed", f"{found.steps:,} steps"]
    if found.graded:
        parts.append(of_answers(f"{found.correct:,} of {found.graded:,} right", found.answers))
    per_s = {name: rates.per_s(name) for name in COUNTS}
    if per_s["over"] is not None:
        parts.append(f"{per_s['over']:.3g} problems/s, {per_s['steps']:.3g} steps/s, {per_s['calls']:.3g} calls/s")
    if per_s["over"] and found.chains is not None:
        parts.append(f"ETA {duration((found.chains - found.over) / per_s['over'])}")
    return " · ".join(parts)


def _panel(found: RunProgress, rates: RecentRates) -> Group:
    said = Text(progress_line(found, rates))
    if found.chains is None:
        return Group(said)
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=found.chains, completed=found.over))
    return Group(bar, said)
