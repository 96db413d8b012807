"""`pipeline trace export`: what is said, and that nothing is written over or left half done."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.paths import ROOT
from tests.support.runs import solve


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return solve(tmp_path_factory.mktemp("run"), limit=3).folder


@pytest.mark.parametrize(("form", "name"), [("perfetto", "trace.pftrace"), ("otel", "trace.otlp.jsonl.gz")])
def test_an_export_is_in_the_run_folder_and_not_written_over(run_folder: Path, form: str, name: str) -> None:
    done = pipeline("trace", "export", run_folder, "--format", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{run_folder / name}: ")
    before = (run_folder / name).read_bytes()
    refused = pipeline("trace", "export", run_folder, "--format", form)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"error: {run_folder / name}: file exists; choose another file with --output, or pass --force\n"
    assert pipeline("trace", "export", run_folder, "--format", form, "--force").returncode == 0
    assert (run_folder / name).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("tests",), "tests/run.json: cannot be read: no such file or directory; expected a run folder"),
        (("tests", "--format", "jaeger"), "'jaeger' is not one of 'perfetto', 'otel'"),
        (("tests", "--texts"), "--texts has no effect with --format perfetto; add --format otel"),
        (("tests", "--endpoint", "http://x"), "--endpoint has no effect with --format perfetto; add --format otel"),
        (("tests", "--format", "otel", "--endpoint", "x"), "--endpoint x: expected an address"),
        (("tests", "--format", "otel", "--endpoint", "http://x", "--output", "y"), "--output has no effect with --endpoint"),
        (("tests", "--output", "nowhere/at/all"), "nowhere/at/all: not writable; choose another file with --output"),
    ],
)
def test_wrong_options_are_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    done = pipeline("trace", "export", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_a_server_that_is_not_there_is_exit_code_1(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.5")
    endpoint = "http://127.0.0.1:9/v1/traces"
    done = pipeline("trace", "export", run_folder, "--format", "otel", "--endpoint", endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {endpoint}: cannot be reached: connection refused\n")


@pytest.mark.slow
@pytest.mark.parametrize(("form", "package"), [("perfetto", "perfetto"), ("otel", "opentelemetry")])
def test_without_the_extra_the_error_names_it(run_folder: Path, form: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from pipeline.cli.main import main; main()"
    command = [sys.executable, "-c", code, "trace", "export", str(run_folder), "--format", form]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    said = f'error: --format {form} needs the package `{package}`, which is not installed: pip install "speculative-pipeline[trace]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
