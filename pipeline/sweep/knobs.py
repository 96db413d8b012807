"""What can be tuned in a graph: its plan and the user's wishes enter, a `Knob` for each param leaves. Pure.

A param can be tuned that fills in the threshold of a gate or of a judge, the number of candidates of a draft, or `answer_confident`.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, structs

from pipeline.bundled import find_file
from pipeline.errors import GraphError, UsageError, did_you_mean
from pipeline.graph.document import Document, read_setting
from pipeline.graph.loader import PARAM_PATTERN
from pipeline.graph.plan import Plan
from pipeline.graph.spec import Param, StageSpec
from pipeline.graph.yaml_file import setting
from pipeline.stages.gate import RANGES, GateSpec

Kind = Literal["gate", "judge", "end", "candidates"]
ENDS: tuple[Param, ...] = (None, 0.6, 0.8, 0.9, 0.95, 0.99)
"""Values of `answer_confident` that are tried; null: off."""
FAR = 1000.0
"""Stands for a threshold without a bound: in nats."""


class Knob(Struct, frozen=True, kw_only=True):
    """A param that is to be tuned."""

    param: str
    kind: Kind
    stage: str
    careful: Param
    """The value with which a run is recorded: everything is read, the judge is as strict as it can be, the answer asked for to the end."""
    values: tuple[Param, ...] = ()
    """Values that are tried; empty: those that the recorded run suggests."""
    beside: tuple[str, ...] = ()
    """Other params of its stage, on which the value rests, such as the statistic of a gate."""
    sign: int = 1
    """Of a gate: 1 where a draft passes at or above the threshold, -1 where at or below."""
    careless: Param = None
    """Of a gate whose drafts do not become steps: the value with which all pass, so that others write all; null of any other knob."""

    @property
    def commits(self) -> bool:
        """Of a gate: whether what passes becomes a step."""
        return self.careless is None

    @property
    def tried(self) -> tuple[Param, ...]:
        """Every value that is known before the first run."""
        return (*self.values, self.careful, *(() if self.commits else (self.careless,)))


def knobs_of(graph: Path, plan: Plan, wishes: Sequence[str] = ()) -> list[Knob]:
    """The knobs of a graph: those that the `wishes` (`NAME`, or `NAME=VALUE,...`) name, else all.

    Raises `UsageError` for a graph without any, one of whose drafts nobody decides, and for wishes that it cannot fulfil.
    """
    specs = {node.name: node.spec for node in plan.stages()}
    if not any(spec.judges or spec.gates for spec in specs.values()):
        raise UsageError(
            f"{plan.name}: has no stage that verifies drafts and no gate: nothing of it can be tuned; see speccot, specreason, gated"
        )
    filled = dict(_filled(Document.read(find_file(graph, "graph")).at(("stages",)), ()))
    found = {knob.param: knob for knob in _found(filled, plan, specs)}
    if not found:
        raise UsageError(
            f"{plan.name}: nothing to tune: no param fills in a threshold, `candidates` above 1 or `answer_confident`; write `$NAME` there"
        )
    wished: dict[str, tuple[Param, ...]] = {}
    for name, values in map(_wish, wishes):
        if name in wished:
            raise UsageError(f"--tune {name}: is given twice; give all values at once: --tune {name}=VALUE,VALUE,...")
        if name not in found:
            why = _why_not(name, filled, plan, specs) or f"{plan.name} has nothing to tune of that name; {did_you_mean(name, found)}"
            raise UsageError(f"--tune {name}: {why}")
        wished[name] = values
    chosen = [_with(found[name], wished.get(name, ())) for name in found if not wished or name in wished]
    _check_alone(plan.name, chosen)
    return chosen


def text_of(value: Param) -> str:
    """A value as a setting has it."""
    return setting("", value)[1:]


def _found(filled: Mapping[tuple[str, ...], str], plan: Plan, specs: Mapping[str, StageSpec]) -> Iterator[Knob]:
    for name, spec in specs.items():
        threshold, candidates = filled.get((name, "threshold")), filled.get((name, "candidates"))
        if threshold and isinstance(spec, GateSpec) and spec.statistic != "repeats":
            yield structs.replace(_gate(threshold, name, spec), beside=_beside(filled, name))
        elif threshold and spec.judges:
            yield Knob(param=threshold, kind="judge", stage=name, careful=_greatest(spec), beside=_beside(filled, name))
        if candidates and spec.drafted > 1:
            values = tuple(sorted({1, (1 + spec.drafted) // 2, spec.drafted}))
            yield Knob(param=candidates, kind="candidates", stage=name, careful=spec.drafted, values=values)
    for loop in plan.loops:
        end = filled.get((loop.name, "until", "answer_confident"))
        if end and loop.until.answer_stable is None:
            yield Knob(param=end, kind="end", stage=loop.name, careful=1.0, values=ENDS)


def _why_not(name: str, filled: Mapping[tuple[str, ...], str], plan: Plan, specs: Mapping[str, StageSpec]) -> str | None:
    """Which other setting keeps a param from being tuned that could be without it, and what to do; None where there is none."""
    for (stage, *keys), param in filled.items():
        if param != name:
            continue
        spec = specs.get(stage)
        if keys == ["candidates"] and spec is not None and spec.drafted == 1:
            return f"`candidates` of {stage} is 1, so that there is nothing to choose from; set it to more, with --set {name}=5"
        if keys == ["threshold"] and isinstance(spec, GateSpec) and spec.statistic == "repeats":
            return f"a recorded run does not tell what another count of `repeats` would do in {stage}; choose one with --set {name}=NUMBER"
        if keys == ["until", "answer_confident"] and any(loop.name == stage and loop.until.answer_stable for loop in plan.loops):
            return f"`answer_stable` ends the thoughts of {stage} too, and one end alone can be tuned; leave it out, or set it to null"
    return None


def _filled(value: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The params that are values of stages, by the stage and the path in it; `above`: those of the mapping `value`."""
    for key, each in value.items():
        if isinstance(each, dict):
            yield from _filled(each, () if key == "stages" else (*above, key))
        elif isinstance(each, str) and re.fullmatch(PARAM_PATTERN, each):
            yield (*above, key), each[1:]


