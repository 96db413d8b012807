"""What spans are called: OpenTelemetry's names for generative AI in the version that is asked for, and a few of OpenInference's.

The GenAI conventions are in development, and viewers of traces know them to different degrees. None knows a workflow (`invoke_workflow`) as
a kind of span, and some show inputs and outputs only under OpenInference's names, which all of Langfuse, Phoenix and MLflow read
(https://arize-ai.github.io/openinference/spec/). So each span has both: one export for all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.graph.prompts import Message

SPAN_KIND = "openinference.span.kind"
CHAIN, LLM = "CHAIN", "LLM"
"""Values of `SPAN_KIND`: a series of calls, and a call to a model."""
TEXT, JSON = "text/plain", "application/json"


class Convention(Struct, frozen=True, kw_only=True):
    """A version of OpenTelemetry's conventions for generative AI."""

    operation: str = "invoke_workflow"
    """Its `gen_ai.operation.name` of a whole chain."""
    graph: str = "gen_ai.agent.name"
    """Its attribute for the name of what is invoked, which is the graph."""
    provider: str = "gen_ai.provider.name"
    """Its attribute for the provider of a model."""
    top_k: type[int] | type[float] = int
    """Its type of `gen_ai.request.top_k`."""
    schema_url: str | None = None
    """The schema that the attributes follow; None where none is published."""
    texts: bool = True
    """Whether a span may hold messages."""


CONVENTIONS: Mapping[str, Convention] = {
    "genai-0.1.0": Convention(),
    "1.41.0": Convention(graph="gen_ai.workflow.name", top_k=float, schema_url="https://opentelemetry.io/schemas/1.41.0"),
    "1.36.0": Convention(
        operation="invoke_agent",
        provider="gen_ai.system",
        top_k=float,
        schema_url="https://opentelemetry.io/schemas/1.36.0",
        texts=False,
    ),
}
"""By their version, newest first: the first release of https://github.com/open-telemetry/semantic-conventions-genai, the last of those in
https://github.com/open-telemetry/semantic-conventions, and the one before messages came into spans (1.37.0), by which OpenTelemetry divides
old instrumentation from new."""
NEWEST = next(iter(CONVENTIONS))


def texts_of(asked: Sequence[Message], answers: Sequence[str], reasons: Sequence[str]) -> dict[str, str]:
    """The attributes that say what was asked and what came back; `reasons`: why each answer ended.

    A single text is its own value in OpenInference, several are JSON. Phoenix drops messages without `finish_reason`, which newer
    conventions leave to `gen_ai.response.finish_reasons` but allow.
    """
    said: dict[str, str] = {}
    if asked:
        said["gen_ai.input.messages"] = _json([_message(each.role, each.content) for each in asked])
        said |= _value("input", asked[0].content if len(asked) == 1 else list(asked))
    if answers:
        found = zip(answers, reasons, strict=True)
        said["gen_ai.output.messages"] = _json([_message("assistant", text) | {"finish_reason": reason} for text, reason in found])
        said |= _value("output", answers[0] if len(answers) == 1 else list(answers))
    return said


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _value(side: str, value: Any) -> dict[str, str]:
    plain = isinstance(value, str)
    return {f"{side}.value": value if plain else _json(value), f"{side}.mime_type": TEXT if plain else JSON}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
