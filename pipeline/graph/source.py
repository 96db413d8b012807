"""A graph and its engines as one text with every value filled in: a plan enters and its text leaves, which compiles to an equal plan.

No file is read for it, so a run goes on as it began when the files that it was started with have changed.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import yaml
from msgspec import structs

from pipeline.errors import GraphError, boundary
from pipeline.graph.compiler import compile_graph
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.spec import EngineSpec, FunctionJudgeSpec, GraphSpec, OpenSpec, RepeatSpec, StageSpec

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def source_of(plan: Plan) -> str:
    """The graph of `plan` on its engines as YAML, which unlike JSON has numbers without bounds."""
    assert isinstance(plan.graph.engines, dict), "the loader binds the roles"
    graph = msgspec.to_builtins(structs.replace(plan.graph, engines=plan.graph.engines | plan.engines))
    return yaml.dump(graph, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=100)


@lru_cache(64)
def plan_of(source: str) -> Plan:
    """The plan of a text that `source_of` made. Raises `GraphError` where it is none, or needs a package that is not installed."""
    with boundary(GraphError, "source", foreign=(yaml.YAMLError, msgspec.ValidationError, LookupError, TypeError, AttributeError)):
        raw = yaml.load(source, LOADER)
        graph = msgspec.convert(raw | {"engines": {}, "stages": {}}, GraphSpec)
        return compile_graph(structs.replace(graph, engines=_engines(raw["engines"]), stages=_stages(raw["stages"])))


def _engines(engines: Mapping[str, Any]) -> dict[str, EngineSpec]:
    known = engine_specs() | {"open": OpenSpec}
    missing = [each["backend"] for each in engines.values() if each["backend"] not in known]
    if missing:
        raise GraphError("source", f"needs the engine backend `{missing[0]}`, which is not installed here")
    return {role: msgspec.convert(each, known[each["backend"]]) for role, each in engines.items()}


def _stages(stages: Mapping[str, Any]) -> dict[str, StageSpec]:
    return {name: _stage(raw) for name, raw in stages.items()}


def _stage(raw: Mapping[str, Any]) -> StageSpec:
    """The spec of a stage; a kind that no package announces is a function, which need not be here to read what it judged."""
    if raw["kind"] == "repeat":
        return structs.replace(msgspec.convert({**raw, "stages": {}}, RepeatSpec), stages=_stages(raw["stages"]))
    kind = stage_specs().get(raw["kind"])
    if kind is None and raw.keys() - set(FunctionJudgeSpec.__struct_fields__):
        raise GraphError("source", f"needs the stage kind `{raw['kind']}`, which is not installed here")
    return msgspec.convert(raw, kind or FunctionJudgeSpec)
