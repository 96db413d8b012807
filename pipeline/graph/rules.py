"""Every rule that a graph must obey beyond the types of its fields: stages and engines enter, flaws leave, a path and a clause each. Then
what the stages of a plan need of their engines (`StageSpec.needs`), against what these cannot do. Pure.

Each rule assumes that the rules before it hold; the caller takes the first flaw.
"""

from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from pipeline.errors import GraphError, did_you_mean
from pipeline.graph.plan import READINGS, VERDICTS, Plan
from pipeline.graph.spec import CallSpec, EngineSpec, RepeatSpec, StageSpec, UntilSpec, waits_for

Stages = Mapping[str, StageSpec]
CONDITIONS = tuple(name for name in UntilSpec.__struct_fields__ if name != "every")
"""The stop conditions of a loop."""
Flaw = tuple[tuple[str, ...], str]
"""The path of what is wrong, and a clause."""
JUDGES = "a `choose`, `score`, `reward` or `vote` stage"
"""How an error names the built-in stages that judge."""
RESPONSE = "response"
"""Name of the stage that writes where a loop never speculates."""
TRIAL = "trial"
"""Name of the stage that asks for the answer before the thought is over."""
_LACKS = {
    "continues": "cannot continue a partial reply, which stage `{stage}` needs; use a server with /v1/completions, or a graph of whole "
    "thoughts, such as `scot`",
    "options": "returns no log probabilities, which stage `{stage}` needs for its verdict; use a server that returns them, or a judge "
    "without an engine, such as `vote`",
    "logprobs": "returns no log probabilities of what it writes, which stage `{stage}` needs; use an engine that returns them (torch, "
    "vllm, most servers with /v1/completions, a replay of a run that had them), or leave out what needs them",
    "seeds": "does not support seeds: stage `{stage}` samples a different text in every run; use an engine that does if runs must be "
    "reproducible",
}
_UNKNOWN = "does not support `{need}`, which stage `{stage}` {sets}; leave that out or use another engine"
"""What is said of a parameter of sampling, and of the need of a stage of another package."""


def flaws_in(stages: Stages, engines: Mapping[str, EngineSpec]) -> Iterator[Flaw]:
    """The flaws of a graph's `stages` on these `engines`."""
    yield from _block_flaws(stages, inside=False)
    if not any(map(finishes, stages.values())):
        yield (), "no stage finishes the chain; end with an `answer` stage"
    first = {keys[-1]: keys for keys, _ in reversed([*with_keys(stages)])}  # seeds and rows know a name alone
    twice = [keys for keys, _ in with_keys(stages) if keys != first[keys[-1]]]
    yield from ((keys, f"an earlier stage is named `{keys[-1]}`, too; rename one of them") for keys in twice)
    yield from _end_flaws(stages)
    yield from _engine_flaws(stages, engines)
    yield from _speculation_flaws(stages)


def with_keys(stages: Stages, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], StageSpec]]:
    """Every stage and its path, in the order of the file, also in loops."""
    for name, spec in stages.items():
        yield (*above, name), spec
        if isinstance(spec, RepeatSpec):
            yield from with_keys(spec.stages, (*above, name, "stages"))


def finishes(spec: StageSpec) -> bool:
    """True if every chain ends with this stage: it finishes a chain, and runs without a condition."""
    return spec.when is None and spec.finishes


def _block_flaws(stages: Stages, *, inside: bool) -> Iterator[Flaw]:
    """The flaws of the stages of a graph or of a `repeat` (`inside`)."""
    for name, spec in stages.items():
        for other in waits_for(spec):
            if other not in stages:
                yield (name, "after"), f"no stage `{other}` in this block; {did_you_mean(other, stages.keys() - {name})}"
    ancestors: dict[str, frozenset[str]] = {}
    try:
        for name in TopologicalSorter({name: waits_for(spec) for name, spec in stages.items()}).static_order():
            direct = waits_for(stages[name])
            ancestors[name] = frozenset(direct).union(*(ancestors[other] for other in direct))
    except CycleError as error:
        circle = error.args[1][::-1]
        yield (circle[0], "after"), f"stages wait for each other in a cycle: {' -> '.join(circle)}; only a `repeat` may loop"
        return
    for name, spec in stages.items():
        yield from (((name, "when"), what) for what in _when_flaws(name, spec, stages, ancestors[name]))
    for name, spec in stages.items():
        before = {other: stages[other] for other in ancestors[name]}
        yield from (((name, *keys), what) for keys, what in _stage_flaws(spec, stages, before, inside))
        yield from (((name, field) if field else (name,), what) for field, what in spec.flaws(before, inside_repeat=inside))
        if spec.drafts and not any((s.judges or s.gates) and name in ancestors[other] for other, s in stages.items()):
            yield (name,), f"nothing judges what this stage drafts; add {JUDGES} after it"
    writers = [name for name, s in stages.items() if s.writes or s.judges or s.gates or s.answers or isinstance(s, RepeatSpec)]
    for a, b in combinations(writers, 2):
        if a not in ancestors[b] and b not in ancestors[a] and not _exclusive(stages[a], stages[b]):
            yield (b,), f"`{a}` and `{b}` both continue the thought and neither waits for the other; add `after: {a}`"
    for name, spec in stages.items():
        if isinstance(spec, RepeatSpec):
            yield from (((name, "stages", *keys), what) for keys, what in _block_flaws(spec.stages, inside=True))
            yield from (((name, *keys), what) for keys, what in _loop_flaws(spec))


