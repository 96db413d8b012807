"""`pipeline graph GRAPH`: the compiled graph as a drawing, with a run's numbers on it."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.main import say, show
from pipeline.drawing.counts import RunCounts, count_run
from pipeline.drawing.dot import dot, svg
from pipeline.drawing.mermaid import mermaid
from pipeline.drawing.run_plan import engines_of, plan_of_run
from pipeline.drawing.sheet import sheet
from pipeline.drawing.text import text
from pipeline.errors import UsageError
from pipeline.export.output import check_output, whole_file
from pipeline.graph.plan import Plan
from pipeline.redaction import redact
from pipeline.session.preflight import load_plan
from pipeline.text import sanitize

SUFFIXES = {".txt": "text", ".mmd": "mermaid", ".mermaid": "mermaid", ".svg": "svg", ".dot": "dot", ".gv": "dot"}
FORMS = ("text", "mermaid", "svg", "dot")


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--run", type=click.Path(path_type=Path), metavar="RUN", help="With the counts and mean times of this run of it.")
@click.option("--engines", type=click.Path(path_type=Path), metavar="FILE", help="Engines file instead of the graph's own.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A param, or engines.ROLE.NAME=VALUE.")
@click.option("--format", "form", type=click.Choice(FORMS), help="svg needs Graphviz.  [default: as --output ends, else text]")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there instead of to stdout.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def graph(graph: Path, run: Path | None, form: str | None, output: Path | None, force: bool, **options: Any) -> None:
    """Draw the compiled GRAPH: its stages as they run, loops and their exits, conditions, engines.

    With --run the params and engines are those of the run. Exit code 2 when GRAPH is wrong or RUN is of another graph.
    """
    form = form or _form(output)
    if output is not None:
        check_output(output, force)
    page = redact(_page(load_plan(graph, options["engines"], options["settings"]), run, form))
    if output is None:
        show(page)
        return
    with whole_file(output) as file:
        file.write(sanitize(page).encode())


def _form(output: Path | None) -> str:
    if output is None:
        return "text"
    if output.suffix not in SUFFIXES:
        raise UsageError(f"--output {output}: its name must end in {', '.join(SUFFIXES)}, or say --format")
    return SUFFIXES[output.suffix]


def _page(plan: Plan, run: Path | None, form: str) -> str:
    played, counts = engines_of(plan), None
    if run is not None:
        plan, played, counts = _with_run(plan, run)
    if form == "text":
        return text(plan, played, counts)
    draw = {"mermaid": mermaid, "dot": dot, "svg": svg}[form]
    return draw(sheet(plan, played, counts))


def _with_run(plan: Plan, run: Path) -> tuple[Plan, dict[str, str], RunCounts]:
    found = plan_of_run(plan, run)
    if found.differences:
        say(f"{run} had {', '.join(found.differences)}: drawn as it was")
    return found.plan, found.engines, count_run(run, found.plan, found.run)
