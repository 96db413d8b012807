"""Study files: what a study compares with what, and which tables come out. A YAML file enters, its parts leave, each with all its keys.

The keys of a study are those of each of its parts where the part does not say them itself, but for `tables`; those under `small` take their
place in its small form, which runs on what is bundled. Nothing is opened but this file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from pipeline.graph.decode import Keys, WrongValue, decode, located
from pipeline.graph.files import FileMapping, find_file, read_file
from pipeline.graph.spec import Count, Param
from pipeline.options import ScheduleName

Text = Annotated[str, Meta(min_length=1)]
OTHER_SUBSET = {"limit": "random", "random": "limit"}
"""Keys that each say which problems there are, of which the last one said counts."""


class SystemEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph with values of some of its params."""

    graph: Text
    """A graph file, or the name of a bundled graph."""
    set: dict[str, Param] = {}
    """Values of its params, which tell it from other systems of the same graph."""


class EnginesEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engines file with other values for some of its keys."""

    engines: Text
    """An engines file, or the name of a bundled one."""
    name: Text
    """Its name in tables and folders."""
    set: dict[str, Param] = {}
    """Values as of `--set`, such as `engines.draft.model`."""


class DataEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some problems of a data set."""

    data: Text
    """As an entry of `data`."""
    limit: Count | None = None
    """Only the first N problems."""
    random: Text | None = None
    """Only N random problems: `N:SEED`."""
    columns: dict[str, str] = {}
    """Columns of the file, as of `--column`: problem, answer, problem_id, options or grader."""


class PartKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a part of a study; a key that is left out comes from the study, or has its default."""

    systems: Annotated[tuple[Text | SystemEntry, ...], Meta(min_length=1)] | UnsetType = UNSET
    """The graphs that solve the problems, by name or file, each beside the baseline."""
    baseline: Text | UnsetType = UNSET
    """The graph that they are compared with, on the same engines; by default `target`."""
    engines: Annotated[tuple[Text | EnginesEntry, ...], Meta(min_length=1)] | UnsetType = UNSET
    """Engines files by name or path; by default those that the graphs name."""
    baseline_engines: tuple[Text, ...] | UnsetType = UNSET
    """Engines files on which the baseline runs as well; by default none."""
    data: Annotated[tuple[Text | DataEntry, ...], Meta(min_length=1)] | UnsetType = UNSET
    """Data sets: the name of a recipe, whose problems are bundled or in `data/NAME.parquet`, or a file of problems."""
    limit: Count | UnsetType | None = UNSET
    """Only the first N problems of each data set."""
    random: Text | UnsetType | None = UNSET
    """Only N random problems of each data set: `N:SEED`."""
    preset: Text | UnsetType | None = UNSET
    """Settings of a paper, as of `--preset`."""
    set: dict[str, Param] | UnsetType = UNSET
    """Settings of all systems and engines that have them, as of `--set`; they go before those of the preset."""
    params: dict[str, Annotated[tuple[Param, ...], Meta(min_length=1)]] | UnsetType = UNSET
    """Values of params by name; every combination is run. Where the baseline has the param too, it is run with each value as well."""
    batch_sizes: Annotated[tuple[Count, ...], Meta(min_length=1)] | UnsetType = UNSET
    """Most chains in progress at once."""
    schedules: tuple[ScheduleName, ...] | UnsetType = UNSET
    """By default `pipelined`."""
    samples: Count | UnsetType = UNSET
    """Attempts at every problem; by default those of the preset, or 1."""
    seeds: Annotated[tuple[int, ...], Meta(min_length=1)] | UnsetType = UNSET
    """Random seeds, a run for each; tables pool them. By default 0."""
    repeats: Count | UnsetType = UNSET
    """Runs of every point on real engines; by default 1."""
    prm: Text | UnsetType | None = UNSET
    """A reward model that then scores the drafted steps, as `pipeline score --prm`."""
    tables: tuple[Text, ...] | UnsetType = UNSET
    """Tables as of `compare --table`: of a study over all its runs, of a part over those of the part."""


class PartSpec(PartKeys, frozen=True, kw_only=True):
    """A part of a study: systems that are compared with one baseline."""

    small: PartKeys = PartKeys()
    """Keys that take the place of those above in the study's small form."""


class StudySpec(PartSpec, frozen=True, kw_only=True):
    """A study."""

    title: Text
    """What is studied."""
    source: str = ""
    """Paper, table or figure, and section."""
    parts: dict[Text, PartSpec] = {}
    """By name; a study without them is one part."""


