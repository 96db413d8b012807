"""The answers of a run as the OpenAI batch API gives them: a run folder enters, an output file and an error file leave.

Every problem has one line in one of them, in the order of the input: its answer where all of its chains finished, else why not. One window
of problems is in memory at a time.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from msgspec import Struct

from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.data.requests import ApiError, ChainReply, completion, error_of, read_request
from pipeline.errors import BadRow
from pipeline.files import whole_file
from pipeline.store.events import UNFINISHED
from pipeline.store.kept_problems import solved_problems
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

WINDOW = 8192
"""Problems whose answers are in memory together."""
CHAINS = """
SELECT input_row, chain_id, answer_text, answer_cut, thought_tokens, engines, input_tokens, output_tokens, stop_reason, error_type,
    error_message, start_unix_ns, end_unix_ns
FROM chains WHERE input_row BETWEEN $first AND $last ORDER BY input_row, sample_index"""
THOUGHTS = """
SELECT chain_id, string_agg(step_text, '' ORDER BY step_index) FROM steps
WHERE end_unix_ns BETWEEN $begin AND $end AND chain_id IN (SELECT unnest($chains::VARCHAR[])) GROUP BY chain_id"""
Row = dict[str, Any]


class BatchResponse(Struct, frozen=True):
    """What a request was answered."""

    status_code: int
    request_id: str
    body: dict[str, Any]


class BatchFailure(Struct, frozen=True):
    """Why a request was not answered."""

    code: str
    message: str


class BatchLine(Struct, frozen=True):
    """A line of an output file or an error file."""

    id: str
    custom_id: str
    response: BatchResponse | None
    error: BatchFailure | None


class BatchCounts(NamedTuple):
    """The lines of both files."""

    answered: int
    errors: int


UNANSWERED = BatchFailure("batch_expired", "the run ended before this request was finished; `pipeline resume` continues it")


class _Asked(NamedTuple):
    """A row of the input, with the rows of its chains."""

    item: Problem | BadRow
    record: Record
    chains: Sequence[Row]


def errors_file(output: Path) -> Path:
    """The error file that stands beside an output file: `out.errors.jsonl`."""
    ends = next((end for end in (".jsonl.gz", ".ndjson.gz") if output.name.endswith(end)), output.suffix)
    return output.with_name(f"{output.name.removesuffix(ends)}.errors{ends}")


def write_batch_files(run: Path, output: Path) -> BatchCounts:
    """Write the answers of the run in a folder to `output`, and what was not answered to its `errors_file`.

    Raises `InputError` where the run cannot be read, `OSError` where a file cannot be written; then neither is left.
    """
    record = RunFile.read(run)
    with whole_file(errors_file(output)) as errors, whole_file(output) as answers, Query(run) as db:
        return _write(record, _windows(run, record, db), answers, errors)


def _write(record: RunFile, windows: Iterator[list[_Asked]], answers: BinaryIO, errors: BinaryIO) -> BatchCounts:
    written, encode = [0, 0], msgspec.json.encode
    for window in windows:
        for asked in window:
            line = _line(record, asked)
            failed = line.response is None or line.response.status_code != 200
            (errors if failed else answers).write(encode(line) + b"\n")
            written[failed] += 1
    return BatchCounts(*written)


def _windows(run: Path, record: RunFile, db: Query) -> Iterator[list[_Asked]]:
    items = solved_problems(run, record).with_records()
    while window := list(islice(items, WINDOW)):
        chains: dict[int, list[Row]] = {}
        for chain in db.arrow(CHAINS, first=window[0][0].row, last=window[-1][0].row).to_pylist():
            chains.setdefault(chain["input_row"], []).append(chain)
        _add_thoughts(db, [chain for mine in chains.values() for chain in mine])
        yield [_Asked(item, record, chains.get(item.row, [])) for item, record in window]


def _add_thoughts(db: Query, chains: Sequence[Row]) -> None:
    """Give each chain the text of its thought. The times bound the steps that have to be looked at."""
    texts: dict[str, str] = {}
    if done := [chain for chain in chains if chain["stop_reason"] not in UNFINISHED]:
        begin, end = min(chain["start_unix_ns"] for chain in done), max(chain["end_unix_ns"] for chain in done)
        texts = dict(db.stream(THOUGHTS, begin=begin, end=end, chains=[chain["chain_id"] for chain in done]))
    for chain in chains:
        chain["thought"] = texts.get(chain["chain_id"], "")


def _line(run: RunFile, asked: _Asked) -> BatchLine:
    item, samples = asked.item, _samples(run, asked.item)
    name = blake2b(f"{run.folder_id}\0{item.row}".encode(), digest_size=12).hexdigest()
    failed = next((chain for chain in asked.chains if chain["stop_reason"] == "error"), None)
    if isinstance(item, BadRow):
        return _error_line(name, item.problem_id, _refusal(asked.record, item.what))
    if failed is not None:
        return _error_line(name, item.problem_id, error_of(failed["error_type"], failed["error_message"] or ""))
    done = [chain for chain in asked.chains if chain["stop_reason"] not in UNFINISHED]
    if len(done) < samples:
        return BatchLine(f"batch_req_{name}", item.problem_id, None, UNANSWERED)
    body = completion(
        [_reply(chain) for chain in done],
        name=f"chatcmpl-{name}",
        created=max(chain["end_unix_ns"] for chain in done) // 10**9,
        model=run.plan.name,
        stop=item.settings.stop,
        close=run.plan.prompts.thought.close,
    )
    return BatchLine(f"batch_req_{name}", item.problem_id, BatchResponse(200, name, body), None)


def _samples(run: RunFile, item: Problem | BadRow) -> int:
    """The number of chains of a problem."""
    own = item.settings.samples if isinstance(item, Problem) else None
    each: int = run.options.get("samples", run.samples)
    return each if own is None else own


def _refusal(record: Record, what: str) -> ApiError:
    """Why a row is refused that holds no problem for the reason `what`."""
    if isinstance(record, Flaw):
        return ApiError(what, code="invalid_json_line")
    try:
        read_request(record)
    except ApiError as error:
        return error
    return ApiError(what)


def _error_line(name: str, custom_id: str, error: ApiError) -> BatchLine:
    return BatchLine(f"batch_req_{name}", custom_id, BatchResponse(error.status, name, error.body), None)


def _reply(chain: Row) -> ChainReply:
    read, written = (dict(zip(chain["engines"], chain[name], strict=True)) for name in ("input_tokens", "output_tokens"))
    return ChainReply(
        thought=chain["thought"],
        answer=chain["answer_text"],
        cut=chain["answer_cut"],
        thought_tokens=chain["thought_tokens"],
        input_tokens=read,
        output_tokens=written,
    )
