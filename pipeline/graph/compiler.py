"""From spec to plan: every rule a graph must obey beyond the types of its fields. Pure: equal specs give equal plans."""

from collections.abc import Iterator, Mapping
from itertools import count

from msgspec import structs

from pipeline.errors import GraphError, did_you_mean
from pipeline.graph.convert import Flaws
from pipeline.graph.direct import BOUNDARY, RESPONSE, direct_stages, speculation
from pipeline.graph.loader import digest
from pipeline.graph.needs import check_needs
from pipeline.graph.plan import Block, Condition, Direct, LoopNode, Plan, StageNode
from pipeline.graph.spec import EngineSpec, GraphSpec, RepeatSpec, StageSpec, UntilSpec
from pipeline.graph.yaml_file import with_lines

Stages = Mapping[str, StageSpec]
Ancestors = Mapping[str, frozenset[str]]
JUDGES = "a `choose`, `score`, `likelihood` or `vote` stage"
"""How an error names the built-in stages that judge."""


@with_lines
def compile_graph(graph: GraphSpec, where: str) -> Plan:
    """The plan of `graph`; `where` is its file, for the `GraphError`, or the `GraphErrors`, that name what is wrong."""
    place, flaws = f"{where}: $.stages", Flaws()
    with flaws.noted():
        block = _block(graph.stages, place, count(), inside_repeat=False)
    flaws.check(_check_finish, graph.stages, place)
    engines = graph.engines
    assert isinstance(engines, dict), "the loader binds the roles"
    roles = tuple(dict.fromkeys(_roles(graph.stages, engines, place, flaws)))
    flaws.raise_any()
    speculate = speculation(graph.stages)
    if any(isinstance(spec, RepeatSpec) and spec.speculate != "always" for spec in graph.stages.values()):
        block, roles = _switched(graph.stages, block, roles, place)
    plan = Plan(
        name=graph.name,
        prompts=graph.prompts,
        block=block,
        engines={role: engines[role] for role in roles},
        params=graph.params,
        digest=digest(graph),
        speculate=speculate,
    )
    check_needs(plan, {role: spec.cannot for role, spec in plan.engines.items()})
    return plan


def _switched(stages: Stages, block: Block, roles: tuple[str, ...], where: str) -> tuple[Block, tuple[str, ...]]:
    """`block` of a loop with `speculate: never` or `auto`, and those of the `roles` that it needs.

    Never: the response, and the answer where that is cut. Auto: the loop has the response and the boundary too, and the guidance, which is
    for drafts alone.
    """
    specs = direct_stages(stages, where)
    ranks = count(sum(1 for _ in block.stages()))
    response, boundary = (StageNode(name, spec, None, next(ranks)) for name, spec in zip((RESPONSE, BOUNDARY), specs, strict=True))
    nodes = [node for level in block.levels for node in level]
    if speculation(stages) == "never":
        answers = [_after_response(node) for node in nodes if isinstance(node, StageNode) and node.spec.answers]
        alone = [structs.replace(response, rank=0), *answers]
        return Block(tuple((node,) for node in alone)), tuple(dict.fromkeys(str(node.spec.role) for node in alone))
    guidance = next((node for node in nodes if isinstance(node, StageNode) and node.spec.purpose == "guide"), None)
    direct = Direct(response, boundary, guidance)
    switched = [structs.replace(node, direct=direct) if isinstance(node, LoopNode) else node for node in nodes if node is not guidance]
    return Block(tuple((node,) for node in switched)), roles


def _after_response(node: StageNode) -> StageNode:
    return structs.replace(node, rank=1, spec=structs.replace(node.spec, after=RESPONSE))


