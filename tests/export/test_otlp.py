"""OpenTelemetry spans: from a file of OTLP JSON lines, and as a server on this machine gets them from the official exporter."""

import json
import math
import re
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
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from pipeline.errors import ExportError, UsageError
from pipeline.export.otlp import address_of, export, to_file, to_server
from pipeline.export.semconv import CONVENTIONS, SPAN_KIND
from pipeline.store.events import ChainRow, ProblemRow
from pipeline.store.run_store import RunStore
from tests.support.run_files import SIM

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


def scopes(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [scope for one in request["resourceSpans"] for scope in one["scopeSpans"]]


def read(path: Path) -> list[dict[str, Any]]:
    """All spans of a file, with their attributes as a dict."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [span | {"attributes": attributes(span)} for line in lines for scope in scopes(line) for span in scope["spans"]]


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
            parents[span["attributes"]["pipeline.stage"]].add(parent["name"])
            if parent["name"].startswith("step"):
                assert parent["attributes"]["pipeline.step_index"] == span["attributes"]["pipeline.step_index"]
    assert parents["answer"] == {"invoke_workflow speccot"}
    assert parents["fallback"] == {"step fallback"}
    assert parents["draft"] == parents["verify"] == {"step accepted", "step fallback"}


def test_attributes_have_the_names_of_the_columns_metadata(spans: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    found = {(s["attributes"]["gen_ai.conversation.id"], s["attributes"]["pipeline.call_index"]): s for s in spans if s["kind"] == 3}
    schema = {"gen_ai.usage.input_tokens": "input_tokens", "gen_ai.request.seed": "seed", "pipeline.stage": "stage"}
    schema |= {"gen_ai.usage.output_tokens": "output_tokens", "pipeline.engine": "engine", "gen_ai.latency.time_in_queue": "queue_time_s"}
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


@pytest.fixture(scope="module")
def told(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The spans of `run_folder` with their texts."""
    path = tmp_path_factory.mktemp("told") / "spans.jsonl"
    export(run_folder, to_file(path), texts=True)
    return read(path)


def output(said: dict[str, Any]) -> list[str]:
    """The texts that a span says came out, which its OpenInference attributes must say too."""
    found = json.loads(said.get("gen_ai.output.messages", "[]"))
    texts = [part["content"] for each in found for part in each["parts"]]
    assert {(each["role"], each["finish_reason"] in ("stop", "length")) for each in found} <= {("assistant", True)}
    if len(texts) == 1:
        assert (said["output.value"], said["output.mime_type"]) == (texts[0], "text/plain")
    elif texts:
        assert (json.loads(said["output.value"]), said["output.mime_type"]) == (texts, "application/json")
    return texts


def test_a_chain_and_its_steps_say_what_was_asked_and_written(told: list[dict[str, Any]], run_folder: Path) -> None:
    chains = {row["chain_id"]: row for row in pq.read_table(run_folder / "chains").to_pylist()}
    steps = {(row["chain_id"], row["step_index"]): row for row in pq.read_table(run_folder / "steps").to_pylist()}
    problems = {row["problem_id"]: row["problem"] for row in pq.read_table(run_folder / "problems").to_pylist()}
    for span in told:
        said = span["attributes"]
        chain = chains[said["gen_ai.conversation.id"]]
        if "parentSpanId" not in span:
            problem = problems[chain["problem_id"]]
            assert json.loads(said["gen_ai.input.messages"]) == [{"role": "user", "parts": [{"type": "text", "content": problem}]}]
            assert (said["input.value"], said["input.mime_type"]) == (problem, "text/plain")
            assert output(said) == [chain["answer_text"]]
            assert said["pipeline.answer"] == chain["answer"]
        elif span["name"].startswith("step"):
            assert output(said) == [steps[chain["chain_id"], said["pipeline.step_index"]]["step_text"]]
    assert not [name for span in told for name in span["attributes"] if name in ("pipeline.step_text", "pipeline.answer_text")]


def test_a_call_says_what_was_taken_from_it(told: list[dict[str, Any]], run_folder: Path) -> None:
    steps = {(row["chain_id"], row["step_index"]): row for row in pq.read_table(run_folder / "steps").to_pylist()}
    chains = {row["chain_id"]: row for row in pq.read_table(run_folder / "chains").to_pylist()}
    failed, purposes = 0, set[str]()
    for said in (span["attributes"] for span in told if span["kind"] == 3):
        step, found = steps.get((said["gen_ai.conversation.id"], said["pipeline.step_index"])), output(said)
        if "error.type" in said:
            failed += 1
            assert found == []
            continue
        expected = {
            "draft": step and step["candidate_texts"],
            "judge": step and [step["score_label"]],
            "write": step and [step["step_text"]],
            "guide": step and [step["step_text"]],
            "answer": [chains[said["gen_ai.conversation.id"]]["answer_text"]],
        }
        assert found == expected[said["pipeline.purpose"]]
        assert "input.value" not in said  # the prompts of calls are not kept
        purposes.add(said["pipeline.purpose"])
    assert failed
    assert purposes == {"draft", "judge", "write", "answer"} | (purposes & {"guide"})


def test_without_texts_a_span_has_none(spans: list[dict[str, Any]]) -> None:
    named = {name for span in spans for name in span["attributes"] if re.search("text|answer|message|value|mime", name)}
    assert named <= {"pipeline.answer_cut", "gen_ai.evaluation.score.value"}  # whether the answer was cut, and the score


PUBLISHED = {
    value
    for module in (error_attributes, gen_ai_attributes, server_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}
"""The names of opentelemetry-semantic-conventions, which still has those that moved to the repository of the GenAI conventions."""
VLLM = {f"gen_ai.latency.{name}" for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "time_in_model_inference")}
"""Names of vLLM's spans that no convention has (vllm/tracing/utils.py of 0.32.0)."""
OPENINFERENCE = {"openinference.span.kind"} | {f"{side}.{name}" for side in ("input", "output") for name in ("value", "mime_type")}
"""Names of openinference-semantic-conventions 0.1.42 (`SpanAttributes`)."""


@pytest.mark.parametrize("version", CONVENTIONS)
def test_names_are_those_of_published_conventions(run_folder: Path, tmp_path: Path, version: str) -> None:
    convention = CONVENTIONS[version]
    export(run_folder, to_file(tmp_path / "t"), texts=convention.texts, convention=convention)
    names = {name for span in read(tmp_path / "t") for name in span["attributes"] if not name.startswith("pipeline.")}
    assert names <= PUBLISHED | VLLM | OPENINFERENCE
    assert {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.request.model", SPAN_KIND, convention.graph} <= names
    assert {"gen_ai.provider.name", "gen_ai.system"} & names == {convention.provider}
    assert {"gen_ai.agent.name", "gen_ai.workflow.name"} & names == {convention.graph}
    assert ("gen_ai.output.messages" in names) == convention.texts
    schemas = {scope.get("schemaUrl") for line in (tmp_path / "t").read_text().splitlines() for scope in scopes(json.loads(line))}
    assert schemas == {convention.schema_url}
    assert convention.schema_url is None or convention.schema_url in {each.value for each in Schemas}


@pytest.mark.parametrize(("version", "kind"), [("genai-0.1.0", "intValue"), ("1.41.0", "doubleValue")])
def test_top_k_has_the_type_of_its_version(written: Callable[..., Path], tmp_path: Path, version: str, kind: str) -> None:
    export(written([[(0, 1)]], [(0, 1)], call={"top_k": 20}), to_file(tmp_path / "t"), convention=CONVENTIONS[version])
    spans = [span for scope in scopes(json.loads((tmp_path / "t").read_text())) for span in scope["spans"]]
    found = [each["value"] for span in spans for each in span["attributes"] if each["key"] == "gen_ai.request.top_k"]
    assert [list(value) for value in found] == [[kind]]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.7:8000/v1", ("10.0.0.7", 8000)),
        ("https://api.example/v1", ("api.example", 443)),
        (["http://a:1/v1", "http://b:1/v1"], (None, None)),
        (None, (None, None)),
    ],
)
def test_a_call_to_a_single_server_has_its_address(
    written: Callable[..., Path], tmp_path: Path, url: Any, address: tuple[Any, Any]
) -> None:
    served = SIM if url is None else {"backend": "chat", "base_url": url, "max_model_len": 4096}
    engines = {"draft": SIM | {"model": "small"}, "target": served | {"model": "org/large"}}
    export(written([[(0, 1)]], [(0, 1)], engines=engines), to_file(tmp_path / "t"))
    [call] = [span["attributes"] for span in read(tmp_path / "t") if span["kind"] == 3]
    assert (call.get("server.address"), call.get("server.port")) == address
    assert call["pipeline.engine"] == "target"
    assert call["gen_ai.provider.name"] == ("sim" if url is None else "openai")


def test_the_chat_before_a_problem_was_asked_too(written: Callable[..., Path], blank: Callable[..., Any], tmp_path: Path) -> None:
    run = written([[(0, 1)]], [(0, 1)])
    history = '[{"role":"system","content":"Be brief."}]'
    with RunStore(run).replace("problems") as table:
        table.append([blank(ProblemRow, input_row=blank(ChainRow).input_row, problem="What is 2 + 3?", history=history)])
    export(run, to_file(tmp_path / "t"), texts=True)
    [said] = [span["attributes"] for span in read(tmp_path / "t") if "input.value" in span["attributes"]]
    asked = json.loads(said["gen_ai.input.messages"])
    assert [(each["role"], each["parts"][0]["content"]) for each in asked] == [("system", "Be brief."), ("user", "What is 2 + 3?")]
    assert [(each["role"], each["content"]) for each in json.loads(said["input.value"])] == [
        ("system", "Be brief."),
        ("user", "What is 2 + 3?"),
    ]


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
