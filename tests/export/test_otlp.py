"""OpenTelemetry spans: from a file of OTLP JSON lines, and as a server on this machine gets them from the official exporter."""

import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from pipeline.errors import ExportError, UsageError
from pipeline.export.otlp import address_of, export, to_file, to_server
from pipeline.store.events import ChainRow, ProblemRow
from pipeline.store.run_store import RunStore

pytestmark = pytest.mark.slow  # whole runs


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as long as `status` says so."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status, self.most = 200, 1 << 30
        """`most`: bytes of a request that are not too many."""
        self.kind, self.body = "application/x-protobuf", b""
        self.requests: list[Any] = []
        self.endpoint = f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        collector: Any = self.server
        if len(body) > collector.most:
            self.send_response(413)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        collector.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(collector.status)
        self.send_header("Content-Type", collector.kind)
        self.send_header("Content-Length", str(len(collector.body)))
        self.end_headers()
        self.wfile.write(collector.body)

    def log_message(self, *args: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def plain(value: dict[str, Any]) -> Any:
    [(kind, held)] = value.items()
    if kind == "arrayValue":
        return [plain(each) for each in held["values"]]
    return int(held) if kind == "intValue" else held


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: plain(each["value"]) for each in holder["attributes"]}


def read(path: Path) -> list[dict[str, Any]]:
    """All spans of a file, with their attributes as a dict."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = [span for line in lines for one in line["resourceSpans"] for scope in one["scopeSpans"] for span in scope["spans"]]
    return [span | {"attributes": attributes(span)} for span in found]


@pytest.fixture(scope="module")
def file(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("otel") / "spans.jsonl"
    export(run_folder, to_file(path))
    return path


@pytest.fixture(scope="module")
def spans(file: Path) -> list[dict[str, Any]]:
    return read(file)


def test_a_chain_is_a_trace_with_its_steps_and_in_them_its_calls(spans: list[dict[str, Any]], run_folder: Path) -> None:
    by_id = {span["spanId"]: span for span in spans}
    assert len(by_id) == len(spans) == sum(pq.read_table(run_folder / name).num_rows for name in ("chains", "steps", "calls"))
    assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 and int(span["traceId"], 16) for span in spans)
    roots = [span for span in spans if "parentSpanId" not in span]
    assert len({span["traceId"] for span in roots}) == len(roots) == 24
    for span in spans:
        if parent := by_id.get(span.get("parentSpanId", "")):
            assert parent["traceId"] == span["traceId"]
            assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(parent["endTimeUnixNano"]) >= int(span["endTimeUnixNano"])
        else:
            assert span in roots


def test_a_call_is_in_its_step_and_an_answer_in_its_chain(spans: list[dict[str, Any]]) -> None:
    by_id = {span["spanId"]: span for span in spans}
    parents = defaultdict(set)
    for span in spans:
        if span["kind"] == 3:
            parent = by_id[span["parentSpanId"]]
            parents[span["attributes"]["gen_ai.prompt.name"]].add(parent["name"])
            if parent["name"].startswith("step"):
                assert parent["attributes"]["pipeline.step_index"] == span["attributes"]["pipeline.step_index"]
    assert parents["answer"] == {"invoke_workflow speccot"}
    assert parents["fallback"] == {"step fallback"}
    assert parents["draft"] == parents["verify"] == {"step accepted", "step fallback"}


def test_attributes_have_the_names_of_the_columns_metadata(spans: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    found = {(s["attributes"]["gen_ai.conversation.id"], s["attributes"]["pipeline.call_index"]): s for s in spans if s["kind"] == 3}
    schema = {"gen_ai.usage.input_tokens": "input_tokens", "gen_ai.request.seed": "seed", "gen_ai.prompt.name": "stage"}
    schema |= {"gen_ai.usage.output_tokens": "output_tokens", "server.address": "engine", "gen_ai.latency.time_in_queue": "queue_time_s"}
    schema |= {"gen_ai.response.finish_reasons": "finish_reason", "pipeline.client_wait_s": "client_wait_s"}
    for row in calls:
        span = found.pop((row["chain_id"], row["call_index"]))
        assert (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])) == (row["submit_unix_ns"], row["end_unix_ns"])
        said = {column: span["attributes"].get(name) for name, column in schema.items()}
        assert said == {column: row[column] or None if column == "finish_reason" else row[column] for column in schema.values()}
        assert span["attributes"]["gen_ai.provider.name"] == "sim"
        assert (span["status"].get("code"), span["status"].get("message")) == (
            (2, row["error_message"]) if row["error_type"] else (None, None)
        )
    assert not found


def test_the_root_names_the_workflow_and_the_resource_the_run(spans: list[dict[str, Any]], file: Path) -> None:
    root = next(span for span in spans if "parentSpanId" not in span)
    assert root["attributes"]["gen_ai.agent.name"] == "speccot"
    assert root["attributes"]["gen_ai.evaluation.score.label"] in ("true", "false")
    resource = attributes(json.loads(file.read_text().splitlines()[0])["resourceSpans"][0]["resource"])
    assert (resource["service.name"], resource["pipeline.run_id"], resource["pipeline.graph"]) == ("pipeline", "run", "speccot")
    assert resource["pipeline.version.python"].startswith("3.")


def test_each_replica_is_an_instance_of_the_service(replicas: Path, tmp_path: Path) -> None:
    export(replicas, to_file(tmp_path / "t"))
    found: dict[tuple[str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for line in (tmp_path / "t").read_text().splitlines():
        for one in json.loads(line)["resourceSpans"]:
            resource = attributes(one["resource"])
            key = resource["service.instance.id"], resource.get("host.id")
            found[key] += [span for scope in one["scopeSpans"] for span in scope["spans"]]
    assert found.keys() == {("run", None), ("run/0", "node-0"), ("run/1", "node-1")}
    calls = pq.read_table(replicas / "calls", columns=["replica"])["replica"].to_pylist()
    chains = pq.read_table(replicas / "chains", columns=["replica"])["replica"].to_pylist()
    for number in range(2):
        spans = found[f"run/{number}", f"node-{number}"]
        assert sum(span["kind"] == 3 for span in spans) == calls.count(number)
        assert len(spans) == calls.count(number) + chains.count(number)
        assert not [name for span in spans for name in attributes(span) if "replica" in name or name.startswith(("host", "service"))]
    assert {span["name"].partition(" ")[0] for span in found["run", None]} == {"step"}


def test_texts_are_exported_only_when_asked_for(spans: list[dict[str, Any]], run_folder: Path, tmp_path: Path) -> None:
    texts = set(pq.read_table(run_folder / "steps")["step_text"].to_pylist())
    export(run_folder, to_file(tmp_path / "t"), texts=True)
    assert {span["attributes"]["pipeline.step_text"] for span in read(tmp_path / "t") if span["name"].startswith("step")} == texts
    named = {name for span in spans for name in span["attributes"] if "text" in name or "answer" in name}
    assert named <= {"pipeline.answer_cut"}  # whether the answer was cut, no text


def test_equal_runs_give_equal_files(file: Path, run_folder: Path, tmp_path: Path) -> None:
    export(run_folder, to_file(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_a_server_gets_every_span_once(run_folder: Path, collector: Collector, spans: list[dict[str, Any]]) -> None:
    sent = export(run_folder, to_server(collector.endpoint))
    got = [s for _, request in collector.requests for one in request.resource_spans for scope in one.scope_spans for s in scope.spans]
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    assert len(collector.requests) == math.ceil(len(spans) / 512) > 1
    assert sorted(span.span_id.hex() for span in got) == sorted(span["spanId"] for span in spans)
    assert sent.spans == len(got)
    assert (sent.chains, sent.calls) == (24, sum(span.kind == 3 for span in got))


@pytest.fixture
def small(written: Callable[..., Path]) -> Path:
    """A run of one chain and one call."""
    return written([[(0, 1)]], [(0, 1)])


def test_where_nobody_listens_the_error_says_so(small: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.5")
    collector.server_close()
    with pytest.raises(ExportError, match="cannot be reached: connection refused"):
        export(small, to_server(collector.endpoint))


def partial(rejected: int, message: str) -> ExportTraceServiceResponse:
    return ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=rejected, error_message=message))


PROTOBUF, JSON = "application/x-protobuf", "application/json; charset=utf-8"
REJECTED = partial(2, "no\nroom")


@pytest.mark.parametrize(
    ("status", "kind", "body", "said"),
    [
        (400, PROTOBUF, b"", "answers 400 Bad Request"),
        (302, PROTOBUF, b"", "answers 302 Found"),
        (404, PROTOBUF, b"", "answers 404 Not Found; the address for spans usually ends in /v1/traces"),
        (
            200,
            "text/html; charset=utf-8",
            b"<html></html>",
            "answers with a web page, so it is not an OTLP receiver; the address",
        ),
        (200, PROTOBUF, REJECTED.SerializeToString(), "rejects 2 of 2 spans: no\\nroom"),
        (200, JSON, MessageToJson(REJECTED).encode(), "rejects 2 of 2 spans: no\\nroom"),  # some answer so whatever they were asked in
    ],
)
def test_a_server_that_does_not_take_them_is_named(
    small: Path, collector: Collector, status: int, kind: str, body: bytes, said: str
) -> None:
    collector.status, collector.kind, collector.body = status, kind, body
    place = collector.endpoint.removesuffix("/v1/traces") + "/ui"
    with pytest.raises(ExportError) as caught:
        export(small, to_server(place))
    assert str(caught.value).startswith(f"{place}: {said}")
    assert len(collector.requests) == 1


@pytest.mark.parametrize(
    ("kind", "body", "remark"),
    [
        (PROTOBUF, b"", ""),
        ("application/json", b"{}", ""),
        (PROTOBUF, partial(0, "deprecated").SerializeToString(), "{} says: deprecated"),
        ("text/plain", b"ok", "{} does not confirm in OTLP what it accepted"),
    ],
)
def test_a_server_may_say_something_about_what_it_took(small: Path, collector: Collector, kind: str, body: bytes, remark: str) -> None:
    collector.kind, collector.body = kind, body
    assert export(small, to_server(collector.endpoint)).remark == remark.format(collector.endpoint)


def test_what_is_too_large_is_halved(run_folder: Path, collector: Collector, spans: list[dict[str, Any]]) -> None:
    collector.most = 20_000
    assert export(run_folder, to_server(collector.endpoint)).spans == len(spans)
    got = [s for _, request in collector.requests for one in request.resource_spans for scope in one.scope_spans for s in scope.spans]
    assert sorted(span.span_id.hex() for span in got) == sorted(span["spanId"] for span in spans)
    collector.most = 10
    with pytest.raises(ExportError, match="answers 413"):
        export(run_folder, to_server(collector.endpoint))


def test_texts_are_messages_as_viewers_show_them(run_folder: Path, tmp_path: Path) -> None:
    export(run_folder, to_file(tmp_path / "t"), texts=True)
    chains = {row["chain_id"]: row for row in pq.read_table(run_folder / "chains").to_pylist()}
    problems = {row["problem_id"]: row["problem"] for row in pq.read_table(run_folder / "problems").to_pylist()}
    roots = [span["attributes"] for span in read(tmp_path / "t") if "parentSpanId" not in span]
    assert len(roots) == len(chains)
    for said in roots:
        row = chains[said["gen_ai.conversation.id"]]
        [asked], [answered] = json.loads(said["gen_ai.input.messages"]), json.loads(said["gen_ai.output.messages"])
        assert asked == {"role": "user", "parts": [{"type": "text", "content": problems[row["problem_id"]]}]}
        assert answered == {"role": "assistant", "parts": [{"type": "text", "content": row["answer_text"]}], "finish_reason": "stop"}


def test_the_chat_before_a_problem_was_asked_too(written: Callable[..., Path], blank: Callable[..., Any], tmp_path: Path) -> None:
    run = written([[(0, 1)]], [(0, 1)])
    history = '[{"role":"system","content":"Be brief."}]'
    with RunStore(run).replace("problems") as table:
        table.append([blank(ProblemRow, input_row=blank(ChainRow).input_row, problem="What is 2 + 3?", history=history)])
    export(run, to_file(tmp_path / "t"), texts=True)
    [asked] = [json.loads(said) for span in read(tmp_path / "t") if (said := span["attributes"].get("gen_ai.input.messages"))]
    assert [(each["role"], each["parts"][0]["content"]) for each in asked] == [("system", "Be brief."), ("user", "What is 2 + 3?")]


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://[::1]:4318/v1/traces", "https://[::1]:4318/v1/traces"),
        ("https://host/api/public/otel/v1/traces", "https://host/api/public/otel/v1/traces"),
    ],
)
def test_an_address_without_a_path_gets_that_of_spans(endpoint: str, address: str) -> None:
    assert address_of(endpoint) == address


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "ftp://host/v1/traces", "http://", "", "http://[::1", "http://host:port", "http://host:0"]
)
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="expected an address"):
        address_of(endpoint)
