"""`pipeline list` and `graph schema`: everything bundled is listed, and what a schema allows is what the loader accepts."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.bundled import FOLDERS, bundled_files
from pipeline.cli.author import catalog, files
from pipeline.cli.author.catalog import KINDS
from tests.support.commands import pipeline
from tests.support.paths import ROOT


def test_without_a_kind_the_kinds_are_listed() -> None:
    listed = pipeline("list").stdout
    assert all(f"\n{kind} " in listed for kind in ("graphs", "engines", "tables"))
    assert [each["name"] for each in json.loads(pipeline("list", "--json").stdout)][:2] == ["graphs", "engines"]


def test_the_list_of_graphs_begins_with_the_main_ones() -> None:
    found = json.loads(pipeline("list", "graphs", "--json").stdout)
    assert {row["name"] for row in found} == set(bundled_files("graph"))
    assert [row["name"] for row in found[:4]] == ["speccot", "specreason", "scot", "target"]
    assert found[0]["params"]["candidates"] == 5
    assert all(row["about"] for row in found)
    printed = pipeline("list", "graphs").stdout
    assert "speccot" in printed
    assert "None" not in printed


@pytest.mark.parametrize("kind", KINDS)
def test_everything_bundled_is_listed_with_what_it_is(kind: str) -> None:
    found = json.loads(pipeline("list", kind, "--json").stdout)
    assert all(row["name"] and row["about"] for row in found)
    printed = pipeline("list", kind).stdout
    assert all(row["name"] in printed for row in found)
    if kind in catalog.FILES:
        assert {row["name"] for row in found} == set(bundled_files(catalog.FILES[kind]))


FILES = [
    *((path, "graph") for path in FOLDERS["graph"].glob("*.yaml")),
    *((path, "engines") for path in FOLDERS["engines file"].glob("*.yaml")),
    *((path, "prompts") for path in FOLDERS["prompts file"].glob("*.yaml")),
    *((path, "preset") for path in FOLDERS["preset"].glob("*.yaml")),
    *((path, "study") for path in FOLDERS["study file"].glob("*.yaml")),
    *((path, f"training-{path.stem.rpartition('-')[2]}") for path in FOLDERS["training file"].glob("*.yaml")),
]
"""The name of a training file ends with that of its task."""


@cache
def schema_of(name: str) -> Any:
    return files.schema_of(name)


def errors(value: Any, schema: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema_of(schema))
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(value)]


@pytest.mark.parametrize(("path", "schema"), FILES, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_every_bundled_file_fits_its_schema(path: Path, schema: str) -> None:
    assert errors(yaml.safe_load(path.read_text()), schema) == []


@pytest.mark.parametrize(
    "change",
    [
        {"stages": {"x": {"kind": "nothing"}}},
        {"stages": {"x": {"kind": "answer", "engine": "target", "max_token": 3}}},
        {"stages": {"x": {"kind": "answer", "engine": "target", "max_tokens": "many"}}},
        {"nam": "x"},
        {"params": {"x": [1]}},
    ],
    ids=str,
)
def test_what_is_wrong_does_not_fit(change: dict[str, Any]) -> None:
    graph = yaml.safe_load((ROOT / "graphs/target.yaml").read_text())
    assert errors(graph | change, "graph")


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (
            {"kind": "answer", "engine": "target", "max_token": 3},
            "stages/x: Additional properties are not allowed ('max_token' was unexpected)",
        ),
        ({"engine": "target"}, "stages/x: 'kind' is a required property"),
        ({"kind": "anser"}, "stages/x/kind: 'anser' is not one of ['repeat', "),
    ],
    ids=str,
)
def test_an_error_in_a_stage_is_that_of_its_kind_alone(stage: dict[str, Any], said: str) -> None:
    graph = yaml.safe_load((ROOT / "graphs/target.yaml").read_text())
    [found] = errors(graph | {"stages": {"x": stage}}, "graph")
    assert found.startswith(said)


def test_the_schemas_beside_the_graphs_are_these() -> None:
    """`pipeline graph schema NAME > graphs/schemas/NAME.json` writes them again."""
    for name, schema in ((each, schema_of(each)) for each in files.SCHEMAS):
        assert json.loads((ROOT / f"graphs/schemas/{name}.json").read_text()) == json.loads(json.dumps(schema)), name
    for path, name in FILES:
        first = path.read_text().splitlines()[0]
        depth = "" if path.parent == FOLDERS["graph"] else "../"
        assert first == f"# yaml-language-server: $schema={depth}schemas/{name}.json", path


def test_keys_are_described() -> None:
    described = schema_of("graph")["$defs"]["DraftSpec"]["properties"]
    assert "context" in described["when"]["description"] or "verdict" in described["when"]["description"]
