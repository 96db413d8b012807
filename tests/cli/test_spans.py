"""`pipeline export --as perfetto` and `otlp`: what is printed, and that nothing is overwritten or left half done."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.paths import ROOT
from tests.support.runs import solve

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return solve(tmp_path_factory.mktemp("run"), limit=3).folder


@pytest.mark.parametrize(("kind", "name"), [("perfetto", "trace.pftrace"), ("otlp", "trace.otlp.jsonl.gz")])
def test_an_export_is_in_the_run_folder_and_not_overwritten(run_folder: Path, kind: str, name: str) -> None:
    done = pipeline("export", run_folder, "--as", kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{run_folder / name}: ")
    before = (run_folder / name).read_bytes()
    refused = pipeline("export", run_folder, "--as", kind)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"error: {run_folder / name}: file exists; choose another file with --output, or add --overwrite\n"
    assert pipeline("export", run_folder, "--as", kind, "--overwrite").returncode == 0
    assert (run_folder / name).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--as", "jaeger"), "--as: 'jaeger' is not one of 'answers', 'openai-batch', 'calls', "),
        (("--as", "perfetto", "--texts"), "--texts: only with --as otlp, not --as perfetto"),
        (("--as", "perfetto", "--semconv", "1.41.0"), "--semconv: only with --as otlp, not --as perfetto"),
        (("--as", "otlp", "--semconv", "2"), "--semconv: '2' is not one of 'genai-0.1.0', '1.41.0', '1.36.0'"),
        (
            ("--as", "otlp", "--texts", "--semconv", "1.36.0"),
            "--texts: spans hold no texts by --semconv 1.36.0; leave it out, or choose genai-0.1.0 or 1.41.0",
        ),
        (("--endpoint", "http://x"), "--endpoint: only with --as otlp, not --as answers"),
        (("--as", "otlp", "--format", "csv"), "--format: only with --as answers, calls, steps, chains, rewards, problems, sft, "),
        (("--as", "otlp", "--endpoint", "x"), "--endpoint x: expected an address"),
        (("--as", "otlp", "--endpoint", "http://x", "--output", "y"), "--endpoint and --output: give only one of them"),
        (("--as", "perfetto", "--output", "nowhere/at/all"), "nowhere/at/all: not writable; choose another file with --output"),
    ],
)
def test_wrong_options_are_exit_code_2(run_folder: Path, arguments: tuple[str, ...], expected: str) -> None:
    done = pipeline("export", run_folder, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert expected in done.stderr


def test_a_server_that_is_not_there_is_exit_code_1(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.5")
    endpoint = "http://127.0.0.1:9/v1/traces"
    done = pipeline("export", run_folder, "--as", "otlp", "--endpoint", endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {endpoint}: cannot be reached: connection refused\n")


@pytest.mark.parametrize(("kind", "package"), [("otlp", "opentelemetry")])
def test_without_the_extra_the_error_names_it(run_folder: Path, kind: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from pipeline.cli.main import main; main()"
    command = [sys.executable, "-c", code, "export", str(run_folder), "--as", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    said = f'error: --as {kind} needs the package `{package}`, which is not installed: pip install "speculative-pipeline[trace]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
