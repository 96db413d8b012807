"""What a schema allows is what the loader accepts, and the schemas beside the graphs are current."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from schemas import field_docs, schemas

from pipeline.graph.files import FOLDERS
from pipeline.training.config import DraftConfig, LoraSpec, SelectConfig
from tests.support.paths import ROOT

KINDS = {"graph": "graph", "engines file": "engines", "prompts file": "prompts", "study file": "study"}
FILES = [(path, name) for kind, name in KINDS.items() for path in FOLDERS[kind].glob("*.yaml")]  # type: ignore[index]
ANSWER = {"kind": "answer", "engine": "target"}

known = cache(schemas)


def errors(value: Any, schema: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(known()[schema])
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(value)]


@pytest.mark.parametrize(("path", "schema"), FILES, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_every_bundled_file_fits_its_schema(path: Path, schema: str) -> None:
    assert errors(yaml.safe_load(path.read_text()), schema) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": {"x": {"kind": "anser"}}}, "stages/x/kind: 'anser' is not one of ['repeat', "),
        ({"stages": {"x": ANSWER | {"max_token": 3}}}, "stages/x: Additional properties are not allowed ('max_token' was unexpected)"),
        ({"stages": {"x": ANSWER | {"max_tokens": "many"}}}, "stages/x/max_tokens: "),
        ({"params": {"x": [1]}}, "params/x: [1] is not "),
    ],
    ids=str,
)
def test_what_is_wrong_does_not_fit_and_of_a_stage_the_error_is_that_of_its_kind_alone(change: dict[str, Any], said: str) -> None:
    graph = yaml.safe_load((ROOT / "graphs/target.yaml").read_text())
    [found] = errors(graph | change, "graph")
    assert found.startswith(said)


def test_the_schemas_beside_the_graphs_are_these() -> None:
    """`python tools/schemas.py` writes them again."""
    assert {path.stem for path in (ROOT / "graphs/schemas").iterdir()} == set(known())
    for name, schema in known().items():
        assert json.loads((ROOT / f"graphs/schemas/{name}.json").read_text()) == json.loads(json.dumps(schema)), name
    for path, name in FILES:
        first = path.read_text().splitlines()[0]
        depth = "" if path.parent == FOLDERS["graph"] else "../"
        assert first == f"# yaml-language-server: $schema={depth}schemas/{name}.json", path


def test_keys_are_described() -> None:
    assert [name for struct in (SelectConfig, DraftConfig, LoraSpec) for name, said in field_docs(struct).items() if not said] == []
