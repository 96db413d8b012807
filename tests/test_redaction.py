"""Secrets of the environment are in nothing that is said."""

import pytest

from pipeline import text as redaction
from pipeline.text import declare_secret, is_secret, redact, redact_all, without

KEY = 'sk-canary/"\\42'


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HF_TOKEN", "hf_canary_token")
    monkeypatch.setenv("SHORT_KEY", "1")
    monkeypatch.setenv("EDITOR", "some-editor")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: ***."),
        ('{"error": "sk-canary/\\"\\\\42"}', '{"error": "***"}'),
        ('{"error": "sk-canary\\/\\"\\\\42"}', '{"error": "***"}'),
        ("hf_canary_token and hf_canary_token", "*** and ***"),
        ("http://user:pass@host/v1 and https://token@host", "http://***@host/v1 and https://***@host"),
        ("location: /x?k=sk-canary%2F%22%5C42, sk-canary/%22%5C42", "location: /x?k=***, ***"),
        ("<b>sk-canary/&quot;\\42</b>", "<b>***</b>"),
        (f"got {KEY!r}", "got '***'"),
        ("http://host/v1?a=1&api_key=abc&b=2 and ?Token=xyz#end", "http://host/v1?a=1&api_key=***&b=2 and ?Token=***#end"),
        ("is it ok?key=", "is it ok?key="),
        ("http://h/x?apikey=abcdef&pwd=x&sig=y", "http://h/x?apikey=***&pwd=***&sig=***"),
        ("1 of 11, some-editor, mail me@home, http://host/a@b", "1 of 11, some-editor, mail me@home, http://host/a@b"),
    ],
)
def test_a_secret_is_replaced_in_whatever_form(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_texts_within_are_redacted_and_keys_stay() -> None:
    assert redact_all({"HF_TOKEN": ["hf_canary_token", 1, None, ("x", True)]}) == {"HF_TOKEN": ["***", 1, None, ["x", True]]}


def test_a_name_says_whether_its_value_is_a_secret() -> None:
    secret = (
        "AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID db_password HF_TOKEN OPENAI_APIKEY DB_PWD PGPASSWORD MYSQL_PWD GITHUB_PAT DB_PASS"
        " AUTHTOKEN CLIENTSECRET openaiApiKey SSH_PASSPHRASE API_KEYS OPENAI_API_KEY_2 ACCESSTOKENS AZURE_CREDENTIALS SERVICE_JWT"
        " MYSQLPASSWD KEY"
    )
    plain = "TOKENIZERS_PARALLELISM MONKEY PWD OLDPWD PATH KEYBOARD TURKEY BYPASS COMPASS PATTERN HOTKEYS SECRETARY PASSENGER PYTHONPATH"
    assert [name for name in secret.split() if not is_secret(name)] == []
    assert [name for name in plain.split() if is_secret(name)] == []


def test_a_variable_whose_name_says_nothing_can_be_declared_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_declared", set())
    monkeypatch.setenv("LOGIN", "open sesame")
    assert (is_secret("LOGIN"), redact("an open sesame")) == (False, "an open sesame")
    declare_secret("LOGIN")
    assert (is_secret("LOGIN"), redact("an open sesame")) == (True, "an ***")


def test_a_given_secret_may_be_short() -> None:
    assert without("key 1", "1") == "key ***"
