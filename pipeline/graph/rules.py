"""Every rule that a graph must obey beyond the types of its fields: stages and engines enter, flaws leave, a path and a clause each. Then
what the stages of its plan need of their engines (`StageSpec.needs`), against what these cannot do. Pure.

Each rule takes it that those before it hold; who asks takes the first flaw.
"""

from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from pipeline.errors import GraphError, did_you_mean
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EndSpec, EngineSpec, RepeatSpec, StageSpec, UntilSpec, early_end, waits_for

Stages = Mapping[str, StageSpec]
CONDITIONS = sorted(set(UntilSpec.__struct_fields__) - {"every"}, key=[*UntilSpec.__annotations__, *EndSpec.__annotations__].index)
"""The stop conditions of a loop."""
Flaw = tuple[tuple[str, ...], str]
"""The path of what is wrong, and a clause."""
JUDGES = "a `choose`, `score`, `likelihood`, `reward` or `vote` stage"
"""How an error names the built-in stages that judge."""
VERDICTS, READINGS = ("accepted", "rejected"), ("flagged", "passed")
"""What a condition may name of a judge, and of a gate."""
RESPONSE = "response"
"""Name of the stage that writes where a loop never speculates."""
TRIAL = "trial"
"""Name of the stage that asks for the answer before the thought is over."""
_LACKS = {
    "continues": (
        "cannot continue a partial reply, which stage `{stage}` needs",
        "use a server with /v1/completions, or a graph of whole thoughts, such as `scot`",
    ),
    "options": (
        "returns no log probabilities, which stage `{stage}` needs for its verdict",
        "use a server that returns them, or a judge without an engine, such as `vote`",
    ),
    "scoring": (
        "returns no log probabilities of prompt tokens, which stage `{stage}` needs",
        "use an engine that returns them (torch, a vLLM server, vllm: on a GPU under its model runner V1 with "
        "`max_num_batched_tokens: 2048` or less), or judge with `choose` or `score`",
    ),
    "logprobs": (
        "returns no log probabilities of what it writes, which stage `{stage}` needs",
        "use an engine that returns them (torch, vllm, most servers with /v1/completions, a replay of a run that had them), or leave out "
        "what needs them",
    ),
    "seeds": (
        "does not support seeds: stage `{stage}` samples a different text in every run",
        "use an engine that does if runs must be reproducible",
    ),
}
_BEARABLE = ("seeds",)
"""Needs without which a run does its work, but not as well: a note."""


def flaws_in(stages: Stages, engines: Mapping[str, EngineSpec]) -> Iterator[Flaw]:
    """The flaws of a graph's `stages` on these `engines`."""
    yield from _block_flaws(stages, inside=False)
    if not any(map(finishes, stages.values())):
        yield (), "no stage finishes the chain; end with an `answer` stage"
    yield from _end_flaws(stages)
    yield from _role_flaws(stages, engines)
    yield from _reward_flaws(stages)
    yield from _speculation_flaws(stages)


def with_keys(stages: Stages, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], StageSpec]]:
    """Every stage in the order of the file, those of loops included, with its path."""
    for name, spec in stages.items():
        yield (*above, name), spec
        if isinstance(spec, RepeatSpec):
            yield from with_keys(spec.stages, (*above, name, "stages"))


def _end_flaws(stages: Stages) -> Iterator[Flaw]:
    """What is wrong with stages that may end early."""
    for name, spec in stages.items():
        if early_end(spec) is None:
            continue
        if not any(each.answers and each.when is None for each in stages.values()):
            yield (name, "until"), "asks for the answer before the thought is over, of the engine of the `answer` stage; add one after it"
        if any(keys[-1] == TRIAL for keys, _ in with_keys(stages)):
            yield (name, "until"), f"adds a stage named `{TRIAL}`, which asks for the answer; rename yours"


def finishes(spec: StageSpec) -> bool:
    """True if every chain ends with this stage: it finishes a chain, and runs without a condition."""
    return spec.when is None and spec.finishes


