"""`pipeline graph check|show|prompt GRAPH`: the compiled plan as text, JSON or a drawing, and its prompts. No engine starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.cli.commands import check_output, command, json_option, option, overwrite_option
from pipeline.cli.located import ProblemFile
from pipeline.cli.options import engines_option, model_option, preset_option, run_options, settings_option, with_models, with_preset
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.engines.registry import notices
from pipeline.errors import UsageError
from pipeline.files import whole_file
from pipeline.graph.files import find_file
from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from pipeline.show.graph_mermaid import mermaid
from pipeline.show.graph_text import text
from pipeline.show.prompt import ShownPrompt, problem_in, shown_prompt
from pipeline.text import sanitize

SUFFIXES = {".txt": "text", ".mmd": "mermaid", ".mermaid": "mermaid"}


graph_argument = click.argument("graph", type=click.Path(path_type=Path))


@command()
@graph_argument
@engines_option
@model_option
@settings_option
@preset_option
@json_option
def check(graph: Path, engines: Path | None, as_json: bool, **options: Any) -> None:
    """Check GRAPH, a file or a bundled name, and its engines, and print the compiled plan."""
    plan = _plan(graph, engines, options)
    if as_json:
        print_page(msgspec.json.encode(msgspec.to_builtins(plan), order="sorted"))
        return
    print_line(f"{find_file(graph, 'graph')}: OK")
    print_page(text(plan))


@command()
@graph_argument
@click.argument("stage")
@option("--problem", metavar="TEXT", help="Use this problem.")
@option("-i", "--input", "problems", type=ProblemFile(), metavar="FILE", help="Use a problem from this file.")
@option("--row", type=click.IntRange(1), metavar="N", default=1, show_default=True, help="Row of the input file.")
@run_options("columns")
@option("--thought", multiple=True, metavar="TEXT", help="A previous step. May be repeated.")
@option("--candidate", "candidates", multiple=True, metavar="TEXT", help="A candidate to be judged. May be repeated.")
@engines_option
@model_option
@settings_option
@preset_option
@json_option
def prompt(
    graph: Path,
    stage: str,
    problem: str | None,
    problems: Path | None,
    row: int,
    columns: dict[str, str],
    thought: tuple[str, ...],
    candidates: tuple[str, ...],
    engines: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the prompt of STAGE of GRAPH exactly as its engine gets it, as text and token ids."""
    plan = _plan(graph, engines, options)
    if (problems is None) == (problem is None):
        raise UsageError("name the problem, by --problem TEXT, or by --input FILE and --row N")
    asked = Problem(1, "1", str(problem), None) if problems is None else problem_in(str(problems), read_problems(problems, columns), row)
    _print_prompt(shown_prompt(plan, str(graph), stage, asked, thought=thought, candidates=candidates), as_json)


def _plan(graph: Path, engines: Path | None, options: Mapping[str, Any]) -> Plan:
    """The compiled graph, after what is to be said about it."""
    bound = with_models([graph], {**with_preset([graph], options), "engines": engines})
    plan = load_plan(graph, bound.get("planned_engines") or engines, bound["settings"])
    for notice in notices(plan.engines):
        print_notice(notice)
    return plan


def _print_prompt(shown: ShownPrompt, as_json: bool) -> None:
    if as_json:
        print_page(msgspec.json.encode(shown, order="deterministic"))
        return
    stops = f", ends after {' or '.join(map(repr, shown.stop))}" if shown.stop else ""
    asked = f"one of {', '.join(map(repr, shown.options))}" if shown.options else f"at most {shown.max_tokens:,} tokens{stops}"
    print_line(f"stage {shown.stage}, engine {shown.role}: a prompt of {len(shown.ids):,} tokens, and then {asked}")
    print_page(f"{shown.text}\n")
    print_line(f"token ids: {' '.join(map(str, shown.ids))}")
    if shown.options:
        print_line(f"options: {', '.join(f'{text!r} {id_}' for text, id_ in shown.options.items())}")


@command()
@graph_argument
@engines_option
@settings_option
@preset_option
@option("--format", "form", type=click.Choice(["text", "mermaid"]), help="Output format.  [default: by the suffix of --output, else text]")
@option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file.  [default: stdout]")
@overwrite_option
def show(graph: Path, form: str | None, output: Path | None, overwrite: bool, **options: Any) -> None:
    """Draw the compiled GRAPH: its stages in the order they run, loops and their stop conditions, conditions, engines."""
    form = form or _form(output)
    if output is not None:
        check_output(output, overwrite)
    plan = load_plan(graph, options["engines"], with_preset([graph], options)["settings"])
    page = (text if form == "text" else mermaid)(plan)
    if output is None:
        print_page(page)
        return
    with whole_file(output) as file:
        file.write(sanitize(page).encode())


def _form(output: Path | None) -> str:
    if output is None:
        return "text"
    if output.suffix not in SUFFIXES:
        raise UsageError(f"--output {output}: its name must end in {', '.join(SUFFIXES)}, or say --format")
    return SUFFIXES[output.suffix]
