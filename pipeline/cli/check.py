"""`pipeline check GRAPH`: everything that can be known about a graph before an engine starts."""

from pathlib import Path

import click
import msgspec

from pipeline.cli.main import say, show, tell
from pipeline.engines.registry import cautions
from pipeline.graph.plan import Block, LoopNode, Plan
from pipeline.redaction import redact_all
from pipeline.session.preflight import load_plan


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--engines", type=click.Path(path_type=Path), metavar="FILE", help="Engines file instead of the graph's own, or replay:RUN.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A param, or engines.ROLE.NAME=VALUE.")
@click.option("--json", "as_json", is_flag=True, help="Print the compiled plan as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def check(graph: Path, engines: Path | None, settings: tuple[str, ...], as_json: bool, debug: bool) -> None:
    """Check GRAPH and its engines file, and print the compiled plan. Exit code 2 when something is wrong."""
    plan = load_plan(graph, engines, settings)
    for caution in cautions(plan.engines):
        say(caution)
    if as_json:
        show(msgspec.json.encode(redact_all(msgspec.to_builtins(plan)), order="sorted"))
        return
    tell(f"{graph}: fine. Graph {plan.name}, digest {plan.digest}")
    for line in _lines(plan):
        tell(line)


def _lines(plan: Plan) -> list[str]:
    roles = [f"  {role}: {spec.__struct_config__.tag} {getattr(spec, 'model', '')}" for role, spec in plan.engines.items()]
    return ["engines:", *roles, "stages, in the order they run:", *_block_lines(plan.block, "  ")]


def _block_lines(block: Block, indent: str) -> list[str]:
    lines: list[str] = []
    for level in block.levels:
        for node in level:
            when = f" when {node.condition.stage} {'accepted' if node.condition.accepted else 'rejected'}" if node.condition else ""
            if isinstance(node, LoopNode):
                exits = ", ".join(f"{name}" for name in node.until.__struct_fields__ if getattr(node.until, name))
                lines += [f"{indent}{node.name}: repeat until {exits}{when}", *_block_lines(node.body, indent + "  ")]
            else:
                kind, engine = node.spec.__struct_config__.tag, getattr(node.spec, "engine", "")
                lines.append(f"{indent}{node.name}: {kind} by {engine}{when}")
    return lines
