"""A real S3 server in this process, and an environment with credentials for it alone."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", name="server")
def _server() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        url = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
        client.create_bucket(Bucket="runs")
    yield client
    server.stop()


@pytest.fixture(name="store")
def _store(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A client of the server, which the environment names."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    given = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {"AWS_ENDPOINT_URL": server.meta.endpoint_url, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "first")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return server
