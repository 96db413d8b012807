"""Destinations of OpenTelemetry spans: a server by OTLP over HTTP, or a file of OTLP JSON lines. Spans enter, nothing is kept."""

import logging
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import requests
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from pipeline.errors import ExportError, UsageError, reason
from pipeline.export.output import whole_file
from pipeline.proxies import is_loopback, proxy_variable

logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # failures that it logs are raised as `ExportError`
IDS = ("traceId", "spanId", "parentSpanId")


class Sink(Protocol):
    """A destination of spans, which get there some hundred at a time."""

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Send `spans`; raises `ExportError` where the destination does not take them."""


class ServerSink:
    """A server that takes OTLP over HTTP; headers and time limits come from the `OTEL_EXPORTER_OTLP_*` variables."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint, self._session = endpoint, _Session(endpoint)
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=self._session)

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """See `Sink.send`."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS or not self._session.taken:
            raise ExportError(self._endpoint, self._session.said)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


class JsonLinesSink:
    """A file with one export request a line, in OTLP's JSON: ids as hexadecimal digits, enumerations as numbers."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """See `Sink.send`; writes one line."""
        request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        for resource in request["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    span.update({name: b64decode(span[name]).hex() for name in IDS if name in span})
        self._file.write(msgspec.json.encode(request) + b"\n")


def check_endpoint(endpoint: str) -> None:
    """Raise `UsageError` where `endpoint` is no HTTP address."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--endpoint {endpoint}: expected the whole address, such as http://127.0.0.1:4318/v1/traces")


@contextmanager
def to_server(endpoint: str) -> Iterator[Sink]:
    """A sink that sends to `endpoint`."""
    server = ServerSink(endpoint)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def to_file(path: Path) -> Iterator[Sink]:
    """A sink that writes the new file `path`, compressed where its name ends in `.gz`."""
    with whole_file(path) as file:
        yield JsonLinesSink(file)


class _Session(requests.Session):
    """An HTTP session that keeps how its last request ended, which the exporter only logs."""

    said = "gives no answer"
    """How the last request ended, as a clause about the server."""
    taken = False
    """Whether the server took it."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._endpoint = endpoint

    def request(self, *args: Any, **named: Any) -> requests.Response:
        self.trust_env = not is_loopback(self._endpoint)  # what listens here is never asked through a proxy
        try:
            response = super().request(*args, **named)
        except requests.RequestException as error:
            variable = proxy_variable(self._endpoint)
            through = f" through the proxy that {variable} names" if variable else ""
            self.said, self.taken = f"cannot be reached{through}: {_root(error)}", False
            raise
        self.said = f"answers {response.status_code} {response.reason}"
        self.taken = 200 <= response.status_code < 300
        return response


def _root(error: BaseException) -> str:
    """The message of the error that an error was raised from in the first place."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return reason(error).lower()
