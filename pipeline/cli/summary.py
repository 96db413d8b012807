"""The summary a run ends with, as tables on stdout, and where the answers are."""

import json
import os
import shlex
import sys
from pathlib import Path

from rich import box
from rich import table as rich

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.summary import Summary
from pipeline.analysis.summary_tables import engines, facts, stages
from pipeline.cli.console import Plain
from pipeline.cli.main import tell


def print_summary(summary: Summary, folder: Path, *, simulated: bool, answers: str | None) -> None:
    """Print `summary` and how to open the run folder."""
    console = Plain()
    console.print(_facts(facts(summary, simulated=simulated, answers=answers)))
    console.print(_numbers(engines(summary)))
    console.print(_numbers(stages(summary)))
    tell(f"answers: {folder}/chains/*.parquet (steps/ and calls/ beside it). To look at them:")
    place, columns = json.dumps(str(folder / "chains"), ensure_ascii=False), '["problem_id", "answer", "correct"]'
    code = f"import pyarrow.parquet as p; print(p.read_table({place}, columns={columns}))"
    tell(f"  {os.path.relpath(sys.executable)} -c {shlex.quote(code)}")


def _facts(table: Table) -> rich.Table:
    """Two columns without a head, under the title."""
    shown = rich.Table(title=table.title, box=box.SIMPLE, show_header=False)
    shown.add_column(style="bold")
    shown.add_column()
    return _filled(shown, table)


def _numbers(table: Table) -> rich.Table:
    """A name, and numbers to its right; no title."""
    first, *others = table.columns
    shown = rich.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column(first, style="bold")
    for name in others:
        shown.add_column(name, justify="right")
    return _filled(shown, table)


def _filled(shown: rich.Table, table: Table) -> rich.Table:
    for row in table.rows:
        shown.add_row(*row)
    return shown
