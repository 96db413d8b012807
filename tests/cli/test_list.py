"""`pipeline list`: everything bundled is listed."""

import json

import pytest

from pipeline.cli.author import catalog
from pipeline.cli.author.catalog import KINDS
from pipeline.graph.files import bundled_files
from tests.support.commands import pipeline


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