class StudyPart(Struct, frozen=True, kw_only=True):
    """A part of a study with all its keys."""

    name: str
    where: dict[str, Keys]
    """By key the place in the file where it is said."""
    systems: tuple[SystemEntry, ...]
    baseline: str = "target"
    engines: tuple[EnginesEntry | None, ...] = (None,)
    """None: what the graphs name."""
    baseline_engines: tuple[str, ...] = ()
    data: tuple[DataEntry, ...]
    preset: str | None = None
    set: dict[str, Param] = {}
    params: dict[str, tuple[Param, ...]] = {}
    batch_sizes: tuple[int, ...]
    schedules: tuple[ScheduleName, ...] = ("pipelined",)
    samples: int | None = None
    seeds: tuple[int, ...] = (0,)
    repeats: int = 1
    prm: str | None = None
    tables: tuple[str, ...] = ()


class StudyFile(Struct, frozen=True, kw_only=True):
    """A study file that is read."""

    name: str
    """The file's name without `.yaml`."""
    spec: StudySpec
    values: FileMapping
    """For flaws, which name the line."""
    tables: tuple[str, ...]
    """The tables over the runs of all parts."""
    parts: tuple[StudyPart, ...]
    small: bool


def read_study_file(name: Path | str, *, small: bool) -> StudyFile:
    """The study in a file, which may be the name of a bundled one; raises `GraphError` for what is wrong in it."""
    path = find_file(name, "study file")
    values = read_file(path, "study file")
    with located(values):
        spec = decode(values, StudySpec)
        parts = tuple(_part(name, layers) for name, layers in _layers(spec, small))
    tables = spec.small.tables if small and spec.small.tables is not UNSET else spec.tables
    over_all = () if tables is UNSET or not spec.parts else tables  # without parts they are those of the only one
    return StudyFile(name=path.stem, spec=spec, values=values, tables=over_all, parts=parts, small=small)


def _layers(spec: StudySpec, small: bool) -> Iterator[tuple[str, list[tuple[Keys, PartKeys]]]]:
    """By name of each part where its keys are said; what is last goes before the others."""
    of_study: list[tuple[Keys, PartKeys]] = [((), spec), *([(("small",), spec.small)] if small else [])]
    if not spec.parts:
        yield "", of_study
    for name, part in spec.parts.items():
        keys: Keys = ("parts", name)
        own: list[tuple[Keys, PartKeys]] = [*of_study[:1], (keys, part), *of_study[1:]]
        yield name, [*own, *([((*keys, "small"), part.small)] if small else [])]


def _part(name: str, layers: Sequence[tuple[Keys, PartKeys]]) -> StudyPart:
    """The part with these layers of keys; raises `WrongValue` where it lacks one."""
    said: dict[str, Any] = {}
    where: dict[str, Keys] = {}
    for keys, layer in layers:
        if layer.limit and layer.random:
            raise WrongValue((*keys, "random"), "is given beside `limit`; give only one of them")
        for number, entry in enumerate(layer.data or ()):
            if isinstance(entry, DataEntry) and entry.limit and entry.random:
                raise WrongValue((*keys, "data", number), "has both `limit` and `random`; give only one of them")
        for field in structs.fields(PartKeys):
            value = getattr(layer, field.name)
            if value and (other := OTHER_SUBSET.get(field.name)):
                said.pop(other, None)  # of a layer below; both in one are a flaw
            inherited = field.name == "tables" and name and keys[:1] != ("parts",)
            if value is not UNSET and not inherited:
                said[field.name], where[field.name] = value, (*keys, field.name)
    place: Keys = ("parts", name) if name else ()
    for key in ("systems", "data", "batch_sizes"):
        if key not in said:
            raise WrongValue(place, f"has no `{key}`, and neither has the study" if name else f"the key `{key}` is missing")
    limits = {key: said.pop(key, None) for key in ("limit", "random")}
    said["systems"] = tuple(SystemEntry(graph=each) if isinstance(each, str) else each for each in said["systems"])
    said["data"] = tuple(_data(each, limits) for each in said["data"])
    if "engines" in said:
        said["engines"] = tuple(_engines(each) for each in said["engines"])
    return StudyPart(name=name, where=where, **said)


def _data(entry: str | DataEntry, limits: dict[str, Any]) -> DataEntry:
    """An entry with the limits of its part, where it has none itself."""
    if isinstance(entry, str):
        return DataEntry(data=entry, **limits)
    return entry if entry.limit or entry.random else structs.replace(entry, **limits)


def _engines(entry: str | EnginesEntry) -> EnginesEntry:
    return EnginesEntry(engines=entry, name=Path(entry).name.removesuffix(".yaml")) if isinstance(entry, str) else entry