def _beside(filled: Mapping[tuple[str, ...], str], name: str) -> tuple[str, ...]:
    return tuple(param for (stage, *keys), param in filled.items() if stage == name and keys[0] in ("statistic", "method"))


def _gate(param: str, name: str, spec: GateSpec) -> Knob:
    """A gate reads everything where its threshold is that of the surest draft, or of the least sure one if it flags sure ones."""
    low, high, _ = RANGES[spec.statistic]
    rises = spec.statistic != "first_entropy"
    passes_above = rises == (spec.flags == "unsure")
    careful, careless = (max(-FAR, min(FAR, bound)) for bound in ((high, low) if passes_above else (low, high)))
    sign = 1 if passes_above else -1
    return Knob(param=param, kind="gate", stage=name, careful=careful, sign=sign, careless=None if spec.accept else careless)


def _greatest(spec: StageSpec) -> float:
    """The greatest threshold that a judge may have."""
    hint = get_type_hints(type(spec), include_extras=True)["threshold"]
    bounds = [each.le for each in get_args(hint)[1:] if isinstance(each, Meta)] if get_origin(hint) is Annotated else []
    return float(next((bound for bound in bounds if bound is not None), math.ceil(float(getattr(spec, "threshold", 0.0)))))


def _wish(text: str) -> tuple[str, tuple[Param, ...]]:
    name, equals, listed = text.partition("=")
    if not name or (equals and not all(listed.split(","))):
        raise UsageError(f"--tune {text}: expected NAME or NAME=VALUE,VALUE,..., for example threshold=5,7,9")
    values = tuple(_value(name, each) for each in listed.split(",")) if equals else ()
    if len(set(values)) < len(values):
        raise UsageError(f"--tune {text}: a value is named twice")
    return name, values


def _value(name: str, text: str) -> Any:
    try:
        return read_setting(f"{name}={text}")[1]
    except GraphError as error:
        raise UsageError(f"--tune {name}={text}: {error.what}") from error


def _with(knob: Knob, values: tuple[Param, ...]) -> Knob:
    """`knob` with the values that the user wants to be tried."""
    if not values:
        return knob
    changes: dict[str, Any] = {"values": values}
    if knob.kind in ("judge", "candidates") and all(isinstance(each, int | float) for each in values):
        changes["careful"] = max(float(each) if knob.kind == "judge" else each for each in values)  # type: ignore[arg-type, type-var]
    return structs.replace(knob, **changes)


def _check_alone(graph: str, chosen: Sequence[Knob]) -> None:
    """Raise `UsageError` where two knobs are of one kind: a recorded run tells of one decision what another value would do."""
    for kind in ("gate", "judge", "candidates"):
        alike = [knob.param for knob in chosen if knob.kind == kind]
        if len(alike) > 1:
            raise UsageError(f"{graph}: has several of one kind, {' and '.join(alike)}; name the one to tune: --tune {alike[0]}")
