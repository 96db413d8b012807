"""Files of the OpenAI batch API."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def request(name: object, content: Any = "2+2?", **changes: Any) -> dict[str, Any]:
    """A line of a batch; `changes` are of its body, or of the line itself where that has the key."""
    line = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions"}
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    own = {key: value for key, value in changes.items() if key in (*line, "answer")}
    return {**line, **own, "body": {**body, **{key: value for key, value in changes.items() if key not in own}}}


def write_batch(path: Path, lines: Iterable[Mapping[str, Any] | str]) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return path


REFUSED: list[tuple[dict[str, Any] | str, str, str | None, str | None]] = [
    (request("tools", tools=[{"type": "function", "function": {"name": "f"}}]), "tools", "tools", "unsupported_parameter"),
    (request("image", [{"type": "image_url", "image_url": {"url": "x"}}]), "image", "messages[0].content[0].type", "invalid_value"),
    (request("embeds", url="/v1/embeddings"), "embeds", "url", "invalid_value"),
    (request("gets", method="GET"), "gets", "method", "invalid_value"),
    (request("streams", stream=True), "streams", "stream", "unsupported_parameter"),
    (request("typo", temprature=1), "typo", "temprature", "unsupported_parameter"),
    (request(None), "(row 8)", "custom_id", "invalid_value"),
    (request(7), "(row 9)", "custom_id", "invalid_value"),
    ({**request("bodiless"), "body": None}, "bodiless", "body", "invalid_value"),
    ({**request("text"), "body": "{}"}, "text", "body", "invalid_value"),
    ('{"custom_id": "cut', "(row 12)", None, "invalid_json_line"),
]
"""Lines that are refused behind a first one called `first`: each with the name that its error has, the parameter and the code."""
