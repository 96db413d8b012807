"""The lines of an OpenAI batch file: a row with `custom_id`, `method`, `url` and `body` enters; what is asked leaves, or an `ApiError`."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.data.requests.chat import AskedChat, read_chat
from pipeline.data.requests.errors import ApiError
from pipeline.data.rows import Flaw, Record, kind_of

KEYS = ("custom_id", "method", "url", "body")
"""The columns of such a line."""
ENDPOINT = "/v1/chat/completions"
"""The one that is supported."""
MAX_NAME = 1000
"""Most characters of a `custom_id`, which is in every row of the trace."""


def is_request(names: Iterable[str]) -> bool:
    """Whether a row with columns of these names is a line of a batch: most of its keys are there, and no problem of our own."""
    found = set(names)
    return len(found.intersection(KEYS)) > 2 and "problem" not in found


def custom_id_of(record: Mapping[str, Any]) -> str | None:
    """The `custom_id` of a line; None where it has none that can name it."""
    name = record.get("custom_id")
    return name if isinstance(name, str) and name.strip() and len(name) <= MAX_NAME else None


def read_request(record: Mapping[str, Any]) -> AskedChat:
    """What is asked in a line. Raises `ApiError`."""
    for key in KEYS:
        if record.get(key) is None:
            raise ApiError(f"the line has no `{key}`", key, "missing_required_parameter")
    if custom_id_of(record) is None:
        raise ApiError(f"`custom_id` is no text of 1 to {MAX_NAME:,} characters", "custom_id", "invalid_value")
    if record["method"] != "POST":
        raise ApiError(f"`method` is {record['method']!r}; expected 'POST'", "method", "invalid_value")
    if record["url"] != ENDPOINT:
        raise ApiError(f"`url` is {record['url']!r}; only {ENDPOINT!r} is supported", "url", "invalid_url")
    if not isinstance(record["body"], Mapping):
        raise ApiError(f"`body` is {kind_of(record['body'])}; expected an object", "body", "invalid_type")
    asked = read_chat(record["body"])
    if asked.stream:
        raise ApiError("`stream` is not supported in a batch; leave it out", "stream", "unsupported_parameter")
    return asked


def refusal_of(record: Record, what: str) -> ApiError:
    """Why a row is refused of which the run says that it holds no problem, for the reason `what`."""
    if isinstance(record, Flaw):
        return ApiError(what, code="invalid_json_line")
    if "problem" in record or not (is_request(record) or "custom_id" in record):
        return ApiError(what)
    try:
        read_request(record)
    except ApiError as error:
        return error
    return ApiError(what, "custom_id", "duplicate_custom_id")
