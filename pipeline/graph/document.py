"""A YAML document on its way to typed values: a file enters, Structs leave, or its first flaw as a `GraphError` with the file, the line,
the path and what would be right.

Plain scalars are those of YAML 1.2's core schema. Nothing in a file can run code or name a type.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct, structs

from pipeline.errors import GraphError, UsageError, did_you_mean, reason
from pipeline.graph.bundled import FileKind, find_file

S = TypeVar("S", bound=Struct)
Keys = tuple[str | int, ...]
"""A path in a document: keys of mappings and indexes of lists."""
SET = "--set "
"""How the place of a value begins that a setting wrote."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    "str": (r"(?!)", ""),
}
"""The form and the first characters of plain scalars. All else is text: `yes`, `1_000`, `1:30`, `0x10` and dates too."""


class FileMapping(dict[Any, Any]):
    """A mapping that knows where its values were written."""

    def __init__(self) -> None:
        self.places: dict[Any, str] = {}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Makes mappings that know their lines in `file`, and no objects."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag.removeprefix(_TAG) in _PLAIN
    }

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file = file

    def mapping(self, node: yaml.Node) -> FileMapping:
        found = FileMapping()
        for key, value in node.value:
            if key.tag != _TAG + "str" or key.value in found:
                what = "is given twice" if key.tag == _TAG + "str" else "is not text"
                raise yaml.MarkedYAMLError(problem=f"the key `{key.value}` {what}", problem_mark=key.start_mark)
            found.places[key.value] = f"{self.file}, line {key.start_mark.line + 1}"
            found[key.value] = self.construct_object(value, deep=True)
        return found


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes all texts, so that none is taken for a number, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, (_form, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_form})\Z"), [*_first, ""])
_Loader.add_constructor(_TAG + "int", lambda loader, node: int(node.value))
_Loader.add_constructor(_TAG + "seq", lambda loader, node: loader.construct_sequence(node, deep=True))
_Loader.add_constructor(_TAG + "map", _Loader.mapping)
_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(_TAG + "str", text, style='"'))


