"""A run as OpenTelemetry spans: the run folder enters, spans leave for a server or a file, some hundred at a time.

Every chain is a trace; its steps are spans in it, and their calls spans in these, at the recorded times. Attributes have the names from
the metadata of the trace's columns and from `semconv`; other columns are named `pipeline.COLUMN`. Ids are derived from the run and the
chain: the same run always gives the same spans. A call that led to no step, such as an answer, is a span in its chain.

Where a run has replicas, each is an instance of the service by itself: the resource of its chains' and calls' spans has the run with the
number of the replica as `service.instance.id`, and its node as `host.id`. Steps, whose rows name no replica, have the resource of the run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from itertools import islice
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pipeline.errors import InputError
from pipeline.export.output import NO_CALLS
from pipeline.export.semconv import CHAIN, CONVENTIONS, LLM, NEWEST, SPAN_KIND, Convention, texts_of
from pipeline.export.sinks import Sink, address_of, to_file, to_server
from pipeline.graph.prompts import Message
from pipeline.store.events import CallRow, ChainRow, StepRow, names_in
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

__all__ = ["Sent", "address_of", "export", "to_file", "to_server"]

SERVICE = "pipeline"
TEXTS = {"answer", "answer_text", "reference_answer", "step_text", "candidate_texts"}
"""Columns that hold written texts; they are exported only when asked for."""
OF_TOKENS = {"output_token_ids", "step_token_ids", "option_ids", "option_logprobs", "scored_logprobs"}
"""Columns with a value for each token, which are not exported."""
OF_SPAN = {"run_id", "submit_unix_ns", "start_unix_ns", "end_unix_ns", "error_message", "candidate_index", "replica", "node"}
"""Columns that are no attributes: they are elsewhere in a span or in its resource."""
IN_MESSAGES = {"answer_text", "step_text"}
"""Texts that are messages, and therefore no attributes either."""
TOP_K = "gen_ai.request.top_k"
CHAT = "chat"
"""The backend of chat servers, and what the conventions call such a call."""
PROVIDERS = {CHAT: "openai"}
"""What the conventions call the provider of a backend, where that is not the backend's name: the one whose API it has."""
PORTS = {"http": 80, "https": 443}
Row = Mapping[str, Any]
BATCH = 512
"""Spans that are sent together."""
CHAINS = """
SELECT {columns}, kept.problem, kept.history
FROM chains LEFT JOIN (SELECT DISTINCT ON (input_row) input_row, problem, history FROM problems) AS kept USING (input_row)
ORDER BY end_unix_ns, chain_id"""
STEPS = "SELECT {columns} FROM steps ORDER BY end_unix_ns, chain_id, step_index"
CALLS = """
SELECT {columns}, (chain_id, step_index) IN (SELECT (chain_id, step_index) FROM steps) AS in_step
FROM calls ORDER BY end_unix_ns, chain_id, call_index"""
CALLS_WITH_TEXTS = """
WITH alone AS (
    SELECT chain_id, step_index, max(call_index) AS call_index FROM calls WHERE error_type IS NULL
    GROUP BY chain_id, step_index, purpose, if(purpose = 'draft', NULL, stage) HAVING count(*) = 1),
written AS (
    SELECT chain_id, step_index, stage AS written_by, verify_stage, score_label, step_text, candidate_texts FROM steps),
ended AS (SELECT chain_id, max(answer_text) AS answer_text FROM chains GROUP BY chain_id)
SELECT {columns}, written_by IS NOT NULL AS in_step,
    CASE
        WHEN alone.call_index IS NULL THEN NULL
        WHEN purpose = 'draft' AND len(candidate_texts) = len(candidate_index) THEN candidate_texts
        WHEN len(candidate_index) <> 1 THEN NULL
        WHEN purpose IN ('guide', 'write') AND written_by = stage THEN [step_text]
        WHEN purpose = 'judge' AND verify_stage = stage AND score_label IS NOT NULL THEN [score_label]
        WHEN purpose = 'answer' AND answer_text IS NOT NULL THEN [answer_text]
    END AS taken
FROM calls LEFT JOIN written USING (chain_id, step_index) LEFT JOIN alone USING (chain_id, step_index, call_index)
    LEFT JOIN ended USING (chain_id)
ORDER BY end_unix_ns, chain_id, call_index"""
"""With what was taken from each call, which a step or a chain holds. It is known where one call alone of its step can have given it."""
HISTORY = msgspec.json.Decoder(tuple[Message, ...])
"""Reads the chat before a problem."""


