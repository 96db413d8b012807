"""Reference pages that are written by hand say what the source says: environment variables, errors, where the code is."""

import re
from functools import cache

from tests.support.paths import ROOT

PAGES = ROOT / "docs/pages"
NO_VARIABLES = {"CAUSAL_LM", "PCI_BUS_ID"}
"""Texts in capitals that mean something else: values."""
OF_LIBRARIES = {
    *("GOOGLE_APPLICATION_CREDENTIALS", "HF_HOME", "HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("PIPELINE_RUN_BATCH_SIZE", "VLLM_BATCH_INVARIANT", "VLLM_USE_V2_MODEL_RUNNER", "STORAGE_EMULATOR_HOST"),
}
"""Variables that libraries read, and one that click reads for an option."""


@cache
def source() -> str:
    """All of the package's source."""
    return "\n".join(path.read_text() for path in (ROOT / "pipeline").rglob("*.py"))


def test_every_environment_variable_is_on_its_page() -> None:
    page = (PAGES / "reference/environment.md").read_text()
    known = set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', source())) - NO_VARIABLES
    named = {name for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", page) if "_" in name}
    assert known - named == set()
    assert named - known - OF_LIBRARIES == set()


def test_errors_that_are_explained_exist() -> None:
    page = (PAGES / "troubleshooting.md").read_text()
    explained = [part for said in re.findall(r"^\*\*`([^`]+)`", page, re.MULTILINE) for part in said.split(" ... ")]
    assert len(explained) > 5
    assert [each for each in explained if each not in source()] == []


def test_the_architecture_names_what_is_there() -> None:
    page = (PAGES / "dev/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+/)` \|(.*)\|$", page, re.MULTILINE)
    modules = [folder + name for folder, what in rows for names in re.findall(r"\(`([^)]*)`\)", what) for name in names.split("`, `")]
    assert len(modules) > 15
    assert [name for name in modules if not (ROOT / f"pipeline/{name}.py").exists()] == []
    for text in (page, (ROOT / "CONTRIBUTING.md").read_text()):
        named = re.findall(r"`([\w./-]+(?:\.py|/))`", text)
        places = [ROOT, ROOT / "pipeline", ROOT / "pipeline/stages", ROOT / "pipeline/engines"]
        assert len(named) > 10
        assert [name for name in named if not any((place / name).exists() for place in places)] == []
