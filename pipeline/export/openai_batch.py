"""The answers of a run as the OpenAI batch API gives them: a run folder enters, an output file and an error file leave.

Every problem has one line in one of them, in the order of the input: its answer where all of its chains finished, else why not.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from pipeline.data.files import Flaw, Record
from pipeline.data.problems import Problem
from pipeline.data.requests import ApiError, ChainReply, completion, read_request
from pipeline.errors import BadRow
from pipeline.export.solved import SolvedChain, solved
from pipeline.files import whole_file
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile

UNANSWERED = {"code": "batch_expired", "message": "the run ended before this request was finished; `pipeline resume` continues it"}
Row = dict[str, Any]


def errors_file(output: Path) -> Path:
    """The error file that stands beside an output file: `out.errors.jsonl`."""
    name, ending, packed = output.name.partition(".jsonl")
    return output.with_name(f"{name}.errors{ending}{packed}")


def write_batch_files(run: Path, output: Path) -> tuple[int, int]:
    """Write the answers of the run in a folder to `output`, and what was not answered to its `errors_file`; how many lines each has.

    Raises `InputError` where the run cannot be read, `OSError` where a file cannot be written; then neither is left.
    """
    record, counts = RunFile.read(run), [0, 0]
    with whole_file(output) as answers, whole_file(errors_file(output)) as errors, Query(run) as db:
        for item, row, chains in solved(run, record, db):
            name = blake2b(f"{record.folder_id}\0{item.row}".encode(), digest_size=12).hexdigest()
            status = 200
            try:
                body = _answer(record, name, item, row, chains)
            except ApiError as error:
                status, body = error.status, error.body
            response = body and {"status_code": status, "request_id": name, "body": body}
            line = {"id": f"batch_req_{name}", "custom_id": item.problem_id, "response": response, "error": None if body else UNANSWERED}
            failed = body is None or status != 200
            (errors if failed else answers).write(msgspec.json.encode(line) + b"\n")
            counts[failed] += 1
    return counts[0], counts[1]


def _answer(run: RunFile, name: str, item: Problem | BadRow, row: Record, chains: Sequence[SolvedChain]) -> Row | None:
    """The body of the answer; None where the chains did not come to their end. Raises `ApiError` for one that failed and a refused row."""
    if isinstance(item, BadRow):
        if isinstance(row, Flaw):
            raise ApiError(item.what, code="invalid_json_line")
        read_request(row)  # which knows the parameter that is wrong
        raise ApiError(item.what)
    ended = [chain for chain in chains if chain.stop_reason != "cancelled"]
    replies = [reply_of(chain, chain.thought or "") for chain in ended]
    if len(ended) < (item.settings.samples or run.options.samples):
        return None
    return completion(
        replies,
        name=f"chatcmpl-{name}",
        created=max(chain.end_unix_ns for chain in ended) // 10**9,
        model=run.plan.name,
        stop=item.settings.stop,
        close=run.plan.prompts.thought.close,
    )


def reply_of(row: ChainRow, thought: str) -> ChainReply:
    """The reply of a chain that is over. Raises `ApiError` where it has none."""
    if row.stop_reason == "cancelled":
        raise ApiError("the server was stopped before the answer", code="service_unavailable", status=503)
    if row.stop_reason == "error":  # a request that an engine cannot run is the caller's error, all else the server's
        if row.error_type == "ContextOverflow":
            raise ApiError(row.error_message or "", "messages", "context_length_exceeded")
        raise ApiError(row.error_message or "", status=400 if row.error_type in ("RequestRefused", "BadRow") else 500)
    return ChainReply(
        thought=thought,
        answer=row.answer_text,
        cut=row.answer_cut,
        thought_tokens=row.thought_tokens,
        input_tokens=dict(zip(row.engines, row.input_tokens, strict=True)),
        output_tokens=dict(zip(row.engines, row.output_tokens, strict=True)),
    )