class Sent(Struct, frozen=True):
    """How many spans were sent."""

    chains: int
    steps: int
    calls: int
    remark: str = ""
    """What the destination said about spans that it accepted, as a message."""

    @property
    def spans(self) -> int:
        """The number of all spans."""
        return self.chains + self.steps + self.calls


def export(run: Path, sink: AbstractContextManager[Sink], texts: bool = False, convention: Convention = CONVENTIONS[NEWEST]) -> Sent:
    """Send every chain, step and call of the run folder `run` to `sink`; `texts`: with written texts, as far as the convention has any.

    Raises `InputError` where there is nothing to send, and `ExportError` as the sink does.
    """
    spans, counts = SpanMaker(RunFile.read(run), texts, convention), Counter[str]()
    with Query(run) as query:
        if not query.scalar("SELECT count(*) FROM calls"):
            raise InputError(str(run), NO_CALLS)
        with sink as place:
            waiting = _spans(query, spans, texts, counts)
            while batch := list(islice(waiting, BATCH)):
                place.send(batch)
            return Sent(counts["chains"], counts["steps"], counts["calls"], place.remark)


def _spans(query: Query, make: "SpanMaker", texts: bool, counts: Counter[str]) -> Iterator[ReadableSpan]:
    """The spans of all chains, steps and calls, which are counted by table in `counts`."""
    calls = CALLS_WITH_TEXTS if texts else CALLS
    tables = (("chains", ChainRow, CHAINS, make.chain), ("steps", StepRow, STEPS, make.step), ("calls", CallRow, calls, make.call))
    for table, row, sql, span_of in tables:
        columns = ", ".join(f"{table}.{name}" for name in exported_columns(row, texts))
        for batch in query.batches(sql.format(columns=columns)):
            counts[table] += batch.num_rows
            yield from map(span_of, batch.to_pylist())


def exported_columns(row: type[Struct], texts: bool) -> list[str]:
    """The columns of the table with rows of type `row` that are exported; `texts`: with written texts."""
    return [name for name in row.__struct_fields__ if name not in OF_TOKENS and (texts or name not in TEXTS)]