def _block_flaws(stages: Stages, *, inside: bool) -> Iterator[Flaw]:
    """The flaws of the stages of a graph or of a `repeat` (`inside`)."""
    for name, spec in stages.items():
        for other in waits_for(spec):
            if other not in stages:
                yield (name, "after"), f"no stage `{other}` in this block; {did_you_mean(other, stages.keys() - {name})}"
        yield from (((name, "when"), what) for what in _when_names(name, spec, stages))
    try:
        order = list(TopologicalSorter({name: waits_for(spec) for name, spec in stages.items()}).static_order())
    except CycleError as error:
        circle = error.args[1][::-1]
        yield (circle[0], "after"), f"stages wait for each other in a cycle: {' -> '.join(circle)}; only a `repeat` may loop"
        return
    yield from _order_flaws(stages, order, inside)
    for name, spec in stages.items():
        if isinstance(spec, RepeatSpec):
            yield from (((name, "stages", *keys), what) for keys, what in _block_flaws(spec.stages, inside=True))
            yield from (((name, *keys), what) for keys, what in _repeat_flaws(spec))


def _when_names(name: str, spec: StageSpec, stages: Stages) -> Iterator[str]:
    if spec.when is None:
        return
    judge, _, verdict = spec.when.partition(".")
    if verdict not in (*VERDICTS, *READINGS):
        yield f"expected STAGE.accepted, STAGE.rejected, STAGE.flagged or STAGE.passed, got {spec.when!r}"
    elif judge not in stages:
        others = stages.keys() - {name}
        judges = [other for other in others if stages[other].judges or stages[other].gates] or others
        yield f"no stage `{judge}` in this block; {did_you_mean(judge, judges)}"


def _order_flaws(stages: Stages, order: list[str], inside: bool) -> Iterator[Flaw]:
    """What is wrong with what comes before and after each stage."""
    ancestors: dict[str, frozenset[str]] = {}
    for name in order:
        direct = waits_for(stages[name])
        ancestors[name] = frozenset(direct).union(*(ancestors[other] for other in direct))
    for name, spec in stages.items():
        yield from (((name, *keys), what) for keys, what in _when_flaws(name, spec, stages, ancestors[name]))
    for name, spec in stages.items():
        before = {other: stages[other] for other in ancestors[name]}
        yield from (((name, *keys), what) for keys, what in _stage_flaws(name, spec, stages, before, inside))
        yield from (((name, field) if field else (name,), what) for field, what in spec.flaws(before, inside_repeat=inside))
        looked_at = any((s.judges or s.gates) and name in ancestors[other] for other, s in stages.items())
        if spec.drafts and not looked_at:
            yield (name,), f"nothing judges what this stage drafts; add {JUDGES} after it"
    writers = [name for name, s in stages.items() if s.writes or s.judges or s.gates or s.answers or isinstance(s, RepeatSpec)]
    for a, b in combinations(writers, 2):
        if a not in ancestors[b] and b not in ancestors[a] and not _exclusive(stages[a], stages[b]):
            yield (b,), f"`{a}` and `{b}` both continue the thought and neither waits for the other; add `after: {a}`"


def _exclusive(a: StageSpec, b: StageSpec) -> bool:
    """True if one of them runs when a judge accepts and the other when the same judge rejects."""
    return bool(a.when and b.when and a.when != b.when and a.when.partition(".")[0] == b.when.partition(".")[0])


def _stage_flaws(name: str, spec: StageSpec, stages: Stages, before: Stages, inside: bool) -> Iterator[Flaw]:
    if spec.gates:
        yield from _gate_flaws(name, spec, stages)
    if spec.judges:
        if loop := next((other for other, s in before.items() if isinstance(s, RepeatSpec)), None):
            yield (), f"cannot follow `{loop}`: a `repeat` leaves no candidates to judge"
        elif not any(s.drafts for s in before.values()):
            yield (), "has nothing to judge; put it `after` a `draft` stage"
    if not spec.answers and (finish := next((other for other, s in before.items() if finishes(s)), None)):  # it may be cut before
        yield (), f"is never reached: `{finish}` before it finishes the chain"
    if inside and (isinstance(spec, RepeatSpec) or finishes(spec)):
        yield (), "is not allowed inside a `repeat`; put it after"


