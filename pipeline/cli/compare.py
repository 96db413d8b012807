"""`pipeline compare RUN...`: the tables that the papers print, from run folders alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipeline.analysis.compare.compare import compare as compared
from pipeline.analysis.compare.runs import read_runs
from pipeline.analysis.compare.tables import as_csv, as_json, markdown
from pipeline.analysis.quality.invariance import invariance as compare_chains
from pipeline.analysis.quality.invariance import invariance_json, invariance_markdown
from pipeline.cli.folder import print_flaws
from pipeline.cli.main import print_page
from pipeline.errors import UsageError, reason
from pipeline.files import new_file
from pipeline.text import sanitize

SUFFIXES = {".md": "markdown", ".csv": "csv", ".json": "json"}
FORMATS: dict[str, Callable[[Any], str]] = {"markdown": markdown, "csv": as_csv, "json": as_json}
INVARIANCE_FORMATS: dict[str, Callable[[Any], str]] = {"markdown": invariance_markdown, "json": invariance_json}


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--baseline",
    metavar="RUN|GRAPH",
    help="What speed-ups and gains are over.  [default: graph `target`, the first run without drafts, or the first]",
)
@click.option("--invariance", is_flag=True, help="Of two runs of one graph: the share of equal chains, and where the others part.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="markdown", show_default=True, help="What is printed.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Write there too, as its name ends: .md, .csv or .json. May be given several times.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def compare(runs: tuple[Path, ...], baseline: str | None, invariance: bool, form: str, output: tuple[Path, ...], debug: bool) -> None:
    """Compare the run folders RUN... over the same data. Exit code 2 when they cannot be compared."""
    for path in output:
        if path.suffix not in SUFFIXES:
            raise UsageError(f"--output {path}: its name must end in {', '.join(SUFFIXES)}")
    forms = INVARIANCE_FORMATS if invariance else FORMATS
    if "csv" not in forms and "csv" in (form, *(SUFFIXES[path.suffix] for path in output)):
        raise UsageError("--invariance: has the formats markdown and json")
    print_flaws(runs)
    found: Any = _invariance(runs, baseline) if invariance else compared(read_runs(runs), baseline)
    for path in output:
        try:
            with new_file(path) as draft:
                draft.write_text(sanitize(forms[SUFFIXES[path.suffix]](found)), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {path}: cannot be written: {reason(error)}") from error
    print_page(forms[form](found))


def _invariance(runs: tuple[Path, ...], baseline: str | None) -> Any:
    if len(runs) != 2 or baseline is not None:
        raise UsageError("--invariance: takes two runs and no baseline")
    return compare_chains(*runs)