class Document:
    """The values of a file, into which values of other files and of settings may be put."""

    def __init__(self, values: Mapping[str, Any], file: Path | str, first: str = "") -> None:
        self.file, self._first = str(file), first or str(file)
        self.values: FileMapping = _copied(values, self.file)

    @classmethod
    def read(cls, path: Path) -> "Document":
        """The document in a file; raises `GraphError` where it holds no mapping."""
        file = str(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (OSError, ValueError) as error:
            raise GraphError(file, f"cannot be read: {reason(error)}") from error
        values = parse(text, file)
        if not isinstance(values, dict):
            raise GraphError(file, "is empty" if values is None else f"expected a mapping, got `{type(values).__name__}`")
        return cls(values, file, f"{file}, line 1")

    def at(self, keys: Keys) -> Any:
        """The value at `keys`; None where there is none."""
        value: Any = self.values
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def put(self, keys: Keys, value: Any, place: str = "") -> None:
        """Write `value`, from this `place`, at `keys`, in mappings that are made where there are none; raises `GraphError` where another
        value is in the way."""
        *above, last = keys
        parent = self.values
        for key in above:
            if parent.get(key) is None:
                parent[key] = FileMapping()
            parent = parent[key]
            if not isinstance(parent, FileMapping):
                raise GraphError(place or self.file, f"expected a mapping, got `{type(parent).__name__}`")
        parent[last] = _copied(value, place or self.file)
        if place:
            parent.places[last] = place

    def graft(self, keys: Keys, other: "Document", at: Keys = ()) -> None:
        """Write the value at `at` of another document at `keys`."""
        self.put(keys, other.at(at), other.place(at))

    def underlay(self, keys: Keys, other: "Document", at: Keys = ()) -> None:
        """Write what the mapping at `keys` leaves out of that at `at` of another document, and so in the mappings within them."""
        for key, value in other.mapping(at).items():
            own = self.mapping(keys)
            if key not in own:
                self.graft((*keys, key), other, (*at, key))
            elif isinstance(own[key], dict) and isinstance(value, dict):
                self.underlay((*keys, key), other, (*at, key))

    def named(self, keys: Keys, kind: FileKind) -> "Document":
        """The document in the file of this `kind` that the value at `keys` names: next to this file, or of a setting in the working folder.
        Raises `GraphError`."""
        beside = Path() if self.place(keys).startswith(SET) else Path(self.file).parent
        try:
            path = find_file(str(self.at(keys)), kind, beside=beside)
        except UsageError as error:
            raise self.flaw(keys, str(error)) from error
        return Document.read(path)

    def place(self, keys: Keys) -> str:
        """Where the value at `keys` was written: a file with the line, or a setting."""
        place, value = self._first, self.values
        with suppress(KeyError, IndexError, TypeError):
            for key in keys:
                place = getattr(value, "places", {}).get(key, place)
                value = value[key]
        return place

    def flaw(self, keys: Keys, what: str, *, key: str | None = None) -> GraphError:
        """The error of the value at `keys`; `key`: of this key of the mapping there."""
        place = self.place(keys if key is None else (*keys, key))
        return GraphError(place if place.startswith(SET) else f"{place}: {_shown(keys)}", what)

    def mapping(self, keys: Keys) -> dict[str, Any]:
        """The mapping at `keys`; raises `GraphError` where something else is there."""
        value = self.at(keys)
        if not isinstance(value, dict):
            raise self.flaw(keys, f"expected a mapping, got {'nothing' if value is None else f'`{type(value).__name__}`'}")
        return value

    def decode(self, keys: Keys, to: type[S], given: Mapping[str, Any] = {}) -> S:
        """Decode the mapping at `keys` as `to`; `given` overrides its values. Raises `GraphError`."""
        raw = {**self.mapping(keys), **given}
        try:
            return msgspec.convert(raw, to)
        except msgspec.ValidationError as error:
            at, key, what = _explained(str(error), raw, to)
            raise self.flaw((*keys, *at), what, key=key) from error

    def kind(self, keys: Keys, tag: str, known: Mapping[str, type[S]]) -> type[S]:
        """The one of the `known` Structs that the key `tag` of the mapping at `keys` names; raises `GraphError`."""
        name = self.mapping(keys).get(tag)
        if isinstance(name, str) and name in known:
            return known[name]
        if name is None:
            raise self.flaw(keys, f"has no `{tag}`; {did_you_mean('', known)}")
        raise self.flaw((*keys, tag), f"unknown {tag} `{name}`; {did_you_mean(str(name), known)}")

    def tagged(self, keys: Keys, tag: str, known: Mapping[str, type[S]]) -> S:
        """The mapping at `keys` as the one of the `known` Structs that its key `tag` names; raises `GraphError`."""
        return self.decode(keys, self.kind(keys, tag, known))


def _copied(value: Any, file: str) -> Any:
    """A copy of mappings and lists, those within them included; raises `GraphError` for a key that is no text."""
    if isinstance(value, list):
        return [_copied(each, file) for each in value]
    if not isinstance(value, Mapping):
        return value
    found = FileMapping()
    found.places |= getattr(value, "places", {})
    for key, each in value.items():
        if not isinstance(key, str):
            raise GraphError(file, f"the key `{key}` is not text")
        found[key] = _copied(each, file)
    return found


def parse(text: str, file: str = "") -> Any:
    """The value of one YAML document, whose mappings know their lines in `file`; raises `GraphError`."""
    try:
        return _Loader(text, file).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = file if mark is None else f"{file}, line {mark.line + 1}"
        raise GraphError(where, f"invalid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise GraphError(file, f"invalid YAML: {reason(error)}") from error
    except RecursionError as error:
        raise GraphError(file, "is nested too deeply") from error


def written(value: Any, **layout: Any) -> str:
    """`value` as YAML, by default of one line, of which `parse` makes the same value of the same type; raises `TypeError` for what YAML
    cannot hold."""
    try:
        style: dict[str, Any] = {"default_flow_style": True, "width": 1 << 30, **layout}
        text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, **style)
    except yaml.YAMLError as error:
        raise TypeError(f"a value of type `{type(value).__name__}` cannot be written as YAML") from error
    return text.removesuffix("...\n").rstrip("\n")


def setting(name: str, value: Any) -> str:
    """`NAME=VALUE` as `--set` takes it. Every value that becomes a setting goes through here: `str()` makes text of None and booleans."""
    return f"{name}={written(value)}"


def shown(values: Mapping[str, Any]) -> str:
    """Values as a user would write them, texts without quotes: `statistic=min answer_confident=null`."""
    return " ".join(f"{name}={value}" if isinstance(value, str) else setting(name, value) for name, value in values.items())


def read_setting(setting: str) -> tuple[str, Any]:
    """Name and value of a `NAME=VALUE`; raises `GraphError`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise GraphError(f"{SET}{setting}", "expected NAME=VALUE")
    return name, parse(text, f"{SET}{setting}")


def _shown(keys: Keys) -> str:
    """A path as errors show it: `$.examples[0].reply`."""
    return "$" + "".join(f"[{key}]" if isinstance(key, int) or key == "..." else f".{key}" for key in keys)


def _explained(message: str, raw: Any, to: type[Struct]) -> tuple[Keys, str | None, str]:
    """msgspec's message as path, key that is unknown or missing there, and a clause with the value and what would be right."""
    what, _, at = message.partition(" - at `$")
    keys: Keys = tuple(int(index) if index.isdigit() else name or index for name, index in re.findall(r"\.([^.\[`]+)|\[(.+?)\]", at))
    place, struct, types = raw, to, list[Any]()
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else place
        types = next((_types(field.type) for field in structs.fields(struct) if field.encode_name == key), types)
        struct = next((each for each in types if isinstance(each, type) and issubclass(each, Struct)), struct)
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        config = struct.__struct_config__
        known = [*struct.__struct_encode_fields__, *([config.tag_field] if config.tag_field else [])]
        return keys, unknown[1], f"unknown key `{unknown[1]}`; {did_you_mean(unknown[1], known)}"
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return keys, missing[1], f"the key `{missing[1]}` is missing"
    choices = [str(choice) for each in types if get_origin(each) is Literal for choice in get_args(each)]
    tags = [each.__struct_config__ for each in types if isinstance(each, type) and issubclass(each, Struct)]
    choices += [str(each.tag) for each in tags if (each.tag_field,) == keys[-1:]]
    if choices and what.startswith(("Invalid enum value", "Invalid value", "Expected `str`")):
        return keys, None, f"unknown value `{place}`; {did_you_mean(str(place), choices)}"
    got = "" if ", got" in what or isinstance(place, dict | list) else f", got {place!r}"
    return keys, None, what[0].lower() + what[1:] + got


def _types(kind: Any) -> list[Any]:
    """The types that a field may have, those within others included."""
    inner = () if get_origin(kind) is Literal else get_args(kind)
    return [each for part in inner for each in _types(part)] or [kind]
