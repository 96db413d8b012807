"""Whole runs on vLLM's own server over loopback, which is killed and started again."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.summary import summarize
from tests.support.commands import running
from tests.support.paths import MODELS
from tests.support.patience import HANGS_S
from tests.support.runs import calls_of, chains_of, servers_file, solve_with
from tests.support.servers import Running, vllm_server

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


def half_served(folder: Path, server: Running) -> Path:
    """An engines file with the draft on vLLM's server and the target on torch, which starts sooner than a second server."""
    path = servers_file(folder, draft=server.base_url)
    path.write_text(f"{path.read_text()}target: {{backend: torch, model: 'bundled:tiny-target', core: 1}}\n")
    return path


@pytest.fixture(scope="module")
def greedy(served_draft: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 problems without any randomness."""
    folder = tmp_path_factory.mktemp("servers")
    result = solve_with(half_served(folder, served_draft), folder / "servers", settings=("temperature=0",))
    assert result.exit_code == 0
    return result.folder


def test_greedy_answers_are_those_of_the_torch_engine(greedy: Path, greedy_run: Path) -> None:
    torch, served = ({row["problem_id"]: row["answer"] for row in chains_of(folder)} for folder in (greedy_run, greedy))
    assert len(torch) == 100
    assert sum(served[key] == torch[key] for key in torch) >= 95


def test_hits_of_the_servers_prefix_cache_are_in_the_run(greedy: Path) -> None:
    found: Summary = summarize(greedy)
    assert 0 < found.engines["draft"].cached_input_tokens < found.engines["draft"].input_tokens


def test_a_server_that_is_killed_and_started_again_costs_its_calls_one_attempt(served_draft: Running, tmp_path: Path) -> None:
    """The last to use that server."""
    port = int(served_draft.base_url.rpartition(":")[2].partition("/")[0])
    engines = servers_file(tmp_path, model="draft", target=served_draft.base_url)
    with running(tmp_path / "out", "--engines", str(engines), "--limit", "120", chains=120, graph="target") as process:
        os.killpg(served_draft.process.pid, signal.SIGKILL)
        served_draft.process.wait()
        with vllm_server(MODELS / "tiny-draft", "draft", port=port):
            _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, error
    chains = chains_of(tmp_path / "out")
    assert len({row["chain_id"] for row in chains}) == len(chains) == 120
    assert {row["error_type"] for row in chains} == {None}
    broken = [row for row in calls_of(tmp_path / "out") if row["error_type"]]
    assert {(row["engine"], row["error_type"], row["attempt"]) for row in broken} == {("target", "EngineUnavailable", 0)}
    assert sum(row["attempt"] > 0 for row in calls_of(tmp_path / "out")) == len(broken)
