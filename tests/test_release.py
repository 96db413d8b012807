"""What a release states: extras are those that errors about missing packages name; version, date and papers are the same everywhere."""

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from pipeline.engines.vllm.backend import VERSIONS
from tests.support.paths import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = {extra: {re.split(r"[\[<>=~ ]", each, maxsplit=1)[0] for each in needed} for extra, needed in EXTRAS.items()}


def calls(name: str) -> Iterator[tuple[str, list[ast.expr]]]:
    """The calls of a function of this name in the package: where they stand, and their arguments."""
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if name in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.args


def constant(value: ast.expr) -> str | None:
    return str(value.value) if isinstance(value, ast.Constant) else None


RAISED = [(where, constant(package), constant(extra)) for where, (_, package, extra, *_) in calls("MissingExtra")]
MISSING = RAISED + [(where, constant(each), constant(extra)) for where, (_, extra, *needed) in calls("require") for each in needed]
COMMANDS = [(where, constant(extra)) for where, (extra,) in calls("install_command")]


def test_each_error_names_an_extra_that_brings_the_package() -> None:
    assert len(MISSING) > 4
    for where, package, extra in MISSING:
        if extra is not None:  # `require` has it from its caller
            assert package is not None
            assert package.replace("_", "-") in PACKAGES[extra], where
    assert {extra for where, extra in COMMANDS if extra} <= EXTRAS.keys()


def test_every_extra_is_named_where_it_is_needed() -> None:
    named = {extra for _, _, extra in MISSING} | {extra for _, extra in COMMANDS}
    assert EXTRAS.keys() - named == {"dev"}


def test_the_extra_vllm_installs_the_versions_that_are_supported() -> None:
    low, high = (".".join(map(str, bound)) for bound in VERSIONS)
    assert f"vllm>={low},<{high}" in EXTRAS["vllm"][0].replace(" ", "")


def test_the_newest_version_of_the_changelog_is_that_of_the_package_and_every_one_has_a_date() -> None:
    text = (ROOT / "CHANGELOG.md").read_text().replace("\n## [Unreleased]\n", "", 1)
    released = re.findall(r"^## \[(.*)\] - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert len(released) == text.count("\n## ")
    assert released[0] == (VERSION, str(CITATION["date-released"]))


def test_the_citation_names_this_version_and_the_papers_that_the_readme_links() -> None:
    assert CITATION["version"] == VERSION
    readme = (ROOT / "README.md").read_text()
    for paper in CITATION["references"]:
        assert paper["url"].rstrip("/") in readme, paper["title"]
