"""The stages of a plan, ready to run: a plan and the prompt builder of each engine enter, a `Stage` for each node leaves."""

from collections.abc import Mapping

from pipeline.errors import GraphError
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import stage_kinds
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.stages.base import Stage


def build_stages(plan: Plan, builders: Mapping[str, PromptBuilder], where: str, only: str | None = None) -> dict[str, Stage]:
    """The stages of `plan` by name, or `only` that of one name; `builders` are those of all roles, and of stages with prompts of their own.

    Raises `GraphError` at `where` for a stage that its engine's tokenizer does not suit, such as a verdict that has an option
    which is not a single token.
    """
    most = sum(node.spec.drafted for node in plan.stages())
    built: dict[str, Stage] = {}
    for node in plan.stages():
        if only is not None and node.name != only:
            continue
        stage: Stage = stage_kinds()[node.spec.kind].build(node.name, node.spec, builders)
        if (flaw := stage.check(most)) is not None:
            raise GraphError(f"{where}: stage {node.name}", flaw)
        built[node.name] = stage
    return built
