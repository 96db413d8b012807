"""A server for all tests of this folder, and an environment with credentials for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.object_stores import ObjectServer


@pytest.fixture(scope="session", name="server")
def _server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own: no credentials, no metadata service, no folder in the user's cache."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_NO_SIGN_REQUEST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GS_NO_SIGN_REQUEST", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "staging"))


@pytest.fixture(name="store")
def _store(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """The server, found by the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    return server


@pytest.fixture(name="prefix")
def _prefix(request: pytest.FixtureRequest) -> str:
    """A folder of the bucket that no other test has."""
    return "".join(char if char.isalnum() else "-" for char in request.node.nodeid.partition("::")[2])
