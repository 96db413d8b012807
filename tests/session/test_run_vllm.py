"""Whole runs on vLLM's CPU build: the same answers as the torch engine, real problems, speculation, interruption, death."""

import json
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import wait
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from anyio.from_thread import BlockingPortal

from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.summary import summarize
from pipeline.engine import Engine
from pipeline.engines.process.engine import WorkerEngine
from pipeline.session.options import RunOptions
from tests.support.commands import begun
from tests.support.engines import DECODE, NGRAM, PLAIN, EnginesFile
from tests.support.paths import ROOT, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import SolveTestSet, chains_of, solve_on, status

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


def solve(portal: BlockingPortal, engines: Mapping[str, Engine], file: EnginesFile, folder: Path, **options: Any) -> Summary:
    """A finished run of SpecCoT on the test set, on open engines."""
    chosen: dict[str, Any] = {"graph": ROOT / "graphs/speccot.yaml", "input": TEST_SET, "limit": 100, "output": folder} | options
    chosen |= {"engines": file.path, "settings": (*file.settings, *options.get("settings", ()))}
    portal.call(solve_on, engines, RunOptions(**chosen))
    return summarize(folder)


@pytest.fixture(scope="module")
def greedy(portal: BlockingPortal, vllm_engines: Mapping[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 problems without any randomness."""
    folder = tmp_path_factory.mktemp("greedy") / "vllm"
    solve(portal, vllm_engines, PLAIN, folder, settings=("temperature=0",))
    return folder


def test_greedy_answers_are_those_of_the_torch_engine(greedy: Path, greedy_run: Path) -> None:
    torch, vllm = ({row["problem_id"]: row["answer"] for row in chains_of(folder)} for folder in (greedy_run, greedy))
    assert len(torch) == 100
    assert sum(vllm[key] == torch[key] for key in torch) >= 95


def test_the_prefix_cache_and_the_engines_own_words_are_in_the_run(greedy: Path) -> None:
    summary = summarize(greedy)
    for role in ("draft", "target"):
        assert 0 < summary.engines[role].cached_input_tokens < summary.engines[role].input_tokens
        assert summary.engines[role].speculated_tokens is None
    card = json.loads((greedy / "run.json").read_text())
    assert card["engine_facts"]["target"]["dtype"] == "float32"
    assert card["engine_statistics"]["target"]["cached_input_tokens"] == summary.engines["target"].cached_input_tokens
    assert {"vllm", "block_size", "kv_cache_tokens"} <= card["engine_facts"]["draft"].keys()


def test_sampled_answers_are_as_good_as_the_torch_engines(
    tmp_path: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine], solve_test_set: SolveTestSet
) -> None:
    torch = summarize(solve_test_set(tmp_path / "torch").folder)
    vllm = solve(portal, vllm_engines, PLAIN, tmp_path / "vllm")
    assert torch.accuracy is not None
    assert vllm.accuracy == pytest.approx(torch.accuracy, abs=0.06)
    assert vllm.fallback_rate == pytest.approx(torch.fallback_rate, abs=0.06)
    assert vllm.thought_tokens == pytest.approx(torch.thought_tokens, rel=0.1)


@pytest.mark.parametrize(("kind", "file"), [("ngram", NGRAM), ("draft_model", DECODE)], ids=["ngram", "decode"])
def test_speculation_inside_the_target_is_in_the_summary(
    tmp_path: Path,
    portal: BlockingPortal,
    vllm_engines: Mapping[str, Engine],
    speculating: Mapping[str, Engine],
    kind: str,
    file: EnginesFile,
) -> None:
    engines = {"draft": vllm_engines["draft"], "target": speculating[kind]}
    summary = solve(portal, engines, file, tmp_path / "out")
    target = summary.engines["target"]
    assert target.speculated_tokens is not None
    assert target.accepted_speculated_tokens is not None
    assert 0 < target.accepted_speculated_tokens < target.speculated_tokens
    assert summary.engines["draft"].speculated_tokens is None
    assert summary.accuracy is not None
    assert summary.accuracy > 0.9


def test_real_problems_flow_through(tmp_path: Path, shared: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine]) -> None:
    summary = solve(
        portal,
        vllm_engines,
        PLAIN,
        tmp_path / "out",
        limit=20,
        input=shared / "data/gsm8k.jsonl",
        columns={"problem": "question"},
        settings=("max_steps=8", "step_tokens=64", "answer_tokens=64"),
    )
    assert summary.done == 20
    assert all(row["error_type"] is None for row in chains_of(tmp_path / "out"))


def test_engine_processes_killed_and_stopped_in_mid_run_are_restarted(
    tmp_path: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine]
) -> None:
    """One of the two is killed; the other one's front end goes on listening and only what computes stands still.

    Both are as good as new afterwards, for whoever uses them next.
    """
    limits = tuple(f"engines.{role}.hang_s=12" for role in ("draft", "target"))
    given = {"graph": ROOT / "graphs/speccot.yaml", "input": TEST_SET, "limit": 60, "engines": PLAIN.path, "output": tmp_path / "out"}
    before = {role: descendants(engine) for role, engine in vllm_engines.items()}
    cores = {role: next(p for p in before[role] if "EngineCore" in command_line(p)) for role in before}
    solved = portal.start_task_soon(solve_on, vllm_engines, RunOptions(**given, settings=(*PLAIN.settings, *limits)))
    while not all(engine.statistics().running for engine in vllm_engines.values()) and not solved.done():
        wait([solved], timeout=0.05)
    cores["draft"].kill()
    cores["target"].send_signal(signal.SIGSTOP)
    solved.result(timeout=HANGS_S)
    assert len({row["problem_id"] for row in chains_of(tmp_path / "out")}) == 60
    found = summarize(tmp_path / "out").engines
    assert (found["draft"].restarts, found["target"].restarts) == (1, 1)
    lost = [row for row in pq.read_table(tmp_path / "out/calls").to_pylist() if row["error_type"]]
    assert {(row["engine"], row["error_type"]) for row in lost} == {("draft", "EngineDead"), ("target", "EngineDead")}
    assert {row["engine"] for row in lost if "it computed nothing for" in row["error_message"]} == {"target"}
    assert alive([process for processes in before.values() for process in processes], 20) == []


def descendants(engine: Engine) -> list[psutil.Process]:
    assert isinstance(engine, WorkerEngine)
    return [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]


def alive(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Which of `processes` are still there after so many seconds."""
    return [p for p in psutil.wait_procs(processes, timeout=timeout_s)[1] if p.status() != psutil.STATUS_ZOMBIE]


def under_test(mark: str) -> list[psutil.Process]:
    """The processes that inherited `mark`, whoever their parent is by now."""
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("RUN_UNDER_TEST") == mark]


def loading(process: subprocess.Popen[str]) -> bool:
    """Whether vLLM's front end has started the process that computes."""
    return any("EngineCore" in command_line(p) for p in psutil.Process(process.pid).children(recursive=True))


def command_line(process: psutil.Process) -> str:
    """Empty for one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


ONE = 'target: {backend: vllm, model: "bundled:tiny-target", dtype: float32, max_model_len: 2048, max_num_seqs: 16, kv_cache_gib: 0.25}'


def test_a_program_that_is_interrupted_or_killed_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL while vLLM loads, Ctrl-C and SIGKILL of the resumed run; by the target alone, to start vLLM less often."""
    monkeypatch.setenv("RUN_UNDER_TEST", str(tmp_path))
    out, engines, mark = tmp_path / "out", tmp_path / "engines.yaml", str(tmp_path)
    engines.write_text(ONE)
    arguments = ("run", "graphs/target.yaml", "--input", TEST_SET, "--output", out, "--limit", "80", "--engines", engines)
    with begun(*arguments, chains=None) as process:
        while not loading(process) and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.kill()
        assert alive(under_test(mark), 5) == []
    with begun("resume", out, chains=80) as process:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert status(out) == "interrupted"
    assert alive(under_test(mark), 20) == []
    with begun("resume", out, chains=80) as process:
        process.kill()
        assert alive(under_test(mark), 5) == []
