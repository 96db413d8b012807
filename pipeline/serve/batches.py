"""`/v1/batches` of a server: files of requests enter, and output and error files leave, all of them in the run folder.

The chains of a batch begin only while no other request waits. An answer is written into the output file as soon as it is there, so that a
batch which is resumed asks for the others only; a chain that had begun goes on from its last answered call.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.data.requests.batch import ENDPOINT, custom_id_of, read_request
from pipeline.data.requests.chat import AskedChat
from pipeline.data.requests.errors import ApiError
from pipeline.data.requests.reply import ChainReply, ChatCompletion, completion
from pipeline.files import new_file
from pipeline.serve.completions import check_model
from pipeline.serve.desk import Desk, Ended, Event
from pipeline.serve.earlier import earlier_outcomes
from pipeline.serve.files import StoredFiles, never_expires
from pipeline.serve.limits import ServeLimits, bounded
from pipeline.serve.responses import as_json, page

AHEAD = 256
"""Chains of batches that wait at most."""
LISTED, MOST_LISTED = 20, 100
"""Batches in a page of their list, where a client says nothing of it and at most."""
OPEN = ("in_progress", "cancelling")
"""States of a batch that is not over."""


class RequestCounts(Struct):
    """The requests of a batch."""

    total: int
    completed: int = 0
    failed: int = 0


class BatchState(Struct, kw_only=True):
    """A batch, as clients are told of it and as it is kept in the run folder."""

    id: str
    object: str = "batch"
    endpoint: str = ENDPOINT
    input_file_id: str
    completion_window: str
    status: str = "in_progress"
    created_at: int
    in_progress_at: int
    completed_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    expires_at: None = None
    """None: it does not, whatever its completion window."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: None = None
    metadata: dict[str, str] | None = None
    request_counts: RequestCounts
    first_row: int
    """The number of its first request in the run."""
    rows: int
    """How many numbers it has: one a chain."""

    @property
    def written(self) -> tuple[str, str]:
        """The ids of its output and its error file."""
        name = self.id.removeprefix("batch_")
        return f"file-{name}o", f"file-{name}e"


class _AskedBatch(Struct, forbid_unknown_fields=False):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Any = None


