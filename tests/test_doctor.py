"""`pipeline doctor`: what is here, where engines would compute, and which servers answer."""

from pathlib import Path

import pytest

from pipeline.engines.tokenizer import HFTokenizer
from tests.support.commands import pipeline
from tests.support.paths import MODELS
from tests.support.runs import servers_file
from tests.support.small_server import HOSTED, small_server

TINY = "bundled:tiny-draft"


def test_it_says_what_is_here_in_ten_lines() -> None:
    done = pipeline("doctor")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 10
    assert "CPU cores, " in lines[0]
    assert any(line.startswith("installed: python 3.") for line in lines)


def test_of_a_graph_it_says_where_each_engine_would_compute() -> None:
    done = pipeline("doctor", "speccot", "--model", "target=bundled:tiny-target", "--model", f"draft={TINY}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("engines: target bundled:tiny-target (")
    assert [line.split(",")[0] for line in done.stdout.splitlines()[-2:]] == ["target: torch bundled:tiny-target", f"draft: torch {TINY}"]
    assert "target: sim QwQ-32B, simulated" in pipeline("doctor", "speccot", "--engines", "sim-2xh100").stdout


def test_servers_are_asked_and_models_looked_for(tmp_path: Path) -> None:
    tokenizer = HFTokenizer(str(MODELS / "tiny-target"))
    with small_server(HOSTED, tokenizer) as server:
        engines = servers_file(tmp_path, model="tiny", more=", max_model_len: 512", draft=server.base_url, target="http://127.0.0.1:9/v1")
        done = pipeline("doctor", "speccot", "--engines", engines, "--set", "engines.target.reconnect_s=0.1")
    assert done.returncode == 2
    assert f"draft: openai tiny, {server.base_url} answers: prompts as text, a context of 512 tokens" in done.stdout
    assert "target: openai tiny, error: engine 'target': the server at http://127.0.0.1:9/v1 " in done.stdout
    gone = pipeline("doctor", "speccot", "--set", "engines.draft.model=/nowhere")
    assert gone.returncode == 2
    assert "draft: torch /nowhere, error: engine 'draft': no such directory: /nowhere; name a folder" in gone.stdout


@pytest.mark.parametrize("option", [("--model", f"target={TINY}"), ("--engines", "tiny")])
def test_models_and_engines_are_those_of_a_graph(option: tuple[str, str]) -> None:
    done = pipeline("doctor", *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "only with a graph; name it too" in done.stderr
