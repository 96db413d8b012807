"""What all commands have in common: groups and headings in help, environment variables, short options, errors in one style."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipeline.cli.commands import Commands, Option
from pipeline.cli.main import COMMANDS, cli
from pipeline.errors import MAX_NAMES, did_you_mean
from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.paths import SIM
from tests.support.runs import write_problems

SHORT = {"--output": "-o", "--input": "-i", "--limit": "-n", "--set": "-s", "--quiet": "-q", "--verbose": "-v"}
HEADINGS = ["Input", "Models", "Prompting", "Scheduling", "Output", "Resume", "Replicas", "Display"]


def inner(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """All commands that are no groups, with their words."""
    if not isinstance(command, Commands):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from inner(found, f"{path} {name}".strip())


def test_the_root_help_has_every_command_in_its_group() -> None:
    lines = pipeline("--help").stdout.splitlines()
    for heading, entries in COMMANDS.items():
        start = lines.index(f"{heading}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(entries)]] == list(entries)
    assert any("pipeline run speccot" in line for line in lines)


@pytest.mark.slow
def test_short_options_are_the_same_everywhere() -> None:
    for path, command in inner(cli, ""):
        for param in command.params:
            if isinstance(param, Option):
                assert SHORT.get(param.long_name, param.opts[0]) in param.opts, f"{path} {param.long_name}"


def test_the_options_of_run_are_under_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    lines = pipeline("run", "--help").stdout.splitlines()
    assert [line[:-1] for line in lines if line[:-1] in HEADINGS] == HEADINGS
    assert 100 < max(map(len, lines)) <= 118, "help is as wide as the terminal"
    assert "x<=" not in "".join(lines)


@pytest.mark.slow
def test_options_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH_SIZE": "3", "LIMIT": "2", "QUIET": "1"}.items():
        monkeypatch.setenv(f"PIPELINE_RUN_{name}", value)
    words = ("run", "speccot", "--engines", SIM, "-i", write_problems(tmp_path, 4), "-o", tmp_path / "run")
    done = pipeline(*words, "--batch-size", "5")
    assert (done.returncode, done.stderr) == (0, "")
    run = RunFile.read(tmp_path / "run")
    assert (run.options.batch_size, run.input.rows) == (5, 2)


@pytest.mark.slow
def test_resume_changes_what_its_options_name(tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = pipeline("run", "speccot", "--engines", SIM, "-i", write_problems(tmp_path, 4), "-n", "2", "-o", run)
    assert started.returncode == 0, started.stderr
    resumed = pipeline("resume", run, "-n", "3", "--batch-size", "2", "--schedule", "sequential", "--engines", "sim-1xh200")
    assert resumed.returncode == 0, resumed.stderr
    found = RunFile.read(run)
    assert (found.totals.chains_done, found.options.batch_size, found.options.schedule) == (3, 2, "sequential")
    refused = pipeline("resume", run, "-n", "4", "--engines", "tiny")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "engines.draft.model is bundled:tiny-draft" in refused.stderr


def test_a_list_of_names_is_short_and_begins_with_the_nearest() -> None:
    known = [f"arith-test-{number:03}" for number in range(500)]
    said = did_you_mean("arith-train", known)
    assert said.startswith("500 known, such as `arith-t")
    assert said.count("`") == 2 * MAX_NAMES
    assert did_you_mean("x", known[:MAX_NAMES]).startswith("known are ")
    assert did_you_mean("x", []) == "none are known here"