class BatchDesk:
    """The files and the batches of one server, in its run folder."""

    def __init__(self, folder: Path, desk: Desk, limits: ServeLimits, model: str) -> None:
        self._folder, self._batches = folder, folder / "batches"
        self._files, self._counting = StoredFiles(folder / "files", limits, self._needs), list[str]()
        self._desk, self._limits, self._model = desk, limits, model
        self._tasks: anyio.abc.TaskGroup | None = None
        self._room, self._stopped = asyncio.Event(), False
        found = self._batches.glob("*.json") if self._batches.is_dir() else ()
        kept = (msgspec.json.decode(path.read_bytes(), type=BatchState) for path in found)
        self._known = {batch.id: batch for batch in sorted(kept, key=lambda batch: batch.first_row)}

    @property
    def unfinished(self) -> bool:
        """Whether a batch is not over."""
        return any(batch.status in OPEN for batch in self._known.values())

    @property
    def next_row(self) -> int:
        """The number after those of all batches."""
        return max((batch.first_row + batch.rows for batch in self._known.values()), default=1)

    def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        """Carry out the batches that are not over, and those that come, as tasks of this group."""
        self._tasks = tasks
        for batch in self._known.values():
            if batch.status in OPEN:
                tasks.start_soon(partial(self._carry_out, batch, resumed=True))

    @property
    def routes(self) -> list[Route]:
        """What clients may ask for."""
        return [
            *self._files.routes,
            Route("/v1/batches", self._create, methods=["POST"]),
            Route("/v1/batches", self._list),
            Route("/v1/batches/{id}", self._batch),
            Route("/v1/batches/{id}/cancel", self._cancel, methods=["POST"]),
        ]

    def _needs(self, file: str) -> bool:
        """Whether a batch that is not over, or is about to be made, has this file."""
        still = (batch for batch in self._known.values() if batch.status in OPEN)
        return file in self._counting or any(file in (batch.input_file_id, *batch.written) for batch in still)

    async def _create(self, request: Request) -> Response:
        body = await Request(request.scope, bounded(request.receive, self._limits.max_body_bytes)).body()
        try:
            asked = msgspec.json.decode(body, type=_AskedBatch)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(f"the body is no request for a batch: {error}", code="invalid_value") from error
        if asked.endpoint != ENDPOINT:
            raise ApiError(f"`endpoint` is {asked.endpoint!r}; only {ENDPOINT!r} is supported", "endpoint", "invalid_value")
        if asked.output_expires_after is not None:
            raise never_expires("output_expires_after")
        self._counting.append(self._files.named(asked.input_file_id).id)
        try:
            lines, rows = await anyio.to_thread.run_sync(self._counted, asked.input_file_id)
        finally:
            self._counting.remove(asked.input_file_id)
        if not lines:
            raise ApiError("the file has no lines", "input_file_id", "empty_file")
        if self._desk.closed is not None or self._tasks is None:
            raise ApiError("the engines are starting or the server is being stopped", code="service_unavailable", status=503)
        now = int(time.time())
        batch = BatchState(
            id=f"batch_{secrets.token_hex(12)}",
            input_file_id=asked.input_file_id,
            completion_window=asked.completion_window,
            created_at=now,
            in_progress_at=now,
            metadata=asked.metadata,
            request_counts=RequestCounts(lines),
            first_row=self._desk.reserve(rows),
            rows=rows,
        )
        self._known[batch.id] = batch
        self._keep(batch)
        self._tasks.start_soon(self._carry_out, batch)
        return as_json(batch)

    def _of(self, request: Request) -> BatchState:
        batch = self._known.get(name := request.path_params["id"])
        if batch is None:
            raise ApiError(f"there is no batch {name!r}", "id", "not_found", status=404)
        return batch

    async def _batch(self, request: Request) -> Response:
        return as_json(self._of(request))

    async def _list(self, request: Request) -> Response:
        return page(self._known, request.query_params, usual=LISTED, most=MOST_LISTED)

    async def _cancel(self, request: Request) -> Response:
        """What has begun is finished; the rest is not begun."""
        batch = self._of(request)
        if batch.status == "in_progress":
            batch.status, batch.cancelling_at = "cancelling", int(time.time())
            self._keep(batch)
        return as_json(batch)

    def _keep(self, batch: BatchState) -> None:
        self._batches.mkdir(exist_ok=True)
        with new_file(self._batches / f"{batch.id}.json") as draft:
            draft.write_bytes(msgspec.json.encode(batch))

    def _counted(self, name: str) -> tuple[int, int]:
        """How many lines a file of requests has, and how many chains they ask for."""
        lines = rows = 0
        for line in self._lines(name):
            lines, rows = lines + 1, rows + line.chains
        return lines, rows

    def _lines(self, name: str) -> Iterator["_NumberedLine"]:
        """The lines of a file of requests."""
        seen: set[str] = set()
        with self._files.path(name).open("rb") as file:
            for number, content in enumerate(file, 1):
                if content.strip():
                    yield _line(number, content, seen, self._model)

    async def _carry_out(self, batch: BatchState, *, resumed: bool = False) -> None:
        """Ask for the lines that have no answer yet, and end the batch when all have one."""
        work = await anyio.to_thread.run_sync(partial(_BatchWork, batch, self._folder, self._desk, self._wake, resumed=resumed))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work.write)
                await self._ask(batch, work)
                work.finish()
        finally:
            work.close()
        if self._desk.closed is None:
            batch.status = "cancelled" if batch.status == "cancelling" else "completed"
            setattr(batch, f"{batch.status}_at", int(time.time()))
            batch.output_file_id = self._ended_file(work.output, f"{batch.id}_output.jsonl")
            batch.error_file_id = self._ended_file(work.errors, f"{batch.id}_error.jsonl")
        self._keep(batch)

    async def _ask(self, batch: BatchState, work: "_BatchWork") -> None:
        """Ask for all lines while there is room, and wait for their answers."""
        lines, row = self._lines(batch.input_file_id), batch.first_row
        while not self._ends(batch) and (piece := await anyio.to_thread.run_sync(lambda: list(islice(lines, AHEAD)))):
            for line in piece:
                while self._desk.waiting_spare >= AHEAD and self._desk.closed is None:
                    self._room.clear()
                    await self._room.wait()
                if self._ends(batch):
                    break
                work.ask(row, line)
                row += line.chains
        while work.open and not self._stopped:
            self._room.clear()
            await self._room.wait()

    def _ends(self, batch: BatchState) -> bool:
        """Whether no more lines of a batch are to be asked for."""
        return batch.status == "cancelling" or self._desk.closed is not None

    def _ended_file(self, path: Path, filename: str) -> str | None:
        """The id of a file that was written, None where it is empty."""
        return self._files.add(path.stem, filename, "batch_output").id if path.stat().st_size else None

    def stop(self) -> None:
        """The run is over: what has no answer yet gets none in this session."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        self._room.set()


class _NumberedLine(NamedTuple):
    """A line of a file of requests."""

    number: int
    """From 1."""
    custom_id: str
    """Where the line has none, one that tells its number."""
    asked: AskedChat | ApiError
    """What is asked, or why it is refused."""

    @property
    def chains(self) -> int:
        """How many chains it asks for; a line that is refused has the number of one."""
        return 1 if isinstance(self.asked, ApiError) else self.asked.settings.samples or 1


class _AskedLine(NamedTuple):
    """A line whose chains are asked for."""

    name: str
    line: _NumberedLine
    chat: AskedChat
    replies: dict[int, ChainReply | ApiError]
    """How its chains ended, by number."""


class _BatchWork:
    """The lines of one batch while they are answered. An answer is written when its chains are on disk, so that no kill can part them."""

    def __init__(self, batch: BatchState, folder: Path, desk: Desk, changed: Callable[[], object], *, resumed: bool) -> None:
        """Reads what earlier sessions left of a batch that is `resumed`."""
        self._batch, self._desk, self._changed = batch, desk, changed
        self.output, self.errors = (folder / "files" / f"{name}.jsonl" for name in batch.written)
        done, failed = _written(self.output), _written(self.errors)
        self._answered = {*done, *failed}
        self._counts = batch.request_counts
        self._counts.completed, self._counts.failed = len(done), len(failed)
        self._earlier = earlier_outcomes(folder, f"{batch.id}:", self._answered) if resumed else {}
        self._out, self._err = self.output.open("ab"), self.errors.open("ab")
        self._unwritten = list[tuple[str, str, ChatCompletion | ApiError]]()
        self._news, self._finished = asyncio.Event(), False
        self.open = 0
        """Requests that have been asked and are not answered."""

    def ask(self, row: int, line: _NumberedLine) -> None:
        """Let the chains of a line wait that are not over, `row` being its number; one that is refused gets its error."""
        name = f"{self._batch.id}:{line.custom_id}"
        if isinstance(line.asked, ApiError):
            name = f"{self._batch.id}#{line.number}"  # its `custom_id` may be another line's
        if name in self._answered:
            return
        if isinstance(line.asked, ApiError):
            self._tell(name, line.custom_id, line.asked)
            return
        asked = _AskedLine(name, line, line.asked, self._earlier.pop(name, {}))
        self.open += 1
        record = {"custom_id": line.custom_id, "batch": self._batch.id}
        left = [index for index in range(line.chains) if index not in asked.replies]
        self._desk.submit(name, row, line.asked, record, left, partial(self._heard, asked), spare=True)
        if not left:
            self._end(asked)

    def _heard(self, asked: _AskedLine, event: Event) -> None:
        if not isinstance(event, Ended):
            return
        asked.replies[event.index] = event.outcome
        if len(asked.replies) == asked.line.chains:
            self._end(asked)

    def _end(self, asked: _AskedLine) -> None:
        self.open -= 1
        failed = next((each for each in asked.replies.values() if isinstance(each, ApiError)), None)
        if failed is None or failed.status != 503:  # the server ends: the line is asked again when it is resumed
            told = [each for _, each in sorted(asked.replies.items()) if isinstance(each, ChainReply)]
            self._tell(asked.name, asked.line.custom_id, failed or self._completion(asked.chat, told))
        self._changed()

    def _completion(self, asked: AskedChat, replies: list[ChainReply]) -> ChatCompletion:
        name, now = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        return completion(replies, name=name, created=now, model=asked.model, stop=asked.settings.stop, close=self._desk.mark)

    def _tell(self, name: str, custom_id: str, found: ChatCompletion | ApiError) -> None:
        self._unwritten.append((name, custom_id, found))
        self._news.set()

    async def write(self) -> None:
        """Write lines as they are answered, until the last was."""
        while self._unwritten or not self._finished:
            self._news.clear()
            if not self._unwritten:
                await self._news.wait()
            answers, self._unwritten = self._unwritten, []
            if await self._desk.on_disk():
                for each in answers:
                    self._write(*each)

    def finish(self) -> None:
        """No more lines will be answered."""
        self._finished = True
        self._news.set()

    def _write(self, name: str, custom_id: str, found: ChatCompletion | ApiError) -> None:
        """Write the line of a request that is answered or refused."""
        failed = isinstance(found, ApiError)
        status, content = (found.status, found.body) if isinstance(found, ApiError) else (200, found)
        body = {"status_code": status, "request_id": name, "body": content}
        file: BinaryIO = self._err if failed else self._out
        file.write(msgspec.json.encode({"id": name, "custom_id": custom_id, "response": body, "error": None}) + b"\n")
        file.flush()
        self._counts.failed += failed
        self._counts.completed += not failed

    def close(self) -> None:
        """Close the files."""
        self._out.close()
        self._err.close()


class _WrittenLine(Struct):
    id: str


def _written(path: Path) -> list[str]:
    """The ids of the lines that an earlier session has written; a torn end goes."""
    if not path.exists():
        return []
    found, size = list[str](), 0
    with path.open("r+b") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            found.append(msgspec.json.decode(line, type=_WrittenLine).id)
            size += len(line)
        file.truncate(size)
    return found


def _line(number: int, content: bytes, seen: set[str], model: str) -> _NumberedLine:
    name = f"(line {number})"
    try:
        record: Any = msgspec.json.decode(content)
        if not isinstance(record, Mapping):
            raise ApiError("the line is no JSON object", code="invalid_json_line")
        name = custom_id_of(record) or name
        if name in seen:
            raise ApiError(f"`custom_id` {name!r} is that of an earlier line", "custom_id", "duplicate_custom_id")
        asked = read_request(record)
        seen.add(name)
        check_model(asked.model, model)
        return _NumberedLine(number, name, asked)
    except ApiError as error:
        return _NumberedLine(number, name, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _NumberedLine(number, name, ApiError(f"the line is not JSON: {error}", code="invalid_json_line"))