class SpanMaker:
    """Makes spans of the rows of one run, named by `convention`; `texts`: with the texts of problems, answers and steps."""

    def __init__(self, run: RunFile, texts: bool, convention: Convention) -> None:
        self._run, self._texts, self._convention = run, texts, convention
        self._key = f"{run.run_id}\0{run.started_unix_ns}\0"
        self._resources: dict[tuple[int | None, str | None], Resource] = {(None, None): Resource(_resource(run))}
        self._scope = InstrumentationScope(SERVICE, run.versions.get("pipeline"), convention.schema_url)
        known: tuple[type[Struct], ...] = (ChainRow, StepRow, CallRow)
        self._names = {row: _names(exported_columns(row, texts), row) for row in known}

    def chain(self, row: Row) -> ReadableSpan:
        """The root span of a trace: a whole chain."""
        operation, graph = self._convention.operation, self._run.graph
        said = {"gen_ai.operation.name": operation, self._convention.graph: graph, SPAN_KIND: CHAIN} | self._attributes(ChainRow, row)
        if self._texts:
            before = HISTORY.decode(row["history"]) if row["history"] else ()
            asked = () if row["problem"] is None else (*before, Message("user", row["problem"]))
            answers = () if row["answer_text"] is None else (row["answer_text"],)
            said |= texts_of(asked, answers, [_ended(row["answer_cut"])] * len(answers))
        return self._span(f"{operation} {graph}", row, row["start_unix_ns"], (row["chain_id"],), (), said)

    def step(self, row: Row) -> ReadableSpan:
        """The span of a committed step, from the commit of the step before it until its own."""
        place, said = (row["chain_id"], row["step_index"]), {SPAN_KIND: CHAIN} | self._attributes(StepRow, row)
        if self._texts:
            said |= texts_of((), (row["step_text"],), (_ended(row["cut"]),))
        return self._span(f"step {row['decision']}", row, row["start_unix_ns"], place, place[:1], said)

    def call(self, row: Row) -> ReadableSpan:
        """The span of an attempt at a call: within its step or, where it led to none, within its chain."""
        chain, step, engine = row["chain_id"], row["step_index"], row["engine"]
        said = {SPAN_KIND: LLM} | self._attributes(CallRow, row) | self._engine(engine)
        if (top_k := said.get(TOP_K)) is not None:
            said[TOP_K] = self._convention.top_k(top_k)
        if self._texts and row["taken"]:
            said |= texts_of((), row["taken"], row["finish_reason"])
        parent = (chain, step) if row["in_step"] else (chain,)
        name = f"{row['stage']} {PurePath(row['request_model']).name}"
        return self._span(name, row, row["submit_unix_ns"], (chain, "call", row["call_index"]), parent, said, SpanKind.CLIENT)

    def _engine(self, role: str) -> dict[str, Any]:
        """The attributes that the engine of a call decides: its provider and, of a single server, its address."""
        spec = self._run.plan.engines.get(role)
        backend, url = str(getattr(spec, "backend", role)), getattr(spec, "base_url", None)
        said: dict[str, Any] = {self._convention.provider: PROVIDERS.get(backend, backend)}
        if backend == CHAT:
            said["gen_ai.operation.name"] = CHAT
        if isinstance(url, str) and (parts := urlsplit(url)).hostname:
            said |= {"server.address": parts.hostname, "server.port": parts.port or PORTS[parts.scheme]}
        return said

    def _span(
        self,
        name: str,
        row: Row,
        start: int,
        place: Sequence[object],
        parent: Sequence[object],
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name,
            context=self._context(place),
            parent=self._context(parent) if parent else None,
            resource=self._resource_of(row),
            attributes=attributes,
            kind=kind,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, row["error_message"]) if row.get("error_type") else Status(),
            start_time=start,
            end_time=row["end_unix_ns"],
        )

    def _resource_of(self, row: Row) -> Resource:
        """The resource of a row: its replica, or the run where it names none."""
        key = row.get("replica"), row.get("node")
        if key not in self._resources:
            foreign = names_in(CallRow, "otel")
            values = {"replica": f"{self._run.run_id}/{key[0]}", "node": key[1]}
            of_replica = {foreign[column]: value for column, value in values.items() if value}
            self._resources[key] = Resource(_resource(self._run) | of_replica)
        return self._resources[key]

    def _context(self, place: Sequence[object]) -> SpanContext:
        trace = int.from_bytes(blake2b(f"{self._key}{place[0]}".encode(), digest_size=16).digest())
        return SpanContext(trace, self._id(place), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def _id(self, place: Sequence[object]) -> int:
        return int.from_bytes(blake2b((self._key + "\0".join(map(str, place))).encode(), digest_size=8).digest())

    def _attributes(self, table: type[Struct], row: Row) -> dict[str, Any]:
        """The attributes of a row, by their names; without nulls and empty lists."""
        found = {name: _value(row.get(column)) for column, name in self._names[table].items()}
        return {name: value for name, value in found.items() if value is not None}


def _ended(cut: bool | None) -> str:
    """Why a text ended, as the conventions call it."""
    return "length" if cut else "stop"


def _value(value: Any) -> Any:
    """A value as OpenTelemetry takes it: no nulls in lists, and a verdict, which is a boolean here and a label there, as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ["" if each is None else each for each in value] if any(each is not None for each in value) else None
    return value


def _names(known: Sequence[str], row: type[Struct]) -> dict[str, str]:
    foreign = names_in(row, "otel")
    return {column: foreign.get(column, f"{SERVICE}.{column}") for column in known if column not in OF_SPAN | IN_MESSAGES}


def _resource(run: RunFile) -> dict[str, Any]:
    """The attributes that all spans of a run share."""
    return {
        "service.name": SERVICE,
        "service.version": run.versions.get("pipeline", ""),
        "service.instance.id": run.run_id,
        "pipeline.run_id": run.run_id,
        "pipeline.graph": run.graph,
        "pipeline.graph_digest": run.plan.digest,
        "pipeline.schedule": run.schedule,
        "pipeline.batch_size": run.batch_size,
        "pipeline.seed": run.seed,
        "pipeline.virtual_time": run.virtual_time,
    } | {f"pipeline.version.{package}": version for package, version in sorted(run.versions.items())}
