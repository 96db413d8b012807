"""Batches of a server, through the `openai` package: answered, refused line by line, cancelled, and resumed with their server."""

import json
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest

from pipeline.store.read import read_batches
from tests.support.runs import chains_of
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.slow  # connections, and runs on real time
LONG = "engines.*.text.steps_mean=40"


def line(number: int, **more: Any) -> bytes:
    body = {"model": "speccot", "messages": [{"role": "user", "content": f"What is {number} + 1?"}], **more}
    return json.dumps({"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode() + b"\n"


def ordered(server: Serving, content: bytes) -> Any:
    client = server.client()
    file = client.files.create(file=("asked.jsonl", content), purpose="batch")
    assert client.files.content(file.id).content == content
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "mine"})


def over(server: Serving, name: str) -> Any:
    client = server.client()
    while (batch := client.batches.retrieve(name)).status in ("in_progress", "cancelling"):
        pass
    return batch


def lines(server: Serving, file: str | None) -> dict[str, Any]:
    found = [json.loads(each) for each in server.client().files.content(str(file)).text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each["response"] for each in found}


def test_a_batch_is_answered_line_by_line_with_the_errors_in_a_file_of_their_own(tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        content = b"".join(map(line, range(5))) + line(6, n=2) + line(3) + line(7, tools=[{"type": "function"}]) + b"{\n"
        batch = over(server, ordered(server, content).id)
        assert (batch.status, batch.metadata) == ("completed", {"of": "mine"})
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (9, 6, 3)
        answered = lines(server, batch.output_file_id)
        assert set(answered) == {"q0", "q1", "q2", "q3", "q4", "q6"}
        assert len(answered["q6"]["body"]["choices"]) == 2
        assert "boxed" in answered["q0"]["body"]["choices"][0]["message"]["content"]
        codes = sorted(each["body"]["error"]["code"] for each in lines(server, batch.error_file_id).values())
        assert codes == ["duplicate_custom_id", "invalid_json_line", "unsupported_parameter"]
        assert [each.id for each in server.client().batches.list()] == [batch.id]


def test_a_batch_goes_on_with_its_server_and_answers_each_line_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with serving(folder, LONG, engines="sim-2xh100", batch_size=4) as server:
        batch = ordered(server, b"".join(line(number, max_tokens=60 + 20 * (number % 5), seed=1) for number in range(16)))
        while server.client().batches.retrieve(batch.id).request_counts.completed < 4:
            pass
    assert server.result is not None
    assert server.result.run.status == "interrupted"
    with serving(folder, LONG, engines="sim-2xh100", batch_size=4, resume=True) as server:
        ended = over(server, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", 16)
        answers = lines(server, ended.output_file_id)
    with serving(tmp_path / "whole", LONG, engines="sim-2xh100", batch_size=4) as server:
        whole = over(server, ordered(server, b"".join(line(number, max_tokens=60 + 20 * (number % 5), seed=1) for number in range(16))).id)
        expected = lines(server, whole.output_file_id)
    said = {name: each["body"]["choices"][0]["message"] for name, each in answers.items()}
    assert said == {name: each["body"]["choices"][0]["message"] for name, each in expected.items()}
    assert len({row["chain_id"] for row in chains_of(folder)}) == len(chains_of(folder)) == 16


def test_a_kill_parts_no_answer_from_its_chain_and_asks_for_none_again(tmp_path: Path) -> None:
    """A copy of the folder is what a kill would leave: the answers first, as whatever they rest on has to be on disk before."""
    asked = b"".join(line(number, n=1 + number % 2, max_tokens=60 + 20 * (number % 5), seed=1) for number in range(16))
    folder, left = tmp_path / "run", tmp_path / "left"
    with serving(folder, LONG, engines="sim-2xh100", batch_size=4) as server:
        batch = ordered(server, asked)
        while server.client().batches.retrieve(batch.id).request_counts.completed < 6:
            pass
        shutil.copytree(folder / "files", left / "files")
        shutil.copytree(folder, left, dirs_exist_ok=True, ignore=shutil.ignore_patterns("files", "*.lock"))
    [output] = (left / "files").glob("*o.jsonl")
    written = [json.loads(each)["id"] for each in output.read_text().splitlines()]
    on_disk = {row["problem_id"] for part in read_batches(left, "chains", ("problem_id",)) for row in part.to_pylist()}
    assert len(written) >= 6
    assert on_disk.issuperset(written)
    kept = b"".join(output.read_bytes().splitlines(keepends=True)[:3])
    output.write_bytes(kept + b'{"id": "torn')
    with serving(left, LONG, engines="sim-2xh100", batch_size=4, resume=True) as server:
        ended = over(server, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", 16)
        answers = lines(server, ended.output_file_id)
    assert [len(answers[f"q{number}"]["body"]["choices"]) for number in range(16)] == [1, 2] * 8
    assert output.read_bytes().startswith(kept)
    chains = chains_of(left)
    assert len({row["chain_id"] for row in chains}) == len(chains) == 24
    assert {row["problem_id"] for row in chains} == {f"{batch.id}:q{number}" for number in range(16)}


def test_a_chain_that_failed_before_its_first_step_is_told_after_a_kill(tmp_path: Path) -> None:
    body = {"model": "speccot", "messages": [{"role": "user", "content": "one two " * 40_000}]}
    long = json.dumps({"custom_id": "long", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode() + b"\n"
    folder, slow = tmp_path / "run", line(1, max_tokens=400)
    with serving(folder, LONG, engines="sim-2xh100", batch_size=1) as server:
        batch = ordered(server, long + slow + b"".join(map(line, range(2, 30))))
        while not server.client().batches.retrieve(batch.id).request_counts.failed:
            pass
    [errors] = (folder / "files").glob("*e.jsonl")
    told = json.loads(errors.read_bytes())
    errors.write_bytes(b"")
    with serving(folder, LONG, engines="sim-2xh100", batch_size=1, resume=True) as server:
        while not (counts := server.client().batches.retrieve(batch.id).request_counts).failed:
            pass
    assert counts.failed == 1
    assert json.loads(errors.read_bytes()) == told
    assert told["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_refused_lines_have_their_names_and_hide_no_other_line(tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        named = line(2).replace(b'"q2"', b'"(line 1)"')
        batch = over(server, ordered(server, b"{\n" + named + line(3, tools=[{"type": "function"}]) + line(4) + line(4)).id)
        assert set(lines(server, batch.output_file_id)) == {"(line 1)", "q4"}
        assert set(lines(server, batch.error_file_id)) == {"(line 1)", "q3", "q4"}


def test_what_is_no_batch_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        client = server.client()
        with pytest.raises(openai.NotFoundError, match="no file"):
            client.batches.create(input_file_id="file-1", endpoint="/v1/chat/completions", completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="only '/v1/chat/completions'"):
            client.batches.create(input_file_id="file-1", endpoint="/v1/embeddings", completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="only 'batch'"):
            client.files.create(file=("x", b"y"), purpose="fine-tune")
        with pytest.raises(openai.NotFoundError, match="no batch"):
            client.batches.retrieve("batch_1")
        with pytest.raises(openai.NotFoundError, match="no file"):
            client.files.content("file-..")
