"""A YAML document on its way to typed values: the mapping in a file enters, Structs leave, and all that is wrong with it, each flaw as a
`GraphError` with the file, the line, the path and what would be right.

Every part of the document has an origin: the file it is in, another file that was merged into it, or a setting. So a path in the document
is enough to say where a value was written, whoever finds the flaw.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from pipeline.errors import GraphError, GraphErrors, did_you_mean
from pipeline.graph.yaml_file import Keys, NotYaml, YamlFile, parse, read_lines

MAX_FLAWS = 50
"""Maximum number of flaws in one error."""
S = TypeVar("S", bound=Struct)


class WrittenAt(NamedTuple):
    """Where a part of a document was written."""

    file: str
    """A file, or words for what is none."""
    keys: Keys | None = ()
    """The path in it; None of a setting, which is named alone."""
    lines: YamlFile | None = None

    def below(self, keys: Keys) -> "WrittenAt":
        """The origin of what is at `keys` below this part."""
        return self if self.keys is None else self._replace(keys=(*self.keys, *keys))

    @property
    def line(self) -> int:
        """From 1; 0 where there are no lines."""
        return 0 if self.lines is None or self.keys is None else self.lines.line(self.keys)


class Document:
    """The values of a document, their origins, and the flaws that were found in it."""

    def __init__(self, values: Mapping[str, Any], file: Path | str, lines: YamlFile | None = None) -> None:
        self.values: dict[str, Any] = _copied(values)
        self.file = str(file)
        self._origins: dict[Keys, WrittenAt] = {(): WrittenAt(self.file, (), lines)}
        self._flaws: list[tuple[tuple[int, int], GraphError]] = []
        """The flaws, with the places of their files among all and their lines."""
        self._closed: set[Keys] = set()

    @classmethod
    def read(cls, path: Path) -> "Document":
        """The document in a file; raises `GraphError` where it holds no mapping."""
        found = read_lines(path)
        return cls(found.values, path, found)

    def at(self, keys: Keys) -> Any:
        """The value at `keys`; None where there is none."""
        value: Any = self.values
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def put(self, keys: Keys, value: Any, origin: WrittenAt | None = None) -> None:
        """Write `value` at `keys`, in mappings that are made where there are none; raises `GraphError` where another value is in the way.

        It has the `origin`; None: what is at `keys` is said to be there.
        """
        parent: Any = self.values
        for key in keys[:-1]:
            if parent.get(key) is None:
                parent[key] = {}
            parent = parent[key]
            if not isinstance(parent, dict):
                raise GraphError((origin or self.origin(keys)).file, f"expected a mapping, got `{type(parent).__name__}`")
        parent[keys[-1]] = _copied(value)
        if origin is not None:
            self._origins = {each: old for each, old in self._origins.items() if each[: len(keys)] != keys} | {keys: origin}

    def origin(self, keys: Keys) -> WrittenAt:
        """Where the value at `keys` was written."""
        base = next(keys[:end] for end in range(len(keys), -1, -1) if keys[:end] in self._origins)
        return self._origins[base].below(keys[len(base) :])

    def borrow(self, keys: Keys, source: Keys) -> None:
        """Let the value at `keys` be that at `source`, and its origin too where that is another than this file."""
        origin = self.origin(source)
        if origin.file != self.file:
            self._origins[keys] = origin

    def flaw(self, keys: Keys, what: str, *, key: str | None = None) -> None:
        """Note a flaw of the value at `keys`; `key`: of this key of the mapping there."""
        if any(keys[: len(each)] == each for each in self._closed):
            return
        place = self.origin(keys if key is None else (*keys, key))
        line, shown = place.line, "" if place.keys is None else f": {_shown(place.keys if key is None else place.keys[:-1])}"
        error = GraphError(f"{place.file}{f', line {line}' if line else ''}{shown}", what)
        files = list(dict.fromkeys(each.file for each in self._origins.values()))
        self._flaws.append(((files.index(place.file), line), error))

    def close(self, keys: Keys) -> None:
        """Note no further flaw at `keys` and below."""
        self._closed.add(keys)

    def add(self, error: GraphError) -> None:
        """Note an error, or each of them where it is several."""
        self._flaws += [((-1, 0), each) for each in (error.errors if isinstance(error, GraphErrors) else (error,))]

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a `GraphError` of the body and continue after it."""
        try:
            yield
        except GraphError as error:
            self.add(error)

    @property
    def is_flawed(self) -> bool:
        return bool(self._flaws)

    def check(self) -> None:
        """Raise all flaws, file after file in the order of their lines; nothing where there are none."""
        raise_all(error for _, error in sorted(self._flaws, key=lambda flaw: flaw[0]))

    def mapping(self, keys: Keys) -> dict[str, Any] | None:
        """The mapping at `keys`; None, and a flaw, where something else is there."""
        value = self.at(keys)
        if isinstance(value, dict):
            return value
        self.flaw(keys, f"expected a mapping, got {'nothing' if value is None else f'`{type(value).__name__}`'}")
        return None

    def decode(self, keys: Keys, to: type[S], given: Mapping[str, Any] = {}) -> S | None:
        """The `to` that the mapping at `keys` describes, with `given` in place of what it says; None, and flaws, where it does not.

        msgspec names the first flaw alone; the value that has it is then left out, and the rest is tried again.
        """
        raw = self.mapping(keys)
        if raw is None:
            return None
        left, dropped = {**raw, **given}, list[Keys]()
        while True:
            try:
                found = msgspec.convert(left, to)
            except msgspec.ValidationError as error:
                at, key, what = _explained(str(error), left, to)
                bad = at if key is None else (*at, key)
                if not _was_dropped(bad, dropped):
                    self.flaw((*keys, *at), what, key=key)
                if not bad or (gone := _drop(left, bad)) in dropped:
                    return None
                dropped.append(gone)
            else:
                return None if dropped else found

    def decoded(self, to: type[S]) -> S:
        """The `to` that the whole document describes; raises its flaws."""
        found = self.decode((), to)
        self.check()
        assert found is not None
        return found

    def tagged(self, keys: Keys, tag: str, known: Mapping[str, type[S]]) -> S | None:
        """The mapping at `keys` as the one of the `known` Structs that its key `tag` names; None, and flaws, where it is none."""
        if self.mapping(keys) is None or (kind := self.kind(keys, tag, known)) is None:
            return None
        return self.decode(keys, kind)

    def kind(self, keys: Keys, tag: str, known: Mapping[str, type[S]]) -> type[S] | None:
        """The one of the `known` Structs that the key `tag` of the mapping at `keys` names; None, and a flaw, where it names none."""
        name = self.at((*keys, tag))
        if isinstance(name, str) and name in known:
            return known[name]
        if name is None:
            self.flaw(keys, f"has no `{tag}`; {did_you_mean('', known)}")
        else:
            self.flaw((*keys, tag), f"unknown {tag} `{name}`; {did_you_mean(str(name), known)}")
        return None


