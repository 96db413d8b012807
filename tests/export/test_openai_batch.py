"""A batch file solved and exported as the OpenAI batch API does it: every request has one line, in the output file or the error file."""

import gzip
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from pipeline.data.requests import ApiError
from pipeline.export.openai_batch import errors_file, reply_of, write_batch_files
from pipeline.run.loop import Stop
from pipeline.run.run import SessionResult, run
from pipeline.store.rows import ChainRow
from tests.support.requests import REFUSED, request, write_batch
from tests.support.rows import blank
from tests.support.runs import options_of, rows, solve_short

SYSTEM, ONE, TWO = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
LINES = [
    request("first", n=2),
    *(line for line, *_ in REFUSED),
    request("chat", messages=[SYSTEM, ONE, TWO, {"role": "user", "content": "2+2?"}]),
    request("short", max_tokens=3),
    request("same", "Why?", seed=3, temperature=1),
    request("again", "Why?", seed=3, temperature=1),
    request("stop", stop="o"),
]
Lines = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Of the answers and of the errors."""


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> SessionResult:
    folder = tmp_path_factory.mktemp("batch")
    return solve_short(folder, input=write_batch(folder / "batch.jsonl", LINES), fail_on_error=1.0)


def exported(folder: Path, output: Path) -> Lines:
    counts = write_batch_files(folder, output)
    unpack = gzip.decompress if output.suffix == ".gz" else bytes
    answered, errors = ([json.loads(line) for line in unpack(file.read_bytes()).splitlines()] for file in (output, errors_file(output)))
    assert counts == (len(answered), len(errors))
    return answered, errors


@pytest.fixture(scope="module")
def lines(solved: SessionResult, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    assert solved.folder is not None
    return exported(solved.folder, tmp_path_factory.mktemp("exported") / "out.jsonl")


def test_every_line_is_answered_or_told_why_not(solved: SessionResult, lines: Lines) -> None:
    assert (solved.exit_code, solved.done, solved.failed) == (0, 7, len(REFUSED))
    answered, errors = lines
    assert [each["custom_id"] for each in answered] == ["first", "chat", "short", "same", "again", "stop"]
    for line, (_, name, param, code) in zip(errors, REFUSED, strict=True):
        error = line["response"]["body"]["error"]
        assert (line["custom_id"], error["param"], error["code"], error["type"]) == (name, param, code, "invalid_request_error")
        assert (line["response"]["status_code"], line["error"]) == (400, None)
    assert len({each["id"] for each in (*answered, *errors)}) == len(LINES)


def test_a_line_decides_about_its_own_chains_alone(solved: SessionResult, lines: Lines) -> None:
    bodies = {each["custom_id"]: each["response"]["body"] for each in lines[0]}
    choices = {name: body["choices"] for name, body in bodies.items()}
    assert [len(each) for each in choices.values()] == [2, 1, 1, 1, 1, 1]
    assert choices["first"][0]["message"]["reasoning_content"] != choices["first"][1]["message"]["reasoning_content"]
    assert choices["same"] == choices["again"]
    assert [each["finish_reason"] for each in choices["first"]] == ["stop", "stop"]
    [short], [stop] = choices["short"], choices["stop"]
    assert (short["finish_reason"], short["message"]["content"]) == ("length", None)
    assert bodies["short"]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert (stop["finish_reason"], "o" in stop["message"]["content"]) == ("stop", False)
    usage = bodies["first"]["usage"]
    assert usage["total_tokens"] == sum(each["total_tokens"] for each in usage["by_role"].values())
    written = [call for call in rows(solved, "calls") if call["problem_id"] == "same" and call["purpose"] in ("draft", "write", "answer")]
    assert {call["temperature"] for call in written} == {1.0}


async def drained(stop: Stop, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
    """Let the run start no more chains once it has begun."""
    task_status.started()
    await anyio.sleep(0.5)
    assert stop.drain()


def test_what_an_interrupted_run_did_not_come_to_is_told_as_expired_until_it_is_resumed(tmp_path: Path) -> None:
    lines = [request("a", n=2), *(request(f"b{k}") for k in range(5)), request("c", tools=[1])]
    batch = write_batch(tmp_path / "batch.jsonl", lines)
    options = options_of(tmp_path, input=batch, batch_size=1, settings=("engines.*.text.steps_mean=3",))
    assert run(options, attend=drained).exit_code == 130
    answered, errors = exported(tmp_path / "run", tmp_path / "part.jsonl")
    assert len(answered) + len(errors) == len(lines)
    assert answered == [] or [each["custom_id"] for each in answered] == ["a"]
    codes = {each["custom_id"]: each["error"] and each["error"]["code"] for each in errors}
    assert (codes["b4"], codes["c"]) == ("batch_expired", None)
    batch.unlink()  # the run keeps its problems, and what they say of their chains
    assert run(structs.replace(options, resume=True)).done == 7
    answered, errors = exported(tmp_path / "run", tmp_path / "whole.jsonl.gz")
    assert ([each["custom_id"] for each in answered], len(errors)) == (["a", "b0", "b1", "b2", "b3", "b4"], 1)
    assert [len(each["response"]["body"]["choices"]) for each in answered] == [2, 1, 1, 1, 1, 1]


def test_a_failed_chain_is_the_callers_error_or_the_servers() -> None:
    for name, status in (("ContextOverflow", 400), ("RequestRefused", 400), ("EngineUnavailable", 500)):
        with pytest.raises(ApiError) as error:
            reply_of(blank(ChainRow, stop_reason="error", error_type=name, error_message="why"), "")
        assert (error.value.status, error.value.message) == (status, "why")
        assert (error.value.code == "context_length_exceeded") == (name == "ContextOverflow")


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_models_of_vllm_and_the_types_of_openai_read_every_line(lines: Lines) -> None:
    from openai.types import ErrorObject
    from openai.types.chat import ChatCompletion
    from vllm.entrypoints.launchers.run_batch import BatchRequestInput, BatchRequestOutput
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    answered, errors = lines
    for line in answered:
        read = BatchRequestOutput.model_validate_json(json.dumps(line), strict=True)
        assert read.response is not None
        assert isinstance(read.response.body, ChatCompletionResponse)
        ChatCompletion.model_validate_json(json.dumps(line["response"]["body"]), strict=True)
    for line in errors:  # the body of an error is OpenAI's own; vLLM writes none
        ErrorObject.model_validate_json(json.dumps(line["response"]["body"]["error"]), strict=True)
        BatchRequestOutput.model_validate({**line, "response": {**line["response"], "body": None}})
    for line in (request("first", n=2), *LINES[-5:]):
        BatchRequestInput.model_validate(line)