def _exclusive(a: StageSpec, b: StageSpec) -> bool:
    """True if one of them runs when a judge accepts and the other when the same judge rejects."""
    return bool(a.when and b.when and a.when != b.when and a.when.partition(".")[0] == b.when.partition(".")[0])


def _when_flaws(name: str, spec: StageSpec, stages: Stages, before: Collection[str]) -> Iterator[str]:
    """What is wrong with the condition of a stage that waits for those `before`."""
    if spec.when is None:
        return
    other, _, verdict = spec.when.partition(".")
    if verdict not in (*VERDICTS, *READINGS):
        yield f"expected STAGE.accepted, STAGE.rejected, STAGE.flagged or STAGE.passed, got {spec.when!r}"
    elif (judge := stages.get(other)) is None:
        yield f"no stage `{other}` in this block; {did_you_mean(other, stages.keys() - {name})}"
    elif not (judge.judges if verdict in VERDICTS else judge.gates):
        yield f"`{other}` is never {verdict}; name {JUDGES if verdict in VERDICTS else 'a `gate` stage'}"
    elif verdict == "passed" and judge.commits_passed:
        yield f"`{other}` itself makes what passes a step; set its `accept: false`, or drop this stage"
    elif verdict == "rejected" and not judge.may_reject:
        yield f"`{other}` never rejects; drop its `reject: false` or this stage"
    elif other not in before:
        yield f"`{name}` does not wait for `{other}`; add `after: {other}`"


def _stage_flaws(spec: StageSpec, stages: Stages, before: Stages, inside: bool) -> Iterator[Flaw]:
    """What is wrong with a stage that waits for those `before`."""
    loop = next((other for other, s in before.items() if isinstance(s, RepeatSpec)), None)
    if spec.gates and not (spec.after and all(stages[other].drafts or stages[other].gates for other in waits_for(spec))):
        yield ("after",), "a gate looks at a draft; put it right `after` a `draft` stage"
    elif spec.judges and loop is not None:
        yield (), f"cannot follow `{loop}`: a `repeat` leaves no candidates to judge"
    elif spec.judges and not any(s.drafts for s in before.values()):
        yield (), "has nothing to judge; put it `after` a `draft` stage"
    if not spec.answers and (end := next((other for other, s in before.items() if finishes(s)), None)):  # it may be cut before
        yield (), f"is never reached: `{end}` before it finishes the chain"
    if inside and (isinstance(spec, RepeatSpec) or finishes(spec)):
        yield (), "is not allowed inside a `repeat`; put it after"


def _loop_flaws(spec: RepeatSpec) -> Iterator[Flaw]:
    if not any(getattr(spec.until, name) for name in CONDITIONS):
        yield ("until",), f"has no stop condition; set one of {', '.join(f'`{f}`' for f in CONDITIONS)}"
    if end := _dead_end(None, spec.stages):
        what = "so the loop might never make progress; add a `generate` stage"
        yield ("stages", end.partition(".")[0]), f"no step is written when `{end}`, {what} with `when: {end}`"


def _dead_end(condition: str | None, body: Stages) -> str | None:
    """The condition after which a round of a loop that meets `condition` commits no step; None where it always commits one."""
    found = condition
    for name, spec in body.items():
        if spec.when != condition or not (spec.writes or spec.judges or spec.gates):
            continue
        rejections = [f"{name}.rejected"] if spec.may_reject else []
        if spec.gates:
            rejections = [f"{name}.flagged"] if spec.commits_passed else [f"{name}.flagged", f"{name}.passed"]
        ends = [end for each in rejections if (end := _dead_end(each, body)) is not None]
        if not ends:
            return None
        found = ends[0]
    return found


