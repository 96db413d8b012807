"""Commands that are given what they cannot use: one sentence says so, with exit code 2, and nothing is printed, made or changed."""

import os
import shlex
import socket
from pathlib import Path

import pytest

from pipeline.store.rows import ChainRow, StepRow
from pipeline.store.store import RunStore
from tests.support.commands import pipeline
from tests.support.rows import blank
from tests.support.run_files import write_run_json
from tests.support.training_data import write_config

NO_SECRETS = "s3://bucket/x: a URL holds no credentials and no options; set them in the environment"
ELSEWHERE = "serve speccot --engines sim-instant --host 203.0.113.7 --port 0 -o run"
TRAIN = "train select train.yaml --set"
REFUSED = {
    "run speccot": "no problems to solve: name a file or a data set, such as arith; see pipeline run --help",
    "run speccot x --batch-size 0": "--batch-size: 0 is not between 1 and 1000000",
    "run speccot x --schedule pipeline": "--schedule: 'pipeline' is not one of 'pipelined', 'lockstep', 'sequential'",
    "run speccot x --column problem": "--column: expected FIELD=COLUMN",
    "run speccot x --metrics-port http": "--metrics-port: 'http': expected PORT or HOST:PORT",
    "run speccot --data x": "no option `--data`; use --input FILE",
    "run speccot --max_tokens=100": "no option `--max_tokens`; use --set token_budget=N",
    "run speccot --bacth-size 3": "no option `--bacth-size`; did you mean `--batch-size`?",
    "run speccot --stop x": "no option `--stop`; see pipeline run --help",
    "run speccot ftp://host/x": "ftp://host/x: unknown scheme 'ftp'; expected s3://BUCKET/PATH or gs://BUCKET/PATH",
    "run speccot s3:///x": "'' is not a bucket name; expected s3://BUCKET/PATH",
    "run speccot s3://localhost:9000/x": "'localhost:9000' is not a bucket name",
    "run speccot s3://bucket/a/../b": "`..` in its path",
    "run speccot s3://AKIA:secret@bucket/x": NO_SECRETS,
    "run speccot s3://AKIA@bucket/x": NO_SECRETS,
    "run speccot 's3://bucket/x?access_key=AKIA&secret_key=secret'": NO_SECRETS,
    "run speccot missing.csv --output new/deep/run": "missing.csv: no such file",
    "run speccot arith --log-file no/x.log -o run": "--log-file no/x.log: not writable: no such file",
    "serve speccot -o run --port 0": "--engines tiny",
    ELSEWHERE: "--host 203.0.113.7: cannot listen on it: cannot assign requested address",
    "merge runs/a": "--output is missing; see pipeline merge --help",
    "graph chek": "pipeline graph: no command `chek`; did you mean `check`?",
    "graph check target --preset preset.yaml": "sets only `sure`, `stages.verify.threshold`, none of which target has",
    "list graph": "KIND: 'graph' is not one of 'graphs', ",
    "show one p33": "one: no finished chain of problem 'p33'; did you mean `p3`?",
    "show one p3 --sample 1": "one: no finished sample 1 of problem 'p3', but 0",
    "show one --sample 1": "--sample: only with CHAIN; name a problem",
    "show one p1 --follow": "CHAIN and --follow: give one of them",
    "show one p1 --json": "--json: not with CHAIN; for its steps as data use `pipeline export --as steps`",
    "show . --failed": ".: a folder of runs; name one of them, such as two",
    "show nothing": "nothing: no such directory; expected a run folder",
    "view empty -o x.html": "empty: holds no run; expected a run folder",
    "view empty": "empty: contains no runs; name the folder",
    "view one one": "several runs are compared in a file: add -o FILE, or name one folder",
    "compare one --table speccot-3 --baseline x": "--table and --baseline cannot be combined",
    "compare one --output nowhere/x.md": "--output nowhere/x.md: cannot be written: no such file or directory",
    "compare one --output tables.xlsx": "--output tables.xlsx: its name must end in .md, .csv or .json",
    "query empty 'FROM steps'": "empty: holds no run; expected a run folder",
    "query one 'FROM step'": "SQL: Table with name step does not exist",
    "query one 'SELECT decision::INT FROM steps'": "SQL: Could not convert string",
    "query one nowhere.sql": "nowhere.sql: cannot be read: no such file",
    "query one 'FROM steps' -o x.xlsx": "its name must end in .parquet, .csv, .json, .jsonl",
    "query one 'FROM steps' -o no/x.csv": "--output no/x.csv: cannot be written: no such file",
    "export one --as sft -o -": "-o -: only JSON lines of answers or of a table can be printed; name a file",
    "export one --as openai-batch -o a.csv": "a.csv: the batch API's files are JSON lines; name it .jsonl",
    "export one --as openai-batch --thoughts": "--thoughts: only with --as answers, not --as openai-batch",
    "export one --as jaeger -o a": "--as: 'jaeger' is not one of 'answers', 'openai-batch', 'calls', ",
    "export one --as steps -o nowhere/x.csv": "--output nowhere/x.csv: cannot be written: no such file or directory",
    "export one --as perfetto -o trace.json": "one: has no calls: there is nothing to export",
    "export one -o answers.xlsx": "answers.xlsx: unknown format; expected a name that ends in .jsonl, .csv or .parquet",
    "export one -o answers.json": "answers.json: unknown format",
    "export one -o answers": "answers: unknown format",
    "export one --as sft --labels verdicts": "--labels: only with --as selection, not --as sft",
    "export one --correct": "--correct: only with --as sft or selection, not --as answers",
    "export one two": "--as answers: one RUN at a time; several only with --as sft or selection",
    "sweep speccot": "no problems to solve: name a file or a data set with --input, such as arith",
    "sweep speccot arith -o s3://b/x": "--output: s3://b/x: a URL, where only a path of this machine can be used",
    "sweep speccot -i arith --batch-size 1,x": "'x' is not a whole number",
    "sweep speccot -i arith --batch-size 0": "--batch-size: 0 is not between 1 and 1000000",
    "sweep speccot -i arith --schedule pipeline": "--schedule: 'pipeline' is not one of 'pipelined', 'lockstep', 'sequential'",
    "sweep speccot -i arith --baseline nowhere.yaml": "nowhere.yaml: cannot be read: no such file",
    "sweep speccot -i arith --batch-size 1,1": "names a value twice",
    "sweep speccot -i arith --vary candidates": "expected NAME=VALUE,VALUE,..., for example candidates=1,2,5",
    "sweep speccot -i arith --vary candidates=1,,2": "expected NAME=VALUE",
    "sweep speccot -i arith --vary candidate=1,2": "--vary candidate: no graph here has such a param; did you mean `candidates`?",
    "sweep speccot -i arith --max-loss 200%": "expected a share between 0 and 1, for example 1% or 0.01",
    "sweep speccot -i a/mine.csv -i b/mine.csv": "two data sets have the same name",
    "sweep speccot-6 --limit 3": "--limit: a study file says that itself; leave it out",
    "sweep speccot-6 speccot": "is a study file; name it alone",
    f"{TRAIN} model=bundled:tiny-tarket": "no bundled model is named 'tiny-tarket' (did you mean `tiny-target`?)",
    f"{TRAIN} data=[none.jsonl]": "none.jsonl: no such file",
    f"{TRAIN} max_length=5000": "max_length: is 5,000, and bundled:tiny-target was made for 4,096 tokens",
    f"{TRAIN} output=one": "one: already exists; add --resume to continue, or choose another folder with --output",
}
"""By command line what is said."""
NOTICES = {ELSEWHERE: ["--host 203.0.113.7: whoever reaches this address may use the models; set a key with PIPELINE_API_KEY=..."]}
"""By command line what is said before."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs and a folder without one, a preset and a training file."""
    place = tmp_path_factory.mktemp("refused")
    for name in ("one", "two"):
        store = RunStore(write_run_json(place / name))
        store.append("chains", [blank(ChainRow, chain_id=f"p{row}#0", problem_id=f"p{row}", input_row=row) for row in (1, 2, 3)])
        store.append("steps", [blank(StepRow, decision="accepted")])
        store.close()
    os.utime(place / "one/run.json", (1, 1))  # the other one is the latest
    for name in ("empty", "a", "b"):
        (place / name).mkdir()
    for name in ("data.jsonl", "a/mine.csv", "b/mine.csv"):
        (place / name).write_text("{}\n")
    (place / "preset.yaml").write_text("set: {sure: -0.7, stages.verify.threshold: 5}\n")
    write_config(place / "train.yaml", model="bundled:tiny-target", data=["data.jsonl"], output="out")
    return place


def contents(folder: Path) -> dict[Path, bytes | None]:
    """What is in each file below a folder; None for folders."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("line", REFUSED)
def test_one_sentence_says_what_cannot_be_done(folder: Path, line: str) -> None:
    before = contents(folder)
    done = pipeline(*shlex.split(line), cwd=folder)
    *told, said = done.stderr.splitlines()
    assert (done.returncode, done.stdout, told) == (2, "", NOTICES.get(line, [])), done.stderr
    assert said.startswith("error: ")
    assert REFUSED[line] in said
    assert not any(secret in done.stderr for secret in ("AKIA", "secret@", "=secret"))
    assert contents(folder) == before


def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pipeline("serve", "speccot", "--engines", "sim-instant", "--port", str(port), cwd=folder)
    said = f"error: --port {port}: cannot listen on 127.0.0.1: address already in use; choose another one, or 0 for any free one\n"
    assert (done.returncode, done.stderr.endswith(said)) == (2, True)


@pytest.mark.parametrize("command", ["run speccot gsm8k", "run speccot hf://openai/gsm8k:main", "prepare gsm8k --from hub"])
def test_a_hub_that_does_not_answer_is_one_sentence_at_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    done = pipeline(*command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the Hugging Face hub cannot be reached" in done.stderr