def _when_flaws(name: str, spec: StageSpec, stages: Stages, before: Collection[str]) -> Iterator[Flaw]:
    if spec.when is None:
        return
    judge, _, verdict = spec.when.partition(".")
    if verdict in VERDICTS and stages[judge].gates:
        yield ("when",), f"`{judge}` is a gate, which gives no verdict; write `{judge}.flagged` or `{judge}.passed`"
    elif verdict in READINGS and not stages[judge].gates:
        yield ("when",), f"`{judge}` is no gate and flags nothing; name a `gate` stage"
    elif verdict == "passed" and stages[judge].commits_passed:
        yield ("when",), f"`{judge}` itself makes what passes a step; set its `accept: false`, or drop this stage"
    elif verdict in VERDICTS and not stages[judge].judges:
        yield ("when",), f"`{judge}` gives no verdict; name {JUDGES}"
    elif verdict == "rejected" and not stages[judge].may_reject:
        yield ("when",), f"`{judge}` never rejects; drop its `reject: false` or this stage"
    elif judge not in before:
        yield ("when",), f"`{name}` does not wait for `{judge}`; add `after: {judge}`"


def _gate_flaws(name: str, spec: StageSpec, stages: Stages) -> Iterator[Flaw]:
    """What is wrong with what comes right before and after a gate."""
    if not waits_for(spec):
        yield (), "has no draft to look at; put it `after` a `draft` stage"
    for other in waits_for(spec):
        if not (stages[other].drafts or stages[other].gates):
            yield ("after",), f"`{other}` drafts nothing that a gate could look at; name a `draft` stage"
    conditions = {each.when for each in stages.values()}
    if f"{name}.flagged" not in conditions:
        yield (), f"nothing reads what it flags; add `when: {name}.flagged` to the stage that judges or writes then"
    if not spec.commits_passed and f"{name}.passed" not in conditions:
        yield (), f"nothing writes a step when it passes; drop `accept: false`, or add a stage with `when: {name}.passed`"


def _repeat_flaws(spec: RepeatSpec) -> Iterator[Flaw]:
    if not any(getattr(spec.until, name) for name in CONDITIONS):
        yield ("until",), f"has no stop condition; set one of {', '.join(f'`{f}`' for f in CONDITIONS)}"
    body = spec.stages
    always = any(s.writes and s.when is None for s in body.values())
    for name, judge in body.items():
        if judge.gates and not always and not _gate_continues(name, judge, body, ()):
            yield ("stages", name), "not every way from it leads to a step, so the loop might never make progress; add a `generate` stage"
        if judge.may_reject and not always and not _continues(f"{name}.rejected", body, ()):
            remedy = f"add a `generate` stage with `when: {name}.rejected`"
            yield ("stages", name), f"a rejection leaves no step, so the loop would never make progress; {remedy}"
    if not always and not any(s.judges or s.gates for s in body.values()):
        yield ("stages",), "nothing in this loop writes a step; add a `generate` stage"


def _continues(condition: str, body: Stages, seen: tuple[str, ...]) -> bool:
    """True if a step is committed in the same round after this condition held: by a stage that writes, or by a judge or a gate that
    continues."""

    def commits(name: str, spec: StageSpec) -> bool:
        if spec.gates:
            return _gate_continues(name, spec, body, (*seen, condition))
        return spec.writes or (spec.judges and (not spec.may_reject or _continues(f"{name}.rejected", body, (*seen, condition))))

    return condition not in seen and any(commits(name, spec) for name, spec in body.items() if spec.when == condition)


def _gate_continues(name: str, spec: StageSpec, body: Stages, seen: tuple[str, ...]) -> bool:
    """True if a step is committed in the same round whether this gate flags or passes."""
    return _continues(f"{name}.flagged", body, seen) and (spec.commits_passed or _continues(f"{name}.passed", body, seen))


def _role_flaws(stages: Stages, engines: Mapping[str, EngineSpec]) -> Iterator[Flaw]:
    for keys, spec in with_keys(stages):
        if isinstance(spec, RepeatSpec):
            if spec.adapter is not None:
                yield (*keys, "adapter"), "a `repeat` calls no engine; set the adapter on one of its stages"
            if spec.prompts is not None:
                yield (*keys, "prompts"), "a `repeat` sends nothing to an engine; set the prompts on its stages"
        elif spec.role is not None and spec.role not in engines:
            yield (*keys, "engine"), f"no engine named `{spec.role}`; {did_you_mean(spec.role, engines)}"
        elif spec.role is not None and spec.adapter is not None:
            known = engines[spec.role].adapter_names
            if known is not None and spec.adapter not in known:
                there = f"it has {', '.join(f'`{each}`' for each in known)}" if known else "its engines file lists none under `adapters`"
                yield (*keys, "adapter"), f"the engine `{spec.role}` has no adapter named `{spec.adapter}`; {there}"


