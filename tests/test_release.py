"""Version, date and papers are the same wherever a release states them."""

import re
import tomllib
from typing import Any

import yaml

from tests.support.paths import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())


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