def raise_all(errors: Iterable[GraphError]) -> None:
    """Raise one flaw as it is, several as `GraphErrors`, each once; nothing where there is none."""
    found = list({str(error): error for error in errors}.values())[:MAX_FLAWS]
    if len(found) == 1:
        raise found[0]
    if found:
        raise GraphErrors(found)


def read_setting(setting: str) -> tuple[str, Any]:
    """Name and value of a `NAME=VALUE`; raises `GraphError`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise GraphError(f"--set {setting}", "expected NAME=VALUE")
    try:
        return name, parse(text)
    except NotYaml as error:
        raise GraphError(f"--set {setting}", f"{text!r} is not a YAML value") from error


def unknown_key(key: str, struct: type[Struct]) -> str:
    """The flaw that `struct` does not have a `key`, with the most similar one that it has."""
    config = struct.__struct_config__
    known = [*struct.__struct_encode_fields__, *([config.tag_field] if config.tag_field else [])]
    return f"unknown key `{key}`; {did_you_mean(key, known)}"


def _copied(value: Any) -> Any:
    """A copy of what a document holds, mappings within mappings included."""
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _shown(keys: Keys) -> str:
    """A path as errors show it: `$.examples[0].reply`."""
    return "$" + "".join(f"[{key}]" if isinstance(key, int) or key == "..." else f".{key}" for key in keys)


def _drop(value: dict[str, Any], keys: Keys) -> Keys:
    """Leave out what is at `keys` of `value`, or the nearest value above it that a mapping holds; the path of what is left out."""
    for end, key in enumerate(keys, 1):
        inner = value.get(str(key))
        if end == len(keys) or not isinstance(inner, dict) or keys[end] not in inner:
            value.pop(str(key), None)
            break
        value[str(key)] = value = dict(inner)
    return keys[:end]


def _was_dropped(keys: Keys, dropped: Iterable[Keys]) -> bool:
    """True if the value at `keys` was left out before, perhaps under a misspelt name."""
    last = str(keys[-1]) if keys else ""
    return any(keys[:-1] == each[:-1] and get_close_matches(last, [str(each[-1])]) for each in dropped)


def _explained(message: str, raw: Any, to: type[Struct]) -> tuple[Keys, str | None, str]:
    """msgspec's message as path, key that is unknown or missing there, and a clause with the value and what would be right."""
    what, _, at = message.partition(" - at `$")
    keys: Keys = tuple(int(index) if index.isdigit() else name or index for name, index in re.findall(r"\.([^.\[`]+)|\[(.+?)\]", at))
    place, struct, parent = raw, to, to
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else place
        parent, struct = struct, _field_struct(struct, key) or struct
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        return keys, unknown[1], unknown_key(unknown[1], struct)
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return keys, missing[1], f"the key `{missing[1]}` is missing"
    if keys and what.startswith(("Invalid enum value", "Expected `str`")) and (choices := _choices(parent, keys[-1])):
        return keys, None, f"unknown value `{place}`; {did_you_mean(str(place), choices)}"
    got = "" if ", got" in what or isinstance(place, dict | list) else f", got {place!r}"
    return keys, None, what[0].lower() + what[1:] + got


def _choices(struct: type[Struct], key: str | int) -> list[str]:
    """The values that a field of type `Literal` may have, for the message about another one."""
    kinds = (kind for field in structs.fields(struct) if field.encode_name == key for kind in (field.type, *get_args(field.type)))
    return [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]


def _field_struct(struct: type[Struct], key: str | int) -> type[Struct] | None:
    """The Struct that the field `key` of `struct` holds; None where it holds none."""
    for field in structs.fields(struct):
        for kind in get_args(field.type) or (field.type,):
            if field.encode_name == key and isinstance(kind, type) and issubclass(kind, Struct):
                return kind
    return None
