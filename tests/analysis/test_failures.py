"""Failed chains by cause: what is alike but for its numbers is one group."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from pipeline.analysis.quality.failures import failures
from pipeline.cli.main import cli
from pipeline.errors import InputError
from pipeline.session.options import RunOptions
from pipeline.session.run import run

ROOT = Path(__file__).parent.parent.parent


def test_failed_chains_are_grouped_by_error_stage_and_message(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_bytes(b'{"problem": "fine?"}\n{"problem": ""}\n{"problem": 7}\n{"problem": " "}\n')
    graph, engines = ROOT / "graphs/speccot.yaml", ROOT / "graphs/engines/sim-2xh100.yaml"
    folder = run(RunOptions(graph=graph, engines=engines, input=problems, output=tmp_path / "run", samples=2)).folder
    first, second = failures(folder)
    assert (first.error_type, first.stage, first.count) == ("BadRow", None, 4)
    assert first.message.endswith(": `problem` is empty")
    assert set(first.examples) == {"(row 2)#0", "(row 2)#1", "(row 4)#0", "(row 4)#1"}
    assert second.count == 2
    told = CliRunner().invoke(cli, ["show", str(folder), "--failed"], catch_exceptions=False).output
    assert told.startswith("4 x BadRow (while reading input): ")
    assert len(msgspec.json.decode(CliRunner().invoke(cli, ["show", "--json", "--failed", str(folder)]).output)) == 2


def test_no_run_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        failures(tmp_path)