def _block(stages: Stages, where: str, ranks: Iterator[int], *, inside_repeat: bool) -> Block:
    """The checked `stages` of a graph or of a `repeat`, in levels; each stage takes its rank from `ranks`."""
    flaws, after = Flaws(), dict[str, tuple[str, ...]]()
    for name in stages:
        with flaws.noted():
            after[name] = _after(name, stages, where)
    flaws.raise_any()
    depth = _depths(after, where)
    ancestors = _ancestors(after, depth)
    for name, spec in stages.items():
        flaws.check(_check_stage, name, spec, stages, ancestors, where, inside_repeat)
    flaws.check(_check_order, stages, ancestors, where)
    levels: list[list[StageNode | LoopNode]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, spec in sorted(stages.items(), key=lambda item: depth[item[0]]):
        with flaws.noted():
            levels[depth[name]].append(_node(name, spec, where, ranks))
    flaws.raise_any()
    writer = next((s for level in levels for s in level if isinstance(s, StageNode) and s.spec.leading_steps), None)
    return Block(tuple(map(tuple, levels)), writer, writer.spec.leading_steps if writer else 0)


def _node(name: str, spec: StageSpec, where: str, ranks: Iterator[int]) -> StageNode | LoopNode:
    condition = None
    if spec.when:
        judge, _, verdict = spec.when.partition(".")
        condition = Condition(judge, verdict == "accepted")
    if isinstance(spec, RepeatSpec):
        body = _block(spec.stages, f"{where}.{name}.stages", ranks, inside_repeat=True)
        _check_repeat(spec, f"{where}.{name}")
        return LoopNode(name, spec.until, body, condition)
    return StageNode(name, spec, condition, next(ranks))


def _after(name: str, stages: Stages, where: str) -> tuple[str, ...]:
    after = stages[name].after
    after = (after,) if isinstance(after, str) else after
    for other in after:
        if other not in stages:
            raise GraphError(f"{where}.{name}.after", f"no stage `{other}` in this block; {did_you_mean(other, stages.keys() - {name})}")
    return after


def _depths(after: Mapping[str, tuple[str, ...]], where: str) -> dict[str, int]:
    """Longest path to each stage; a cycle is an error that shows it."""
    depth: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> int:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise GraphError(f"{where}.{name}.after", f"stages wait for each other in a cycle: {circle}; only a `repeat` may loop")
        if name not in depth:
            depth[name] = max((visit(other, (*path, name)) + 1 for other in after[name]), default=0)
        return depth[name]

    for name in after:
        visit(name, ())
    return depth


def _ancestors(after: Mapping[str, tuple[str, ...]], depth: Mapping[str, int]) -> dict[str, frozenset[str]]:
    ancestors: dict[str, frozenset[str]] = {}
    for name in sorted(after, key=lambda n: depth[n]):
        ancestors[name] = frozenset(after[name]).union(*(ancestors[other] for other in after[name]))
    return ancestors


def _check_stage(name: str, spec: StageSpec, stages: Stages, ancestors: Ancestors, where: str, inside_repeat: bool) -> None:
    before = {other: stages[other] for other in ancestors[name]}
    place = f"{where}.{name}"
    _check_when(name, spec, stages, before, place)
    if spec.judges:
        _check_judge(spec, before, place)
    if spec.drafts and not any(s.judges and name in ancestors[other] for other, s in stages.items()):
        raise GraphError(place, f"nothing judges what this stage drafts; add {JUDGES} after it")
    if not spec.answers and (finish := next((other for other, s in before.items() if finishes(s)), None)):  # it may be cut before
        raise GraphError(place, f"is never reached: `{finish}` before it finishes the chain")
    if flaw := next(spec.flaws(before, inside_repeat=inside_repeat), None):
        field, what = flaw
        raise GraphError(f"{place}.{field}" if field else place, what)
    if inside_repeat and (isinstance(spec, RepeatSpec) or finishes(spec)):
        raise GraphError(place, "is not allowed inside a `repeat`; put it after")


def _check_when(name: str, spec: StageSpec, stages: Stages, before: Stages, place: str) -> None:
    if spec.when is None:
        return
    judge, _, verdict = spec.when.partition(".")
    if verdict not in ("accepted", "rejected"):
        raise GraphError(f"{place}.when", f"expected STAGE.accepted or STAGE.rejected, got {spec.when!r}")
    judges = [other for other, s in stages.items() if s.judges]
    if judge not in stages:
        raise GraphError(f"{place}.when", f"no stage `{judge}` in this block; {did_you_mean(judge, judges)}")
    if not stages[judge].judges:
        raise GraphError(f"{place}.when", f"`{judge}` gives no verdict; name {JUDGES}")
    if verdict == "rejected" and not stages[judge].may_reject:
        raise GraphError(f"{place}.when", f"`{judge}` never rejects; drop its `reject: false` or this stage")
    if judge not in before:
        raise GraphError(f"{place}.when", f"`{name}` does not wait for `{judge}`; add `after: {judge}`")


def _check_judge(spec: StageSpec, before: Stages, place: str) -> None:
    if loop := next((other for other, s in before.items() if isinstance(s, RepeatSpec)), None):
        raise GraphError(place, f"cannot follow `{loop}`: a `repeat` leaves no candidates to judge")
    if not any(s.drafts for s in before.values()):
        raise GraphError(place, "has nothing to judge; put it `after` a `draft` stage")


def _check_order(stages: Stages, ancestors: Ancestors, where: str) -> None:
    """Stages that commit text must wait for one another, or exclude one another by their verdicts."""
    writers = [name for name, s in stages.items() if s.writes or s.judges or s.answers or isinstance(s, RepeatSpec)]
    for i, a in enumerate(writers):
        for b in writers[i + 1 :]:
            if a not in ancestors[b] and b not in ancestors[a] and not _exclusive(stages[a], stages[b]):
                raise GraphError(
                    f"{where}.{b}", f"`{a}` and `{b}` both continue the thought and neither waits for the other; add `after: {a}`"
                )


def _exclusive(a: StageSpec, b: StageSpec) -> bool:
    """Whether one of them runs when a judge accepts and the other when the same judge rejects."""
    return bool(a.when and b.when and a.when != b.when and a.when.partition(".")[0] == b.when.partition(".")[0])


def _check_repeat(spec: RepeatSpec, place: str) -> None:
    if spec.until == UntilSpec():
        raise GraphError(f"{place}.until", f"has no stop condition; set one of {', '.join(f'`{f}`' for f in UntilSpec.__struct_fields__)}")
    body = spec.stages
    always = any(s.writes and s.when is None for s in body.values())
    for name, judge in body.items():
        if judge.may_reject and not always and not _goes_on(name, body):
            raise GraphError(
                f"{place}.stages.{name}",
                f"a rejection leaves no step, so the loop would never make progress; add a `generate` stage with `when: {name}.rejected`",
            )
    if not always and not any(s.judges for s in body.values()):
        raise GraphError(f"{place}.stages", "nothing in this loop writes a step; add a `generate` stage")


def _goes_on(judge: str, body: Stages) -> bool:
    """Whether a step is committed in the same round after `judge` has rejected: by a stage that writes, or by a judge that continues."""
    after = [(name, spec) for name, spec in body.items() if spec.when == f"{judge}.rejected"]
    return any(spec.writes or (spec.judges and (not spec.may_reject or _goes_on(name, body))) for name, spec in after)


def _check_finish(stages: Stages, where: str) -> None:
    if not any(finishes(s) and s.when is None for s in stages.values()):
        raise GraphError(where, "no stage finishes the chain; end with an `answer` stage")


def finishes(spec: StageSpec) -> bool:
    """Whether every chain ends with this stage: it finishes a chain, and runs without a condition."""
    return spec.when is None and spec.finishes


def _roles(stages: Stages, engines: Mapping[str, EngineSpec], where: str, flaws: Flaws) -> Iterator[str]:
    """The role of each stage, in the order of the file; one that no engine has is a flaw."""
    for name, spec in stages.items():
        if isinstance(spec, RepeatSpec):
            if spec.adapter is not None:
                flaws.add(GraphError(f"{where}.{name}.adapter", "a `repeat` calls no engine; set the adapter on one of its stages"))
            if spec.prompts is not None:
                flaws.add(GraphError(f"{where}.{name}.prompts", "a `repeat` sends nothing to an engine; set the prompts on its stages"))
            yield from _roles(spec.stages, engines, f"{where}.{name}.stages", flaws)
        elif (role := spec.role) is not None:
            if role not in engines:
                flaws.add(GraphError(f"{where}.{name}.engine", f"no engine named `{role}`; {did_you_mean(role, engines)}"))
                continue
            flaws.check(_check_adapter, spec, engines[role], f"{where}.{name}.adapter")
            yield role


def _check_adapter(spec: StageSpec, engine: EngineSpec, where: str) -> None:
    known = engine.adapter_names
    if spec.adapter is None or known is None or spec.adapter in known:
        return
    there = f"it has {', '.join(f'`{name}`' for name in known)}" if known else "its engines file lists none under `adapters`"
    raise GraphError(where, f"the engine `{spec.role}` has no adapter named `{spec.adapter}`; {there}")
