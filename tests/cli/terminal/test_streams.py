"""A command ends with its own exit code, whatever its standard streams are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.terminal.streams import visible
from tests.support.paths import ROOT, SIM

PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Python without UTF-8: files and streams are ASCII unless it is told otherwise."""


def shell(words: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Carry out `words` in bash, where `p` is the command; `$1` and so on are `arguments`."""
    start = 'p() { "$PYTHON" -c "from pipeline.cli.main import main; main()" "$@"; }; set -o pipefail; '
    environment = os.environ | {"PYTHON": sys.executable} | variables
    return subprocess.run(
        ["bash", "-c", start + words, "bash", *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def options(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "problems.csv").write_text("problem,answer\n1 + 1?,2\n")
    return ["--engines", SIM, "--input", tmp_path / "problems.csv", "--output", tmp_path / "é→😀"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "streams", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "--json >/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full", "| true"]
)
def test_a_finished_run_is_exit_code_0_if_its_summary_is_not_lost(options: list[str | Path], streams: str) -> None:
    done = shell(f'p run speccot "$@" {streams}', *options)
    assert (done.returncode, "Traceback" in done.stderr) == (int(streams.startswith((">/dev/full", "--json"))), False), done.stderr
    assert json.loads((Path(options[-1]) / "run.json").read_text())["status"] == "finished"
    if streams in (">/dev/full", "--json >/dev/full"):
        assert "error: the summary could not be printed: no space left on device" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">/dev/full 2>/dev/full", "| true"])
def test_a_run_with_failed_chains_is_exit_code_3(options: list[str | Path], streams: str) -> None:
    assert shell(f'p run speccot "$@" --set engines.target.max_model_len=16 {streams}', *options).returncode == 3


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "code"), [(">&-", 0), ("2>&-", 0), ("| true", 0), (">/dev/full", 1), (">/dev/full 2>/dev/full", 1)])
def test_output_that_is_lost_for_lack_of_room_is_exit_code_1(streams: str, code: int) -> None:
    """A reader that has gone, or never was, wanted no more; a full disk loses what somebody wants."""
    done = shell(f"p graph check speccot --json {streams}")
    assert done.returncode == code
    assert done.stderr == ("error: output: no space left on device\n" if streams == ">/dev/full" else "")


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_stream_cannot_encode_is_escaped_as_in_json(options: list[str | Path], as_json: bool) -> None:
    done = shell('p run speccot "$@"', *options, *(["--json"] if as_json else []), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\u00e9\\u2192\\ud83d\\ude00" in done.stdout
    assert "\\u00e9\\u2192\\ud83d\\ude00" in done.stderr
    if as_json:
        assert json.loads(done.stdout)["run"] == "é→😀"


@pytest.mark.slow
def test_files_are_written_and_read_as_utf8_whatever_the_locale(options: list[str | Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert shell('p run speccot "$@"', *options[:-1], out, **PLAIN).returncode == 0
    commands = (
        "report $1",
        "compare $1 --output $2/t.md",
        "calibrate $1 --max-calls 20",
        "graph show speccot --run $1 --output $2/g.mmd",
        "show $1 --failed",
    )
    done = shell(" && ".join(f"p {each}" for each in commands), out, tmp_path, **PLAIN)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").stat().st_size > 1e6
    assert "±" in (out / "report.html").read_text(encoding="utf-8") or "·" in (out / "report.html").read_text(encoding="utf-8")


def test_units_of_utf16_are_escaped_one_by_one() -> None:
    assert visible(UnicodeEncodeError("ascii", "aé😀\udcff", 1, 4, "not in range")) == ("\\u00e9\\ud83d\\ude00\\udcff", 4)
