"""Whole commands over input, models, servers and working folders that mean harm: what is printed, what is kept and what is imported."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.console import PlainConsole
from pipeline.cli.grade import watched
from pipeline.engines.tokenizer import HFTokenizer
from tests.support import small_server
from tests.support.commands import command
from tests.support.paths import ROOT, SIM
from tests.support.patience import HANGS_S

pytestmark = pytest.mark.slow  # whole runs

TARGET = ROOT / "graphs/target.yaml"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold red]x[/]:smile:\r\n"
CANARY = "sk-canary/7f3a9c"
AS_INSTALLED = [sys.executable, "-P", "-c", "from pipeline.cli.main import main; main()"]
"""What the console script does: its `sys.path` does not begin with the working folder either."""
NAMES = ("json", "random", "sympy", "math_verify", "torch", "tokenizers", "transformers", "numpy", "msgspec", "pipeline", "vllm")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose problems, ids, references and folder are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [{"problem": f"{ESCAPES} 1 + {i}?", "problem_id": f"=cmd()|{ESCAPES}{i}", "answer": f"{ESCAPES}{i}"} for i in range(3)]
    rows.append({"problem": "x", "problem_id": "y", "grader": ESCAPES})
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = folder / "=1 \x1b[31m<script>![bold](javascript:x)"
    done = command("run", TARGET, "--engines", SIM, "--input", folder / "p.jsonl", "--output", out)
    assert done.returncode == 3, done.stderr
    assert "1 of 4 chains: 1 BadRow; for example: " in done.stdout
    assert done.stdout.count("\n") == len(done.stdout.splitlines()) < 20
    assert "owned" in done.stdout, "the error is shown, and obeyed by nothing"
    assert "/=1 \\u001b[31m<script>![bold](javascript:x)\n" in done.stdout
    return out


def test_comparing_prints_names_of_folders_as_text(hostile: Path, tmp_path: Path) -> None:
    said = [command("compare", hostile, "--output", tmp_path / f"table.{form}").stdout for form in ("md", "csv", "json")]
    written = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert next(iter(csv.DictReader(written[0].splitlines())))["run"].startswith("=1 ")
    assert "\x1b" not in "".join(said + written)


def test_tables_and_progress_show_every_string_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert PlainConsole().render_str("[bold]x[/] :smile: \x1b[2J").plain == "[bold]x[/] :smile: \\u001b[2J"
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a stream for a terminal
    with watched("[bold]\x1b[2Jx") as update:
        update(1, 2)
    assert "[bold]\\u001b[2Jx: steps" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "said"), [("", 0), (", trust_remote_code: true", 1)])
def test_remote_code_is_off_and_announced_where_it_is_on(tmp_path: Path, more: str, said: int) -> None:
    (tmp_path / "engines.yaml").write_text(f"target: {{backend: torch, model: /nowhere/x{more}}}\n")
    for arguments in (("graph", "check", TARGET), ("run", TARGET, "arith")):
        done = command(*arguments, "--engines", tmp_path / "engines.yaml")
        assert done.stderr.count("engine 'target': trust_remote_code is on, so code that comes with '/nowhere/x' will run") == said


def test_no_key_is_in_anything_that_is_kept_or_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server repeats the key in every error."""
    monkeypatch.setenv("LOGIN", CANARY)
    (tmp_path / "p.csv").write_text("problem\n" + "1 + 1?\n" * 4)
    with small_server.small_server(small_server.VLLM, HFTokenizer(str(ROOT / "pipeline/models/tiny-target")), key=CANARY) as server:
        engine = f"{{backend: openai, model: tiny, base_url: {server.base_url}, tokenizer: 'bundled:tiny-target', api_key_env: LOGIN}}"
        (tmp_path / "engines.yaml").write_text(f"target: {engine}\n")
        answered = [lambda handler, reply: handler.send(reply)]
        server.faults.extend(answered * 2)  # while it is asked what it can do
        for fault in (small_server.status(400, f"no {CANARY}"), small_server.status(422, f"no {CANARY}")):
            server.faults.extend([fault, *answered])  # the answer is that of a probe: it is the request that is refused
        server.faults.append(small_server.status(500, f"no {CANARY}"))
        options = ("--input", tmp_path / "p.csv", "--output", tmp_path / "run", "--set", "engines.target.max_retries=0")
        done = command("run", TARGET, "--engines", tmp_path / "engines.yaml", "--batch-size", "1", *options)
    assert done.returncode == 3, done.stderr
    messages = [row["error_message"] for row in pq.read_table(tmp_path / "run/chains").to_pylist() if row["error_message"]]
    assert sum("no ***" in message for message in messages) == len(messages) == 3
    tables = [repr(pq.read_table(path).to_pylist()) for path in (tmp_path / "run").rglob("*.parquet")]
    said = [done.stdout, done.stderr, (tmp_path / "run/run.json").read_text(), *tables]
    assert not [text for text in said if "canary" in text]


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A working folder with a module or a package of every one of `NAMES` that leaves a mark when it is imported."""
    folder = tmp_path / "work"
    trap = f"import pathlib\npathlib.Path({str(tmp_path)!r}, 'mark-' + __name__).touch()\nraise ImportError('foreign code')\n"
    for number, name in enumerate(NAMES):
        place = folder / f"{name}.py" if number % 2 else folder / name / "__init__.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(trap)
    (folder / "problems.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "\\sqrt{x}"}) + "\n")
    return folder


@pytest.mark.parametrize("engines", [SIM, pytest.param("tiny", marks=pytest.mark.torch)])
def test_a_run_its_grader_and_its_engines_import_nothing_from_there(trapped: Path, engines: str | Path) -> None:
    words = ["run", ROOT / "graphs/speccot.yaml", "--engines", engines, "--input", "problems.jsonl", "--output", "out"]
    words += ["--set", "engines.target.max_num_seqs=2"] if engines == "tiny" else []
    done = subprocess.run([*AS_INSTALLED, *map(str, words)], cwd=trapped, capture_output=True, text=True, timeout=HANGS_S)
    assert (done.returncode, [*trapped.parent.glob("mark-*")]) == (0, []), done.stderr
    [row] = pq.read_table(trapped / "out/chains").to_pylist()
    assert row["grading_error"] is None, "a worker compared the answers"