def _reward_flaws(stages: Stages) -> Iterator[Flaw]:
    """Each stage whose reward model other stages let write: it names the wrong engine, or they do."""
    every = list(with_keys(stages))
    writers: dict[str, list[str]] = {}
    for keys, spec in every:
        if spec.role and not spec.rewards:
            writers.setdefault(spec.role, []).append(f"`{keys[-1]}`")
    for keys, spec in every:
        if spec.rewards and spec.role in writers:
            who = " and ".join(writers[spec.role])
            yield (*keys, "engine"), f"`{spec.role}` also writes for {who}, and a reward model writes no text; name two engines"


def _speculation_flaws(stages: Stages) -> Iterator[Flaw]:
    """Why a graph cannot be without speculation, where its loop is `never`.

    Such a graph has a plain path without it: nothing but guidance before the loop, nothing but the answer after it, and in the loop a
    `generate` stage, the fallback.
    """
    found = next(((name, s) for name, s in stages.items() if isinstance(s, RepeatSpec) and s.speculate == "never"), None)
    if found is None:
        return
    name, loop = found
    place, asked = (name, "speculate"), "`speculate: never`"
    if not any(spec.drafts for spec in loop.stages.values()):
        yield place, f"{asked} has no effect where nothing is drafted; drop it"
    guides = [other for other in waits_for(loop) if stages[other].purpose == "guide"]
    plain = {name, *guides[:1], *(other for other, spec in stages.items() if spec.answers and not spec.when)}
    if loop.when or stages.keys() > plain:
        odd = "this loop has a condition" if loop.when else f"this one also has `{next(other for other in stages if other not in plain)}`"
        yield place, f"{asked} works only in graphs of the form [guidance], repeat, answer; {odd}"
    if RESPONSE in stages or RESPONSE in loop.stages:
        yield place, f"{asked} adds a stage named `{RESPONSE}`; rename yours"
    if loop.until.token_budget is None:
        yield (name, "until"), f"{asked} needs a `token_budget`, the maximum number of tokens of the target's response"
    if not any(spec.kind == "generate" for spec in loop.stages.values()):
        yield place, f"{asked} needs a `generate` stage in the loop, whose engine and temperature the target's response uses"


def unmet_needs(plan: Plan, cannot: Mapping[str, Collection[str]]) -> dict[tuple[str, str], GraphError]:
    """Every need of `plan` that is among what its engine `cannot` do, by role and need; of stages with the same need the first is named."""
    found: dict[tuple[str, str], GraphError] = {}
    for role, stage, need, value in _needs(plan):
        if need in cannot.get(role, ()) and (role, need) not in found:
            what, remedy = _LACKS.get(need) or _unhonoured(need, value)
            found[role, need] = GraphError(f"engine {role!r}", f"{what.format(stage=stage)}; {remedy}")
    return found


def check_needs(plan: Plan, cannot: Mapping[str, Collection[str]]) -> None:
    """Raise the `GraphError` of the first need without which `plan` cannot do its work."""
    if fatal := [error for (_, need), error in unmet_needs(plan, cannot).items() if need not in _BEARABLE]:
        raise fatal[0]


def _needs(plan: Plan) -> Iterator[tuple[str, str, str, object]]:
    """Each need as role, stage, its name and its value."""
    for node in plan.stages():
        if node.spec.role is not None:
            yield from ((node.spec.role, node.name, need, value) for need, value in node.spec.needs.items())
    roles = {node.name: str(node.spec.role) for node in plan.stages()}
    yield from ((roles[draft], gate, "logprobs", True) for draft, gate in plan.measured.items())


def _unhonoured(need: str, value: object) -> tuple[str, str]:
    """What is said of a parameter of sampling, and of the need of a stage of another package."""
    sets = "" if value is True else f" sets to {value}"
    return f"does not support `{need}`, which stage `{{stage}}`{sets or ' needs'}", "leave that out or use another engine"
