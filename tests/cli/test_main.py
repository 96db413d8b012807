"""The command line as a whole: help, wrong guesses in one sentence each, the environment, exit codes, errors that nobody foresaw."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pipeline.cli.main import COMMANDS, cli
from pipeline.errors import MAX_NAMES, did_you_mean
from pipeline.store.run_file import RunFile
from tests.support.commands import COMMAND, pipeline, spawned
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import write_problems

SHORT = {"--output": "-o", "--input": "-i", "--limit": "-n", "--set": "-s", "--quiet": "-q", "--verbose": "-v"}
HEADINGS = ["Input", "Models", "Prompting", "Scheduling", "Output", "Resume", "Replicas", "Display"]
FAIL = "import pipeline.graph.files as b\ndef fail(*kinds):\n    raise {}\nb.bundled_files = fail\n"
RUN = ("run", "speccot")


def options_in(command: dict[str, Any]) -> Iterator[list[str]]:
    """The names of each option of a command, as click describes it, and of those below it."""
    yield from (param["opts"] for param in command["params"] if param["param_type_name"] == "option")
    for each in command.get("commands", {}).values():
        yield from options_in(each)


def failing(error: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`pipeline list engines` where an error is raised in the middle of it."""
    words = [sys.executable, "-c", FAIL.format(error) + COMMAND[-1], "list", "engines"]
    variables = os.environ | variables | {"TMPDIR": str(folder)}
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=HANGS_S)


def test_the_root_help_has_every_command_in_its_group() -> None:
    lines = pipeline("--help").stdout.splitlines()
    for heading, entries in COMMANDS.items():
        start = lines.index(f"{heading}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(entries)]] == list(entries)
    assert pipeline().stderr.splitlines() == lines


def test_the_options_of_run_are_under_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    lines = pipeline("run", "--help").stdout.splitlines()
    assert [line[:-1] for line in lines if line[:-1] in HEADINGS] == HEADINGS
    assert 100 < max(map(len, lines)) <= 118, "help is as wide as the terminal"
    assert "x<=" not in "".join(lines)


@pytest.mark.slow
def test_short_options_are_the_same_everywhere() -> None:
    found = [*options_in(cli.to_info_dict(click.Context(cli)))]
    assert len(found) > 100
    assert [names for names in found if SHORT.get(max(names, key=len), names[0]) not in names] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (RUN, "no problems to solve: name a file or a data set, such as arith; see pipeline run --help"),
        ((*RUN, "x", "--batch-size", "0"), "--batch-size: 0 is not between 1 and 1000000"),
        ((*RUN, "x", "--schedule", "pipeline"), "--schedule: 'pipeline' is not one of 'pipelined', 'lockstep', 'sequential'"),
        ((*RUN, "x", "--column", "problem"), "--column: expected FIELD=COLUMN"),
        ((*RUN, "x", "--metrics-port", "http"), "--metrics-port: 'http': expected PORT or HOST:PORT"),
        ((*RUN, "--data", "x"), "no option `--data`; use --input FILE"),
        ((*RUN, "--max_tokens=100"), "no option `--max_tokens`; use --set token_budget=N"),
        ((*RUN, "--bacth-size", "3"), "no option `--bacth-size`; did you mean `--batch-size`?"),
        ((*RUN, "--stop", "x"), "no option `--stop`; see pipeline run --help"),
        (("graph", "chek"), "pipeline graph: no command `chek`; did you mean `check`?"),
        (("list", "graph"), "KIND: 'graph' is not one of 'graphs', "),
        (("merge", "runs/a"), "--output is missing; see pipeline merge --help"),
        (("sweep", "speccot", TEST_SET, "-o", "s3://b/x"), "--output: s3://b/x: a URL, where only a path of this machine can be used"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_wrong_guesses_are_one_sentence_and_exit_code_2(arguments: tuple[str | Path, ...], expected: str) -> None:
    done = pipeline(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr


def test_a_list_of_names_is_short_and_begins_with_the_nearest() -> None:
    known = [f"arith-test-{number:03}" for number in range(500)]
    said = did_you_mean("arith-train", known)
    assert said.startswith("500 known, such as `arith-t")
    assert said.count("`") == 2 * MAX_NAMES
    assert did_you_mean("x", known[:MAX_NAMES]).startswith("known are ")
    assert did_you_mean("x", []) == "none are known here"


@pytest.mark.slow
def test_options_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH_SIZE": "3", "LIMIT": "2", "QUIET": "1"}.items():
        monkeypatch.setenv(f"PIPELINE_RUN_{name}", value)
    done = pipeline(*RUN, "--engines", SIM, write_problems(tmp_path, 4), "-o", tmp_path / "run", "--batch-size", "5")
    assert (done.returncode, done.stderr) == (0, "")
    run = RunFile.read(tmp_path / "run")
    assert (run.options.batch_size, run.input.rows) == (5, 2)


@pytest.mark.slow
def test_a_process_ends_with_the_exit_code_of_its_command() -> None:
    done = spawned("graph", "check", "tests/graphs/cycle.yaml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    module = subprocess.run([sys.executable, "-m", "pipeline.cli.main", "train", "--help"], cwd=ROOT, capture_output=True, timeout=HANGS_S)
    assert (module.returncode, module.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize(("room", "codes"), [("4096", (0, 1)), ("16", (3, 3))])
def test_a_summary_that_nobody_takes_changes_no_exit_code(tmp_path: Path, room: str, codes: tuple[int, int]) -> None:
    words = [*RUN, "--engines", SIM, write_problems(tmp_path, 2), "--set", f"engines.target.max_model_len={room}", "--output"]
    command = [*COMMAND, *map(str, words)]
    reading, writing = os.pipe()
    os.close(reading)
    closed = subprocess.run([*command, tmp_path / "closed"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=HANGS_S)
    os.close(writing)
    with open("/dev/full", "wb") as nowhere:
        full = subprocess.run([*command, tmp_path / "full"], cwd=ROOT, stdout=nowhere, stderr=subprocess.PIPE, timeout=HANGS_S)
    assert (closed.returncode, full.returncode) == codes
    assert b"the summary could not be printed: no space left on device" in full.stderr
    assert b"could not be printed" not in closed.stderr


@pytest.mark.slow
def test_the_traceback_of_a_defect_is_in_a_file_that_the_sentence_names(tmp_path: Path) -> None:
    done = failing("KeyError('no such thing')", tmp_path)
    (kept,) = tmp_path.iterdir()
    said = f"this is a bug in pipeline: please report it with {kept} (or the traceback that PIPELINE_DEBUG=1 shows)"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: unexpected KeyError: 'no such thing'; {said}\n")
    assert "in fail\nKeyError: 'no such thing'\n" in kept.read_text()
    kept.unlink()
    shown = failing("KeyError('x')", tmp_path, PIPELINE_DEBUG="1")
    assert (shown.returncode, "Traceback" in shown.stderr) == (1, True)
    no_defect = failing("ExceptionGroup('g', [MemoryError()])", tmp_path)
    assert (no_defect.returncode, no_defect.stderr.startswith("error: out of memory; ")) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run speccot gsm8k", "run speccot hf://openai/gsm8k:main", "prepare gsm8k --from hub"])
def test_a_hub_that_does_not_answer_is_one_sentence_at_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    done = pipeline(*command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the Hugging Face hub cannot be reached" in done.stderr
