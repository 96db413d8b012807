"""Through which proxy a URL is asked: never one on this machine, and of others the variable is known."""

import os

import anyio
import pytest

from pipeline.engines.openai.client import NoAnswer, Server
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.system.proxies import ask_directly, is_loopback, proxy_variable
from tests.support.paths import MODELS
from tests.support.small_server import VLLM, small_server

DEAD = "http://127.0.0.1:9"
"""A proxy that nobody runs."""


@pytest.fixture(autouse=True)
def unproxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "0.0.0.0")],
        *[(host, False) for host in ("10.0.0.1", "example.org", "localhost.example.org", "[2001:db8::1]", "127.example.org")],
    ],
)
def test_what_is_this_machine(host: str, here: bool) -> None:
    assert is_loopback(f"http://{host}:8000/v1") is here


@pytest.mark.parametrize(
    ("variables", "url", "named"),
    [
        ({}, "http://a.org/v1", None),
        ({"HTTP_PROXY": DEAD}, "http://a.org/v1", "HTTP_PROXY"),
        ({"http_proxy": DEAD}, "http://a.org/v1", "http_proxy"),
        ({"HTTP_PROXY": DEAD}, "https://a.org/v1", None),
        ({"HTTPS_PROXY": DEAD}, "https://a.org/v1", "HTTPS_PROXY"),
        ({"ALL_PROXY": DEAD}, "https://a.org/v1", "ALL_PROXY"),
        ({"HTTP_PROXY": DEAD, "NO_PROXY": "a.org"}, "http://a.org/v1", None),
        ({"HTTP_PROXY": DEAD}, "http://127.0.0.1:8000/v1", None),
        ({"ALL_PROXY": DEAD}, "http://localhost:8000/v1", None),
    ],
)
def test_which_variable_names_the_proxy(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, named: str | None) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_variable(url) == named


def test_a_server_here_is_asked_directly_and_another_s_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", DEAD)

    async def status(url: str) -> int:
        server = Server("engine 'target'", url, None, 1)
        try:
            return (await server.get("/models")).status
        finally:
            await server.aclose()

    with small_server(VLLM, HFTokenizer(str(MODELS / "tiny-target"))) as small:
        assert anyio.run(status, small.base_url) == 200
    with pytest.raises(NoAnswer, match="cannot be reached through the proxy that HTTP_PROXY names: "):
        anyio.run(status, "http://models.invalid/v1")


def test_a_store_here_is_asked_directly_by_a_library_that_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "a.org")
    monkeypatch.setenv("NO_PROXY", "")
    for url in ("http://127.0.0.1:9000", "http://127.0.0.1:9000", "http://b.org", "http://"):
        ask_directly(url)
    assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == ("a.org,127.0.0.1", "127.0.0.1")
