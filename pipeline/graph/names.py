"""The names in a graph that is not decoded yet: of its stages, params and roles. A graph file, or the mapping in it, enters."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.bundled import find_file
from pipeline.graph.convert import mapping
from pipeline.graph.yaml_file import read_yaml

Raw = Path | Mapping[str, Any]


def every_stage(stages: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every stage of a graph that is a mapping, those of its loops included, by name."""
    for name, stage in stages.items():
        if isinstance(stage, dict):
            yield name, stage
            yield from every_stage(stage["stages"]) if isinstance(stage.get("stages"), dict) else ()


def stage_names(graph: Raw) -> set[str]:
    """The names of all stages of a graph, loops and those within them included."""
    return {name for name, _ in _raw_stages(graph)}


def param_names(graph: Raw) -> set[str]:
    """The names of the params of a graph."""
    return set(mapping(_raw(graph).get("params") or {}, f"{graph}: $.params"))


def roles_in(graph: Raw) -> list[str]:
    """The roles that stages of a graph name, in the order of the file."""
    params = _raw(graph).get("params") or {}
    named = [str(stage["engine"]) for _, stage in _raw_stages(graph) if "engine" in stage]
    return list(dict.fromkeys(str(params.get(name[1:], name)) if name.startswith("$") else name for name in named))


def _raw(graph: Raw) -> Mapping[str, Any]:
    return graph if isinstance(graph, Mapping) else read_yaml(find_file(graph, "graph"))


def _raw_stages(graph: Raw) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every stage of a graph that is not decoded yet, by name."""
    return every_stage(mapping(_raw(graph).get("stages"), f"{'graph' if isinstance(graph, Mapping) else graph}: $.stages"))
