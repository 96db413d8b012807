"""Reads and writes YAML, as the core schema of YAML 1.2 has it: a path or a text enters, plain values leave, or an error in one sentence.

Nothing in a file can run code or name a type. Each mapping of a file knows where its keys were written.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from pipeline.errors import GraphError, reason

Keys = tuple[str | int, ...]
"""A path in a document: keys of mappings and indexes of lists."""
_TAG = "tag:yaml.org,2002:"
_CORE: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("null", r"~|null|Null|NULL|", "~nN", lambda text: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    (
        "int",
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
        lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
    ),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(re.sub(r"\.(?=[in])", "", text.lower())),
    ),
    ("str", "(?!)", "", str),
)
"""The kinds of plain scalars: how they are written, their first characters, and the value. All others are text: `yes`, `1_000`, `1:30` and
dates too."""
_VALUES: dict[str, Callable[[Any], Any]] = {_TAG + "map": dict, _TAG + "seq": list} | {_TAG + kind: value for kind, _, _, value in _CORE}


class Marked(dict[str, Any]):
    """A mapping, and the place where each of its keys was written, as far as that is known."""

    def __init__(self, values: Iterable[tuple[str, Any]] = (), places: Mapping[str, str] = {}) -> None:
        super().__init__(values)
        self.places = dict(places)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Marked":
        """A copy of a mapping, those within it included; raises `NotYaml` for a key that is no text."""
        if odd := [key for key in values if not isinstance(key, str)]:
            raise NotYaml(f"the key `{odd[0]}` is not text")
        places = values.places if isinstance(values, Marked) else {}
        return cls(((key, cls.of(each) if isinstance(each, Mapping) else each) for key, each in values.items()), places)


class NotYaml(Exception):
    """A text is not one YAML document; the message says why, as a clause, and `line` where."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _kind, _form, _first, _ in _CORE:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_form})\Z"), [*_first, ""])


def read_yaml(path: Path) -> Marked:
    """The mapping in a YAML file; raises `GraphError` for anything else."""
    try:
        value = parse(path.read_bytes().decode("utf-8-sig"), str(path))
    except (OSError, ValueError) as error:
        what = f"is not UTF-8 text: byte {error.start}" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {reason(error)}"
        raise GraphError(str(path), what) from error
    except NotYaml as error:
        raise GraphError(str(path) if error.line is None else f"{path}, line {error.line}", str(error)) from error
    if not isinstance(value, Marked):
        raise GraphError(str(path), "is empty" if value is None else f"expected a mapping, got `{type(value).__name__}`")
    return value


def parse(text: str, file: str = "") -> Any:
    """The value of one YAML document, whose places are in `file`; raises `NotYaml`."""
    try:
        node = yaml.compose(text, _Loader)
        return None if node is None else _value(node, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYaml(f"invalid YAML: {error.problem or error.context}", None if mark is None else mark.line + 1) from error
    except (yaml.YAMLError, ValueError) as error:
        raise NotYaml(f"invalid YAML: {reason(error)}") from error
    except RecursionError as error:
        raise NotYaml("is nested too deeply") from error


def _value(node: yaml.Node, file: str) -> Any:
    if node.tag not in _VALUES:
        raise yaml.MarkedYAMLError(problem=f"the tag `{node.tag}` is not known here", problem_mark=node.start_mark)
    if isinstance(node, yaml.MappingNode):
        found = Marked()
        for key, value in node.value:
            if key.tag != _TAG + "str" or key.value in found:
                what = "is given twice" if key.tag == _TAG + "str" else "is not text"
                raise yaml.MarkedYAMLError(problem=f"the key `{key.value}` {what}", problem_mark=key.start_mark)
            found[key.value] = _value(value, file)
            found.places[key.value] = f"{file}, line {key.start_mark.line + 1}"
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, file) for each in node.value]
    return _VALUES[node.tag](node.value)


def written(value: Any) -> str:
    """`value` as YAML of one line, of which `parse` makes the same value of the same type; raises `TypeError` for what YAML cannot hold."""
    try:
        text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=math.inf)
    except yaml.YAMLError as error:
        raise TypeError(f"a value of type `{type(value).__name__}` cannot be written as YAML") from error
    return text.removesuffix("...\n").rstrip("\n")


def setting(name: str, value: Any) -> str:
    """`NAME=VALUE` as `--set` takes it. Every value that becomes a setting goes through here: `str()` makes text of None and booleans."""
    return f"{name}={written(value)}"


def shown(values: Mapping[str, Any]) -> str:
    """Values as a user would write them, texts without quotes: `statistic=min answer_confident=null`."""
    return " ".join(f"{name}={value}" if isinstance(value, str) else setting(name, value) for name, value in values.items())


class _Dumper(yaml.SafeDumper):
    """YAML whose texts are all quoted, so that none is taken for a number, and without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(_TAG + "str", text, style='"'))
_Dumper.add_representer(Marked, lambda dumper, block: dumper.represent_dict(block))
