"""Files by name, and the YAML in them: a name or a path enters, and values leave that know where they were written.

In a checkout the bundled files are the repository's own `graphs/` and `datasets/`, in a wheel they lie in the package. Plain scalars are
those of YAML 1.2's core schema. Nothing in a file can run code or name a type.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from pipeline.errors import GraphError, UsageError, did_you_mean, reason

FileKind = Literal["graph", "engines file", "prompts file", "preset", "reward model", "training file", "study file"]
"""The kinds of bundled files."""

BUNDLED = "bundled:"
"""The prefix of the names of models and adapters that are in this package."""
_PACKAGE = Path(__file__).parents[1]
_ROOT = _PACKAGE if (_PACKAGE / "graphs").is_dir() else _PACKAGE.parent
FOLDERS: dict[FileKind, Path] = {
    "graph": _ROOT / "graphs",
    "engines file": _ROOT / "graphs" / "engines",
    "prompts file": _ROOT / "graphs" / "prompts",
    "preset": _ROOT / "graphs" / "presets",
    "reward model": _ROOT / "graphs" / "rewards",
    "training file": _ROOT / "graphs" / "training",
    "study file": _ROOT / "graphs" / "studies",
}
ARITH = _ROOT / "datasets" / "arith"
"""The folder of the bundled problems, a Parquet file a split."""
REPLAY = "replay:"
"""Marks a run folder where the name of an engines file is expected: `replay:RUN`."""
OPTION, SET = "--", "--set "
"""How the place of a value begins that an option gave, and one that a setting wrote."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    "str": (r"(?!)", ""),
}
"""The form and the first characters of plain scalars. All else is text: `yes`, `1_000`, `1:30`, `0x10` and dates too."""


class FileMapping(dict[str, Any]):
    """A mapping that knows where it and its values were written: a file with the line, or a setting."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.places: dict[str, str] = {}

    def put(self, keys: tuple[str, ...], value: Any, place: str) -> None:
        """Write `value` from this `place` at `keys`, in mappings that are made where there are none; raises `GraphError` where
        another value is in the way."""
        key, *below = keys
        if not below:
            self[key], self.places[key] = copied(value, place), place
            return
        if self.get(key) is None:
            self[key], self.places[key] = FileMapping(place), place
        if not isinstance(self[key], FileMapping):
            raise GraphError(place, f"expected a mapping, got `{type(self[key]).__name__}`")
        self[key].put((*below,), value, place)


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
        found = FileMapping(self.file)
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


def replayed(engines: Path | None) -> Path | None:
    """The run folder in `replay:RUN`, absolute; None for the name of a file."""
    name = str(engines or "")
    return Path(name.removeprefix(REPLAY)).absolute() if name.startswith(REPLAY) else None


def model_name(model: str) -> str:
    """The name of a model, without its folder or owner."""
    return model.removeprefix(BUNDLED).rstrip("/").rpartition("/")[2]


def bundled_files(kind: FileKind) -> dict[str, Path]:
    """The bundled files of this kind by name."""
    return {path.stem: path for path in sorted(FOLDERS[kind].glob("*.yaml"))}


def find_file(name: Path | str, kind: FileKind, beside: Path = Path()) -> Path:
    """The file that `name` means: a path as it stands, else the bundled file of this `kind` that is called so.

    `name` is a path where it holds a separator, ends in `.yaml` or names an existing file, which goes before a bundled file of
    the same name. Relative paths count from the folder `beside`. Raises `UsageError` for a name that is not known; whether
    a path leads to a file is not checked.
    """
    text, path = str(name), beside / name
    if text.endswith((".yaml", ".yml")) or os.sep in text or (os.path.exists(path) and not os.path.isdir(path)):
        return path
    if text in (known := bundled_files(kind)):
        return known[text]
    raise UsageError(f"no {kind} is named `{text}` and there is no such file; {did_you_mean(text, known)}")


def read_file(name: Path | str, kind: FileKind, beside: Path = Path()) -> FileMapping:
    """The values in the file that `name` means, as `find_file` finds it; raises `GraphError` where it holds no mapping."""
    file = str(path := find_file(name, kind, beside))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise GraphError(file, f"cannot be read: {reason(error)}") from error
    values = parse(text, file)
    if not isinstance(values, dict):
        raise GraphError(file, "is empty" if values is None else f"expected a mapping, got `{type(values).__name__}`")
    found: FileMapping = copied(values, f"{file}, line 1")
    return found


def copied(value: Any, place: str) -> Any:
    """A copy of mappings and lists, which were written at `place` unless they know it better: a YAML alias becomes a separate value.
    Raises `GraphError` for a key that is no text."""
    if isinstance(value, list):
        return [copied(each, place) for each in value]
    if not isinstance(value, Mapping):
        return value
    found = FileMapping(place)
    found.places |= getattr(value, "places", {})
    for key, each in value.items():
        if not isinstance(key, str):
            raise GraphError(place, f"the key `{key}` is not text")
        found[key] = copied(each, place)
    return found


def parse(text: str, file: str = "") -> Any:
    """The value of one YAML document, whose mappings know their lines in `file`; raises `GraphError`."""
    try:
        return _Loader(text, file).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise GraphError(f"{file}, line {mark.line + 1}" if mark else file, f"invalid YAML: {problem or reason(error)}") from error


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


def read_setting(setting: str) -> tuple[str, Any, str]:
    """Name, value and place of a `NAME=VALUE`; raises `GraphError`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise GraphError(f"{SET}{setting}", "expected NAME=VALUE")
    return name, parse(text, f"{SET}{setting}"), f"{SET}{setting}"