def _end_flaws(stages: Stages) -> Iterator[Flaw]:
    """What is wrong with loops that may end early."""
    for name in [name for name, spec in stages.items() if isinstance(spec, RepeatSpec) and spec.until.tries]:
        if not any(each.answers and each.when is None for each in stages.values()):
            yield (name, "until"), "asks for the answer before the thought is over, of the engine of the `answer` stage; add one after it"
        if any(keys[-1] == TRIAL for keys, _ in with_keys(stages)):
            yield (name, "until"), f"adds a stage named `{TRIAL}`, which asks for the answer; rename yours"


def _engine_flaws(stages: Stages, engines: Mapping[str, EngineSpec]) -> Iterator[Flaw]:
    """What is wrong with the engines that stages name, and with what they say to them."""
    for keys, spec in with_keys(stages):
        if not isinstance(spec, CallSpec):
            continue
        if spec.role not in engines:
            yield (*keys, "engine"), f"no engine named `{spec.role}`; {did_you_mean(spec.role, engines)}"
        elif spec.adapter is not None and spec.adapter not in (known := getattr(engines[spec.role], "adapters", ())):
            there = f"it has {', '.join(f'`{each}`' for each in known)}" if known else "its engines file lists none under `adapters`"
            yield (*keys, "adapter"), f"the engine `{spec.role}` has no adapter named `{spec.adapter}`; {there}"


def _speculation_flaws(stages: Stages) -> Iterator[Flaw]:
    """Why a loop cannot be `speculate: never`: the target alone writes where there is nothing but guidance before the loop and the answer
    after it, and in the loop a `generate` stage, the fallback, whose engine and temperature it uses."""
    for name, loop in stages.items():
        if not isinstance(loop, RepeatSpec) or loop.speculate != "never":
            continue
        guides = [other for other in waits_for(loop) if stages[other].purpose == "guide"]
        plain = {name, *guides[:1], *(other for other, spec in stages.items() if spec.answers and not spec.when)}
        body = loop.stages.values()
        drafts = any(spec.drafts for spec in body) and any(spec.kind == "generate" for spec in body)
        if loop.when or stages.keys() > plain or not drafts or RESPONSE in stages or RESPONSE in loop.stages:
            form = "[guidance], a repeat that drafts and has a `generate` stage, answer"
            yield (name, "speculate"), f"`never` is only for graphs of the form {form}, without a stage named `{RESPONSE}`"
        if loop.until.token_budget is None:
            yield (name, "until"), "`speculate: never` needs a `token_budget`, the maximum number of tokens of the target's response"
        if loop.until.tries:
            what = "`speculate: never` writes one response, which cannot end early; drop `answer_confident` and `answer_stable`"
            yield (name, "until"), what


def unmet_needs(plan: Plan, cannot: Mapping[str, Collection[str]]) -> dict[tuple[str, str], GraphError]:
    """Every need of `plan` that is among what its engine `cannot` do, by role and need; of stages with the same need the first is named."""
    found: dict[tuple[str, str], GraphError] = {}
    for role, stage, need, value in _needs(plan):
        if need in cannot.get(role, ()) and (role, need) not in found:
            what = _LACKS.get(need, _UNKNOWN).format(need=need, stage=stage, sets="needs" if value is True else f"sets to {value}")
            found[role, need] = GraphError(f"engine {role!r}", what)
    return found


def check_needs(plan: Plan, cannot: Mapping[str, Collection[str]]) -> None:
    """Raise the `GraphError` of the first need without which `plan` cannot do its work; without seeds it can, but not as well."""
    if fatal := [error for (_, need), error in unmet_needs(plan, cannot).items() if need != "seeds"]:
        raise fatal[0]


def _needs(plan: Plan) -> Iterator[tuple[str, str, str, object]]:
    """Each need as role, stage, its name and its value."""
    for node in plan.stages():
        if node.spec.role is not None:
            yield from ((node.spec.role, node.name, need, value) for need, value in node.spec.needs.items())
    roles = {node.name: str(node.spec.role) for node in plan.stages()}
    yield from ((roles[draft], gate, "logprobs", True) for draft, gate in plan.measured.items())


def virtual_time(specs: Mapping[str, EngineSpec], where: str) -> bool:
    """True if these engines compute on a simulated clock; raises `GraphError` at `where` if some do and others do not."""
    real, simulated = ([role for role, spec in specs.items() if spec.virtual_time is each] for each in (False, True))
    if real and simulated:
        times = f"engines on simulated time: {', '.join(simulated)}; on real time: {', '.join(real)}"
        raise GraphError(where, f"{times}; simulate all of them or none")
    return not real
