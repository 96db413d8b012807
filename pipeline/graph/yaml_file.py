"""Reads YAML files that anyone may have written: a path or a text enters, plain values leave, or an error in one sentence.

Nothing in a file can run code or name a type; its size, depth and numbers are bounded, and so is what its aliases
expand to. What the values mean is not known here.
"""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from pipeline.errors import GraphError, reason

Keys = tuple[str | int, ...]
"""A path in a document: keys of mappings and indexes of lists."""
COMMENT_WIDTH = 118
"""Characters of a comment in a file that is written here."""
MAX_BYTES = 1 << 20
"""Largest graph or engines file."""
MAX_NODES = 20_000
"""Most values in such a file, with its aliases expanded."""
MAX_DEPTH = 32
"""Deepest nesting of mappings and lists."""
_TAG = "tag:yaml.org,2002:"
_CORE = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
)
"""The kinds of plain scalars in the core schema of YAML 1.2: how they are written, and their first characters. All others are text: `yes`,
`1_000`, `1:30` and dates too."""


class YamlFile(NamedTuple):
    """The mapping in a YAML file, and the tree it was made of, which knows the lines."""

    values: dict[str, Any]
    tree: yaml.Node

    def line(self, keys: Keys) -> int:
        """The line, from 1, of the value at `keys`, or of the nearest one above it; of a value in a mapping that of its key."""
        line, node = 1, self.tree
        for key in keys:
            found = _child(node, key)
            if found is None:
                break
            line, node = found
        return line


def _child(node: yaml.Node, key: str | int) -> tuple[int, yaml.Node] | None:
    """The line of a key or an item of a node, and the value there; None where it has none."""
    if isinstance(node, yaml.MappingNode):
        return next(((name.start_mark.line + 1, value) for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key].start_mark.line + 1, node.value[key]
    return None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises `GraphError` for anything else, see `read_lines`."""
    return read_lines(path).values


def read_lines(path: Path) -> YamlFile:
    """The mapping in a YAML file with its lines; raises `GraphError` for anything else: several documents, duplicate keys, a file that is
    too large or whose aliases expand to too many values."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise GraphError(str(path), f"cannot be read: {reason(error)}") from error
    if len(content) > MAX_BYTES:
        raise GraphError(str(path), f"is larger than {MAX_BYTES >> 20} MiB, the limit for a graph or engines file")
    try:
        value, tree = _parsed(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise GraphError(str(path), f"is not UTF-8 text: byte {error.start}") from error
    except NotYaml as error:
        raise GraphError(str(path) if error.line is None else f"{path}, line {error.line}", str(error)) from error
    if tree is None or not isinstance(value, dict):
        raise GraphError(str(path), "is empty" if value is None else f"expected a mapping, got `{type(value).__name__}`")
    return YamlFile(value, tree)


def head_comment(path: Path) -> str:
    """The first paragraph of the comment at the head of a YAML file, up to the first line that is a command; hints to editors left out."""
    said = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if line.startswith("# yaml-language-server:"):
            continue
        if not line.startswith("#") or text.startswith("pipeline ") or not text:
            break
        said.append(text)
    return " ".join(said)


class NotYaml(Exception):
    """A text is not one YAML document that could be a graph; the message says why, as a clause, and `line` where."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


def parse(text: str) -> Any:
    """The value of one YAML document; raises `NotYaml`."""
    return _parsed(text)[0]


def _parsed(text: str) -> tuple[Any, yaml.Node | None]:
    """The value of one YAML document and its tree, whose size is checked first, because a few aliases can expand to gigabytes."""
    try:
        try:
            return _loaded(_FastLoader(text))
        except (yaml.YAMLError, ValueError):  # said in the words of the other parser
            return _loaded(_Loader(text))
    except yaml.MarkedYAMLError as error:
        raise NotYaml(f"invalid YAML: {error.problem}", error.problem_mark.line + 1 if error.problem_mark else None) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last for numbers that are none
        raise NotYaml(f"invalid YAML: {str(error).splitlines()[0]}") from error


def _loaded(loader: "_Rules") -> tuple[Any, yaml.Node | None]:
    node = loader.get_single_node()
    if node is None:
        return None, None
    _check_size(node)
    return loader.construct_document(node), node


def written(value: Any) -> str:
    """`value` as YAML of one line, of which `parse` makes the same value of the same type; raises `TypeError` for what YAML cannot hold."""
    try:
        text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=math.inf)
    except yaml.YAMLError as error:
        raise TypeError(f"a value of type `{type(value).__name__}` cannot be written as YAML") from error
    return text.removesuffix("...\n").rstrip("\n")


def engines_text(engines: Mapping[str, Mapping[str, Any]], head: Sequence[str]) -> str:
    """An engines file with these fields by role, and `head` as its first comments."""
    lines = [f"# {part}" for line in head for part in textwrap.wrap(line, COMMENT_WIDTH, break_on_hyphens=False)]
    for role, fields in engines.items():
        lines += [f"{role}:", *(f"  {name}: {written(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"


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


class _Rules(Composer, SafeConstructor, BaseResolver):
    """YAML without duplicate keys, whose values are those of the core schema of YAML 1.2; a parser gives the events."""

    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        **{
            name: SafeConstructor.yaml_constructors[name]
            for name in (None, *(_TAG + kind for kind in ("null", "bool", "str", "seq", "map")))
        },
        _TAG + "int": lambda self, node: _int(self.construct_scalar(node)),
        _TAG + "float": lambda self, node: float(re.sub(r"\.(?=[in])", "", self.construct_scalar(node).lower())),
    }

    def __init__(self) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        BaseResolver.__init__(self)
        self._nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes, self._depth = self._nodes + 1, self._depth + 1
        if self._nodes > MAX_NODES:
            raise NotYaml(f"holds more than {MAX_NODES:,} values")
        if self._depth > MAX_DEPTH + 1:
            raise NotYaml(f"is nested more than {MAX_DEPTH} levels deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is not text", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key `{key}` is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _int(text: str) -> int:
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


for _kind, _form, _first in _CORE:
    _Rules.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_form})\Z"), [*_first, ""])


class _Loader(Reader, Scanner, Parser, _Rules):
    """The parser in Python, whose errors say what they expected."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        _Rules.__init__(self)


if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class _FastLoader(_Rules, CParser):
        """libyaml's, in a fifth of the time."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _Rules.__init__(self)

else:
    _FastLoader = _Loader  # type: ignore[misc, assignment]


def _check_size(root: yaml.Node) -> None:
    """Raise `NotYaml` where a document holds too many values. An alias shares its node, so each use of it is counted in full."""
    counted: dict[int, int] = {}

    def count(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node)
            return 1
        if id(node) not in counted:
            counted[id(node)] = MAX_NODES + 1  # the count of a node that contains itself
            children = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            counted[id(node)] = 1 + sum(map(count, children))
        return counted[id(node)]

    if count(root) > MAX_NODES:
        raise NotYaml(f"holds more than {MAX_NODES:,} values once its aliases are expanded")


def _check_scalar(node: yaml.ScalarNode) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in node.value):
        raise yaml.MarkedYAMLError(problem="half a character (a lone surrogate)", problem_mark=node.start_mark)
