"""Destinations of OpenTelemetry spans: a server by OTLP over HTTP, or a file of OTLP JSON lines. Spans enter, nothing is kept."""

import logging
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import requests
from google.protobuf.json_format import MessageToDict, Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from pipeline.errors import ExportError, UsageError, reason
from pipeline.export.output import whole_file
from pipeline.system.proxies import is_loopback, proxy_variable
from pipeline.text import one_line

logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # failures that it logs are raised as `ExportError`
IDS = ("traceId", "spanId", "parentSpanId")
PATH = "/v1/traces"
"""The path of spans in OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/#otlphttp-request)."""
TOO_LARGE = 413


class Sink(Protocol):
    """A destination of spans, which get there some hundred at a time."""

    remark: str
    """What the destination has said about spans that it accepted, as a message; empty if nothing."""

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Send `spans`; raises `ExportError` if the destination accepts none of them."""


class ServerSink:
    """A server that takes OTLP over HTTP; headers and time limits come from the `OTEL_EXPORTER_OTLP_*` variables."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint, self._session = endpoint, _Session(endpoint)
        # Too large is what the server says, not the exporter, which would drop the spans: they are halved then.
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=self._session, max_request_size=0)
        self._sent = self._rejected = 0
        self._why = self.remark = ""

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """What the server rejects of spans that it takes otherwise is told by `check`."""
        result = self._exporter.export(spans)
        if self._session.status == TOO_LARGE and len(spans) > 1:
            for half in (spans[: len(spans) // 2], spans[len(spans) // 2 :]):
                self.send(half)
            return
        if result is not SpanExportResult.SUCCESS or not self._session.taken:
            raise ExportError(self._endpoint, self._session.said + (self._hint() if self._session.status in (404, 405) else ""))
        answer = self._answer()
        self._sent += len(spans)
        self._rejected += answer.rejected_spans
        if answer.rejected_spans:
            self._why = answer.error_message or self._why
        elif answer.error_message:
            self.remark = f"{self._endpoint} says: {answer.error_message}"

    def check(self) -> None:
        """Raise `ExportError` where the server has rejected spans."""
        if self._rejected:
            what = f"rejects {self._rejected:,} of {self._sent:,} spans: {self._why or 'without saying why'}"
            raise ExportError(self._endpoint, one_line(what))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _answer(self) -> ExportTracePartialSuccess:
        """What the server says about the spans that it was sent last; raises `ExportError` where it answers as no receiver of OTLP does."""
        kind, content = self._session.kind, self._session.content
        answer = ExportTraceServiceResponse()
        with suppress(DecodeError, ParseError):
            if kind == "application/json":
                Parse(content, answer, ignore_unknown_fields=True)
            elif kind in ("application/x-protobuf", "application/protobuf", "application/octet-stream", ""):
                answer.MergeFromString(content)
            else:
                raise DecodeError
            said: ExportTracePartialSuccess = answer.partial_success
            return said
        if kind == "text/html":
            raise ExportError(self._endpoint, f"answers with a web page, so it is not an OTLP receiver{self._hint()}")
        self.remark = f"{self._endpoint} does not confirm in OTLP what it accepted"
        return ExportTracePartialSuccess()

    def _hint(self) -> str:
        return "" if self._endpoint.endswith(PATH) else f"; the address for spans usually ends in {PATH}"


class JsonLinesSink:
    """A file with one export request a line, in OTLP's JSON: ids as hexadecimal digits, enumerations as numbers."""

    remark = ""

    def __init__(self, file: Any) -> None:
        self._file = file

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Writes one line."""
        request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        for resource in request["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    span.update({name: b64decode(span[name]).hex() for name in IDS if name in span})
        self._file.write(msgspec.json.encode(request) + b"\n")


def address_of(endpoint: str) -> str:
    """The address that spans are sent to: of an `endpoint` without a path the one that OTLP has for them. Raises `UsageError` where it is
    no HTTP address."""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"--endpoint {endpoint}: expected an address, such as http://127.0.0.1:4318")
    return endpoint if parts.path.strip("/") or parts.query else f"{endpoint.rstrip('/')}{PATH}"


@contextmanager
def to_server(endpoint: str) -> Iterator[Sink]:
    """A sink that sends to `endpoint`."""
    server = ServerSink(endpoint)
    try:
        yield server
        server.check()
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
    status, kind, content = 0, "", b""
    """The status, the media type and the body of the answer."""

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
            self.said, self.taken, self.status = f"cannot be reached{through}: {_root(error)}", False, 0
            raise
        self.said = f"answers {response.status_code} {response.reason}"
        self.taken, self.status, self.content = 200 <= response.status_code < 300, response.status_code, response.content
        self.kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        return response


def _root(error: BaseException) -> str:
    """The message of the error that an error was raised from in the first place."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return reason(error).lower()
