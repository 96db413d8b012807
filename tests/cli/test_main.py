"""The command line as a whole: help, the environment, exit codes, errors that nobody foresaw; and what is bundled: lists, data, plans."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest

from pipeline.cli.bundled import KINDS
from pipeline.cli.main import COMMANDS, cli
from pipeline.errors import MAX_NAMES, did_you_mean
from pipeline.graph.files import bundled_files
from pipeline.store.run_file import RunFile
from tests.support.commands import COMMAND, pipeline, spawned
from tests.support.paths import ROOT, SIM
from tests.support.patience import HANGS_S
from tests.support.runs import write_problems

SHORT = {"--output": "-o", "--input": "-i", "--limit": "-n", "--set": "-s", "--quiet": "-q", "--verbose": "-v"}
HEADINGS = ["Input", "Models", "Prompting", "Scheduling", "Output", "Resume", "Replicas", "Display"]
FAIL = "import pipeline.graph.files as b\ndef fail(*kinds):\n    raise {}\nb.bundled_files = fail\n"
RUN = ("run", "speccot")
SPECCOT = "graphs/speccot.yaml"


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


def test_help_has_commands_in_groups_and_options_under_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pipeline("--help").stdout.splitlines()
    for heading, entries in COMMANDS.items():
        start = lines.index(f"{heading}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(entries)]] == list(entries)
    assert pipeline().stderr.splitlines() == lines
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
def test_a_process_ends_with_the_exit_code_of_its_command_and_help_loads_no_heavy_package() -> None:
    done = spawned("graph", "check", "tests/graphs/cycle.yaml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    module = [sys.executable, "-X", "importtime", "-m", "pipeline.cli.main", "train", "select", "--help"]
    helped = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
    assert (helped.returncode, "Usage: " in helped.stdout) == (0, True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in helped.stderr.splitlines()}
    assert "click" in loaded
    assert loaded.isdisjoint(("torch", "transformers", "trl", "peft", "accelerate", "datasets"))


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


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_everything_bundled_is_listed_with_what_it_is(kind: str | None) -> None:
    words = [] if kind is None else [kind]
    found = json.loads(pipeline("list", *words, "--json").stdout)
    assert all(row["name"] and row["about"] for row in found)
    printed = pipeline("list", *words).stdout
    assert all(row["name"] in printed for row in found)
    assert "None" not in printed
    names = [row["name"] for row in found]
    form = None if kind is None else KINDS[kind][1]
    assert sorted(names) == sorted(KINDS if kind is None else names if form is None else bundled_files(form))
    if kind == "graphs":
        assert names[:4] == ["speccot", "specreason", "scot", "target"]


def test_a_data_set_is_prepared_in_the_folder_data(tmp_path: Path) -> None:
    done = pipeline("prepare", "arith", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/arith.parquet: 500 problems, digest ")
    assert pq.read_metadata(tmp_path / "data/arith.parquet").num_rows == 500
    (tmp_path / "one.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n')
    other = pipeline("prepare", "gsm8k", "--from", "one.jsonl", "-o", "here.parquet", cwd=tmp_path)
    assert (other.returncode, other.stdout.startswith("here.parquet: 1 problems, digest ")) == (0, True)
    assert other.stderr.startswith("warning: one.jsonl: 1 rows with the digest ")


def test_a_plan_as_text_as_json_and_as_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = pipeline("graph", "check", SPECCOT)
    assert done.stdout.startswith(f"{SPECCOT}: OK\nspeccot, digest ")
    assert "↻ reason: repeat" in done.stdout
    assert json.loads(pipeline("graph", "check", SPECCOT, "--json").stdout)["graph"]["name"] == "speccot"
    assert "\n● answer: answer" in pipeline("graph", "show", SPECCOT).stdout
    assert pipeline("graph", "show", SPECCOT, "--format", "mermaid").stdout.startswith("flowchart TD\n")
    chosen = pipeline("graph", "check", "speccot", "--model", "target=bundled:tiny-target", "--model", "draft=bundled:tiny-draft")
    assert chosen.stderr.startswith("engines: target bundled:tiny-target (")
    assert chosen.stderr.splitlines()[0].endswith("; prompts: default")
    assert "● target  torch" in chosen.stdout


def test_a_preset_may_set_what_the_graph_has_in_part(tmp_path: Path) -> None:
    preset = tmp_path / "tuned.yaml"
    for graph, values in (
        ("specreason", "statistic: min, sure: -0.7, threshold: 5"),
        ("target", "temperature: 0.5, threshold: 5"),
        ("specreason", "stages.fallback.temperature: 0.5"),
    ):
        preset.write_text(f"set: {{{values}}}\n")
        done = pipeline("graph", "check", graph, "--preset", preset)
        assert (done.returncode, done.stderr) == (0, "")
