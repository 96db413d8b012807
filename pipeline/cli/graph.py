"""`pipeline check GRAPH` and `pipeline graph GRAPH`: the compiled plan as text, JSON or a drawing. No engine starts."""

from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.bundled import find_file
from pipeline.cli.located import ProblemFile, RunFolder
from pipeline.cli.main import print_line, print_page
from pipeline.cli.run import column_option, preset_option, settings_option, with_preset
from pipeline.cli.runs.folder import print_flaws
from pipeline.cli.terminal.notices import print_notice
from pipeline.data.many_files import open_files
from pipeline.data.problems import Problem
from pipeline.drawing.counts import RunCounts, count_run
from pipeline.drawing.diagram import diagram
from pipeline.drawing.dot import dot, svg
from pipeline.drawing.mermaid import mermaid
from pipeline.drawing.prompt import ShownPrompt, problem_in, shown_prompt
from pipeline.drawing.run_plan import engines_of, plan_of_run
from pipeline.drawing.text import text
from pipeline.errors import UsageError
from pipeline.export.output import check_output, whole_file
from pipeline.graph.plan import Block, LoopNode, Plan, StageNode
from pipeline.redaction import redact, redact_all
from pipeline.session.preflight import load_plan, notices
from pipeline.text import sanitize

SUFFIXES = {".txt": "text", ".mmd": "mermaid", ".mermaid": "mermaid", ".svg": "svg", ".dot": "dot", ".gv": "dot"}
FORMS = ("text", "mermaid", "svg", "dot")


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--engines", type=click.Path(path_type=Path), metavar="FILE", help="Engines file instead of the graph's own, or replay:RUN.")
@settings_option
@preset_option
@click.option("--json", "as_json", is_flag=True, help="Print the compiled plan, or the prompt, as JSON.")
@click.option(
    "--show-prompt", "stage", metavar="STAGE", help="Print the prompt of this stage exactly as its engine gets it: text and token ids."
)
@click.option("--input", "problems", type=ProblemFile(), metavar="FILE", help="--show-prompt: use a problem from this file.")
@click.option("--row", type=click.IntRange(1), default=1, show_default=True, help="--show-prompt: row of the input file.")
@column_option
@click.option("--problem", metavar="TEXT", help="--show-prompt: use this problem.")
@click.option("--thought", multiple=True, metavar="TEXT", help="--show-prompt: a previous step; may be repeated.")
@click.option("--candidate", "candidates", multiple=True, metavar="TEXT", help="--show-prompt: a candidate to be judged; may be repeated.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def check(graph: Path, engines: Path | None, as_json: bool, stage: str | None, problems: Path | None, **options: Any) -> None:
    """Check GRAPH, a file or a bundled name, and its engines, and print the compiled plan. Exit code 2 if anything is invalid."""
    asked = with_preset(options)
    plan = load_plan(graph, engines, asked.pop("settings"))
    for notice in notices(plan):
        print_notice(notice)
    if stage is not None:
        _print_prompt(_prompt(plan, graph, stage, problems, **asked), as_json)
        return
    if as_json:
        print_page(msgspec.json.encode(redact_all(msgspec.to_builtins(plan)), order="sorted"))
        return
    print_line(f"{find_file(graph, 'graph')}: OK. Graph {plan.name}, digest {plan.digest}")
    for line in _plan_lines(plan):
        print_line(line)


def _prompt(
    plan: Plan,
    graph: Path,
    stage: str,
    problems: Path | None,
    *,
    row: int,
    columns: dict[str, str],
    problem: str | None,
    thought: tuple[str, ...],
    candidates: tuple[str, ...],
    debug: bool,
) -> ShownPrompt:
    if (problems is None) == (problem is None):
        raise UsageError("--show-prompt: say for which problem, by --input FILE and --row N, or by --problem TEXT")
    asked = Problem(1, "1", str(problem), None) if problems is None else problem_in(open_files([problems], columns), row)
    return shown_prompt(plan, str(graph), stage, asked, thought=thought, candidates=candidates)


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


def _plan_lines(plan: Plan) -> list[str]:
    """The plan as lines of text: engines by role, then stages, those inside a loop indented."""
    roles = [f"  {role}: {spec.__struct_config__.tag} {getattr(spec, 'model', '')}" for role, spec in plan.engines.items()]
    return ["engines:", *roles, "stages, in the order they run:", *_block_lines(plan.block, "  ")]


def _block_lines(block: Block, indent: str) -> list[str]:
    lines: list[str] = []
    for level in block.levels:
        for node in level:
            when = f" when {node.condition.stage} {'accepted' if node.condition.accepted else 'rejected'}" if node.condition else ""
            if isinstance(node, LoopNode):
                exits = ", ".join(name for name in node.until.__struct_fields__ if getattr(node.until, name))
                body, direct = _block_lines(node.body, indent + "  "), node.direct
                lines.append(f"{indent}{node.name}: repeat until {exits}{when}")
                if direct is not None:
                    before = [] if direct.guidance is None else [f"{indent}  {_stage_line(direct.guidance)}, before the first drafted step"]
                    alone = [f"{indent}  {_stage_line(stage)}, without speculation" for stage in (direct.response, direct.boundary)]
                    body = [*before, *body, *alone]
                lines += body
            else:
                lines.append(f"{indent}{_stage_line(node)}{when}")
    return lines


def _stage_line(node: StageNode) -> str:
    adapter = "" if node.spec.adapter is None else f" with the adapter {node.spec.adapter}"
    return f"{node.name}: {node.spec.__struct_config__.tag} by {getattr(node.spec, 'engine', '')}{adapter}"


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--run", type=RunFolder(), metavar="RUN", help="Annotate with the counts and mean times of this run.")
@click.option("--engines", type=click.Path(path_type=Path), metavar="FILE", help="Engines file instead of the graph's own.")
@settings_option
@preset_option
@click.option(
    "--format", "form", type=click.Choice(FORMS), help="Output format; svg needs Graphviz.  [default: by the suffix of --output, else text]"
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file.  [default: stdout]")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def graph(graph: Path, run: Path | None, form: str | None, output: Path | None, force: bool, **options: Any) -> None:
    """Draw the compiled GRAPH: its stages as they run, loops and their exits, conditions, engines.

    With --run the params and engines of the run are used. Exit code 2 if GRAPH is invalid or RUN is of another graph.
    """
    form = form or _form(output)
    if output is not None:
        check_output(output, force)
    page = redact(_page(load_plan(graph, options["engines"], with_preset(options)["settings"]), run, form))
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


def _page(plan: Plan, run: Path | None, form: str) -> str:
    played, counts = engines_of(plan), None
    if run is not None:
        print_flaws([run])
        plan, played, counts = _with_run(plan, run)
    if form == "text":
        return text(plan, played, counts)
    draw = {"mermaid": mermaid, "dot": dot, "svg": svg}[form]
    return draw(diagram(plan, played, counts))


def _with_run(plan: Plan, run: Path) -> tuple[Plan, dict[str, str], RunCounts]:
    found = plan_of_run(plan, run)
    if found.differences:
        print_notice(f"{run} had {', '.join(found.differences)}: drawn as it was")
    return found.plan, found.engines, count_run(run, found.plan, found.run)
