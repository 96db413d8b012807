"""The demands of a graph on each of its engines before these are chosen: a graph enters, contexts and numbers of sequences leave.

The graph file is read, no engine is.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from pipeline.engine import Asks
from pipeline.errors import UsageError, did_you_mean
from pipeline.graph.loader import PRESET, Graph, load_graph, outline
from pipeline.graph.plan import Block, LoopNode, Plan, StageNode
from pipeline.graph.plugins import stage_specs
from pipeline.graph.spec import EngineSpec

_PROBLEM_TOKENS = 1024
"""Room for the problem and the words around it: an assumption."""
_ROUNDED_TO = 256
_MAX_SEQUENCES = 1024


class Demand(Struct, frozen=True):
    """The demands of stages on one engine."""

    context: int | None
    """Tokens of the longest sequence; None: not known, because some stage has no limit."""
    calls: int
    """Most calls at once."""
    sequences: int
    """Most sequences at once; a call of n candidates has n."""

    def with_(self, other: "Demand") -> "Demand":
        """The demands of both together, one at a time."""
        contexts = None if self.context is None or other.context is None else max(self.context, other.context)
        return Demand(contexts, max(self.calls, other.calls), max(self.sequences, other.sequences))


class _AnyEngine(EngineSpec, frozen=True, kw_only=True, tag="any"):
    """Stands for an engine that is not placed yet; it has whatever adapter a stage names."""

    model: str = ""

    @property
    def adapter_names(self) -> None:
        return None


class Demands(Struct, frozen=True):
    """The demands of graphs on the engines of each role, and the plans that say so."""

    plans: tuple[Plan, ...]
    by_role: dict[str, Demand]
    """The roles that are used, in the order in which stages name them."""


def demands(graphs: Sequence[Graph], settings: Sequence[str], batch_size: int, models: Mapping[str, object]) -> Demands:
    """What `graphs` need from their roles, which have these `models`, with this many chains at once; raises `UsageError` for a role that
    none of them has.

    Of several graphs each gets the `settings` that it has a param or stage for.
    """
    known = dict.fromkeys(role for graph in graphs for role in outline(graph).roles)
    if unknown := [role for role in models if role not in known]:
        names = " and ".join(_name(graph) for graph in graphs)
        raise UsageError(f"--model {unknown[0]}=...: {names} has no role `{unknown[0]}`; {did_you_mean(unknown[0], known)}")
    named = {role: str(models.get(role, "")) for role in known}
    plans = tuple(_plan(graph, named, settings, strict=len(graphs) == 1) for graph in graphs)
    found: dict[str, Demand] = {}
    for plan in plans:
        for role in plan.engines:
            asked = _demand(plan, role, batch_size)
            found[role] = found[role].with_(asked) if role in found else asked
    return Demands(plans, found)


def _name(graph: Graph) -> str:
    return str(graph.get("name", "the graph")) if isinstance(graph, Mapping) else graph.stem


def _plan(graph: Graph, models: Mapping[str, str], settings: Sequence[str], *, strict: bool) -> Plan:
    """The plan of a graph on engines that are not placed yet."""
    own = tuple(each for each in settings if not each.startswith("engines.") and (strict or _concerns(graph, each)))
    engines = {role: {"backend": "any", "model": model} for role, model in models.items()}
    return load_graph(graph, stage_specs(), {"any": _AnyEngine}, engines=engines, settings=own)


def _concerns(graph: Graph, setting: str) -> bool:
    """True if a graph has the param or the stage that a setting names."""
    name = setting.partition("=")[0]
    names = outline(graph)
    own = name.split(".")[1] in names.stages if name.startswith("stages.") else name in names.params
    return own or setting.startswith(PRESET)


def asks_of(plan: Plan, role: str) -> Asks:
    """The largest request of the stages of `role`."""
    own = [node for node in plan.stages() if node.spec.role == role]
    return Asks(
        max_tokens=max((_tokens(node) or 1 for node in own), default=1),
        context=_context(plan, own),
        candidates=max((node.spec.drafted for node in own), default=0) or 1,
        options=any("options" in node.spec.needs for node in own),
    )


def _demand(plan: Plan, role: str, batch_size: int) -> Demand:
    own = [node for node in plan.stages() if node.spec.role == role]
    texts = max((node.spec.drafted for node in own), default=0) or 1
    return Demand(_context(plan, own), batch_size, max(1, min(batch_size * texts, _MAX_SEQUENCES)))


def _context(plan: Plan, own: Sequence[StageNode]) -> int | None:
    """Tokens of the longest sequence of the stages `own`: the problem, a whole thought, and the longest that is written or shown then."""
    thoughts = [*_budgets(plan.block), *(_tokens(node) for node in plan.stages() if _unit(node) in ("thought", "response"))]
    drafted = [(node.spec.drafted, _tokens(node)) for node in plan.stages() if node.spec.drafted]
    last = [0, *(_tokens(node) for node in own if _unit(node) not in ("thought", "response"))]
    if any(node.spec.judges for node in own):
        last.append(sum(count * (tokens or 0) for count, tokens in drafted))
    sizes = [*thoughts, *last]
    if None in sizes or not thoughts:
        return None
    whole = _PROBLEM_TOKENS + max(each or 0 for each in thoughts) + max(each or 0 for each in last)
    return -(-whole // _ROUNDED_TO) * _ROUNDED_TO


def _unit(node: StageNode) -> object:
    return getattr(node.spec, "unit", None)


def _tokens(node: StageNode) -> int | None:
    """Most tokens that a stage writes; 0 of one that judges, None where it has no limit."""
    if node.spec.judges:
        return 0
    found = getattr(node.spec, "max_tokens", None)
    return found if isinstance(found, int) else None


def _budgets(block: Block) -> Iterator[int | None]:
    """Most tokens of a thought, for each loop."""
    for level in block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                yield node.until.token_budget
                yield from _budgets(node.body)
