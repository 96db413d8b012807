"""Lines for errors: a flaw at a path in a YAML file enters, the same flaw with the number of its line leaves.

The file is read a second time, only when there is something to say about it.
"""

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import yaml

from pipeline.errors import GraphError, GraphErrors
from pipeline.files import open_file
from pipeline.graph.yaml_file import MAX_BYTES, NotYaml, compose

P = ParamSpec("P")
R = TypeVar("R")
PLACE = re.compile(r"(?P<file>.+?): \$(?P<path>.*)", re.DOTALL)


def with_lines(function: Callable[P, R]) -> Callable[P, R]:
    """`function` whose `GraphError`s name lines: `graph.yaml, line 12: $.stages.verify`; or, if the value is a param set by one of the
    keyword argument `settings`, that setting."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except GraphErrors as errors:
            raise GraphErrors([_located(each, named.get("settings")) for each in errors.errors]) from errors
        except GraphError as error:
            raise _located(error, named.get("settings")) from error

    return called


def _located(error: GraphError, settings: Any) -> GraphError:
    found = PLACE.fullmatch(error.where)
    place = None if found is None else place_of(found["file"], found["path"], error.key)
    if found is None or place is None:
        return error
    setting = next((each for each in settings or () if place.text and each.startswith(f"{place.text.removeprefix('$')}=")), None)
    if setting is not None:
        return GraphError(f"--set {setting}", error.what)
    return GraphError(f"{found['file']}, line {place.line}: ${found['path']}", error.what, key=error.key)


class Place(NamedTuple):
    """Where something is in a YAML file."""

    line: int
    """From 1."""
    text: str | None
    """The value there, if it is text that names a param."""


def place_of(file: str, path: str, key: str | None = None) -> Place | None:
    """The place of the value at `path` in a YAML file, or of the nearest one above it; of its `key`, if it is a mapping with that.

    None where the file cannot be read.
    """
    try:
        with open_file(Path(file)) as opened:
            node = compose(opened.read(MAX_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, NotYaml, yaml.YAMLError, RecursionError):
        return None
    if node is None:
        return None
    line = 1
    while isinstance(node, yaml.MappingNode | yaml.SequenceNode) and path:
        step = _step(node, path)
        if step is None:
            break
        line, node, path = step
    if key is not None and isinstance(node, yaml.MappingNode):
        line = next((name.start_mark.line + 1 for name, _ in node.value if name.value == key), line)
    named = isinstance(node, yaml.ScalarNode) and not path and node.value.startswith("$")
    return Place(line, node.value if named else None)


def _step(node: yaml.MappingNode | yaml.SequenceNode, path: str) -> tuple[int, yaml.Node, str] | None:
    """One key or index down the `path`: its line, the value there, and the rest of the path."""
    if isinstance(node, yaml.SequenceNode):
        index = re.match(r"\[(\d+)\]", path)
        if index is None or int(index[1]) >= len(node.value):
            return None
        value = node.value[int(index[1])]
        return value.start_mark.line + 1, value, path[index.end() :]
    for name, value in node.value:
        rest = path.removeprefix(f".{name.value}")
        if rest != path and rest[:1] in ("", ".", "["):
            return name.start_mark.line + 1, value, rest
    return None
