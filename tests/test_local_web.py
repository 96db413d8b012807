"""Requests that a browser makes for a page of another site are told from all others."""

import pytest

from pipeline.local_web import is_foreign, is_named


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("gpu1:8000", True),
        ("0.0.0.0:8000", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("[::1", False),
    ],
)
def test_a_name_that_another_site_could_have_is_not_this_machine(host: str, named: bool) -> None:
    assert is_named({"host": host}, ("gpu1",)) == named
    assert not is_named({}, ("gpu1",))


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"origin": "http://127.0.0.1:8000"}, False),
        ({"origin": "http://127.0.0.1:9000"}, True),
        ({"origin": "null"}, True),
    ],
)
def test_what_a_browser_says_of_the_page_that_asks_is_believed(headers: dict[str, str], foreign: bool) -> None:
    assert is_foreign({"host": "127.0.0.1:8000", **headers}) == foreign
