"""Replicas on this machine and shards that are merged: the one run that leaves says what one process says, whatever dies in between."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from msgspec import structs

from pipeline.cluster.merge import in_order
from pipeline.cluster.replicas import Fleet, Poll, divided, worker_process
from pipeline.errors import ReplicaLost, RunFolderError, UsageError
from pipeline.options import Shard
from pipeline.run.loop import Stop
from pipeline.run.prepare import Prepared, load_plan, resume_options
from pipeline.run.run import Observer, SessionResult, run
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, read_rows
from pipeline.system.machine import GIB, Gpu, Machine, core_count, look
from tests.cluster.conftest import CHAINS, check_whole, in_real_time, waiting, when
from tests.support.commands import begun, pipeline, spawned
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import TEST_SET
from tests.support.patience import HANGS_S
from tests.support.replicas import options_of
from tests.support.runs import rows, said, solve_short, write_problems

pytestmark = pytest.mark.slow  # whole runs, and processes


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The workers of shards that a process has started."""
    return sorted((each for each in process.children() if "pipeline.cluster.replicas" in each.cmdline()), key=lambda each: each.pid)


class TestSimulated:
    def test_merged_shards_are_the_run_of_one_process(self, tmp_path: Path) -> None:
        problems = write_problems(tmp_path, 12)
        calm = run(options_of(tmp_path, "calm", problems, samples=2))
        result = run(options_of(tmp_path, "run", problems, samples=2, replicas=3))
        assert result.folder is not None
        assert said(result) == said(calm)
        check_hangs_together(result.folder, 24)
        assert structs.replace(result.run.totals, pauses=None) == structs.replace(calm.run.totals, pauses=None)
        assert {(row["problem_id"], row["replica"]) for row in rows(result, "chains")} == {
            (f"p{i}", k) for i in range(12) for k in range(3) if Shard(k, 3).holds(f"p{i}")
        }
        assert [row["input_row"] for row in rows(result, "problems.parquet")] == list(range(1, 13))
        assert not (result.folder / "shards").exists()
        starts = [min(row["start_unix_ns"] for row in rows(result, "chains") if row["replica"] == k) for k in range(3)]
        assert max(starts) - min(starts) < 1e6, "all replicas begin at the same simulated moment"
        assert (result.run.status, len(result.run.sessions), result.run.input.chains) == ("finished", 1, 24)

    def test_a_shard_of_shards_and_one_without_a_problem(self, tmp_path: Path) -> None:
        problems = write_problems(tmp_path, 9)
        result = run(options_of(tmp_path, "run", problems, shard="1/2", replicas=4))
        calm = run(options_of(tmp_path, "calm", problems, shard="1/2"))
        assert said(result) == said(calm)
        assert len(said(calm)) < 9

    def test_a_merge_that_was_cut_short_is_done_again_and_goes_on_in_one_process(self, tmp_path: Path) -> None:
        options = options_of(tmp_path, "run", write_problems(tmp_path, 12), replicas=2, limit=8)
        obstacle = tmp_path / "run/steps"

        with pytest.raises(RunFolderError, match="steps"):
            run(options, Observer(ready=lambda ready: obstacle.touch()))
        obstacle.unlink()
        some = RunStore(tmp_path / "run", {"chains": ChainRow})
        some.append("chains", read_rows(tmp_path / "run", ChainRow, "chains")[:3])
        some.close()
        result = run(resume_options(tmp_path / "run"))
        assert result.exit_code == 0
        check_hangs_together(tmp_path / "run", 8)
        assert run(resume_options(tmp_path / "run")).nothing_to_do
        done = pipeline("resume", tmp_path / "run", "--limit", "12", "--replicas", "2")
        assert (done.returncode, "in one process, as its shards are merged" in done.stderr) == (0, True)
        check_hangs_together(tmp_path / "run", 12)


class TestProcesses:
    """Processes whose engines wait in real time in place of computing."""

    @pytest.fixture(autouse=True)
    def _no_process_is_left_behind(self) -> Iterator[None]:
        yield
        assert workers_of(psutil.Process()) == []

    def test_a_worker_that_is_killed_resumes_its_shard(self, folder: Path, alone: SessionResult) -> None:
        """It sees the GPUs of its place alone, and `show` and `view` read its rows meanwhile."""
        told, seen, place = list[str](), list[Any](), folder / "struck"
        shares = [structs.replace(look(), gpus=(Gpu(index=0, cuda_name=name, name="H100"),)) for name in ("3", "4")]

        def strike() -> None:
            with Query(place) as query:
                seen.extend(query.scalar(f"SELECT count(*) FROM {rows}") for rows in ("chains", "calls WHERE replica IS NULL"))
            worker = workers_of(psutil.Process())[0]
            seen.extend(worker.environ()[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))
            worker.kill()

        on_shares = partial(_solve_by, partial(worker_process, shares), 2)
        with when(place, 16, strike):
            check_whole(in_real_time(waiting(folder, "struck", replicas=2), Observer(tell=told.append), on_shares), alone)
        assert "50 % of 40 chains are over" in told
        assert [sentence for sentence in told if "lost, starting it again: its process ended: killed by SIGKILL" in sentence]
        assert 0 < seen[0] < CHAINS
        assert seen[1:] == [0, "3", "PCI_BUS_ID"]

    def test_three_deaths_in_a_row_end_the_run_and_resume_goes_on(self, folder: Path, alone: SessionResult) -> None:
        told: list[str] = []
        start = partial(worker_process, [look()] * 2)

        def launch(shard: Prepared, place: int) -> AbstractAsyncContextManager[Poll]:
            if shard.options.shard == "1/2":
                raise ReplicaLost("there is no room for it")
            return start(shard, place)

        on_two = partial(_solve_by, launch, 2)
        failed = in_real_time(waiting(folder, "failed", replicas=2), Observer(tell=told.append), on_two)
        assert (failed.exit_code, failed.run.status) == (1, "failed")
        assert str(failed.error) == "replica 1 died 3 times in a row: there is no room for it"
        assert 0 < failed.done < CHAINS, "the other shard came to its end"
        check_whole(in_real_time(resume_options(folder / "failed")), alone)

    def test_a_run_that_was_stopped_goes_on_with_another_number_of_replicas(self, folder: Path, alone: SessionResult) -> None:
        over = threading.Event()

        async def attend(stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
            task_status.started()
            while not over.is_set():  # noqa: ASYNC110  (set by another thread)
                await anyio.sleep(0.02)
            assert not stop.drain(), "it stops at once"
            stop.abort()

        with when(folder / "stopped", 4, over.set):
            stopped = in_real_time(waiting(folder, "stopped", replicas=2), attend=attend)
        assert (stopped.exit_code, stopped.run.status) == (130, "interrupted")
        assert 4 <= stopped.done < CHAINS
        check_whole(in_real_time(structs.replace(resume_options(folder / "stopped"), replicas=1)), alone)

    def test_a_model_that_is_not_there_is_one_sentence(self, folder: Path, alone: SessionResult) -> None:
        engines = folder / "missing.yaml"
        engines.write_text("target: {backend: torch, device: cpu, model: /nowhere/target}\n")
        options = structs.replace(waiting(folder, "missing", replicas=core_count()), engines=engines, graph=Path("target"))
        with pytest.raises(UsageError, match="/nowhere/target"):
            in_real_time(options)
        assert not (folder / "missing").exists()


def test_devices_are_divided() -> None:
    gpus = tuple(Gpu(index=n, cuda_name=str(n), name="H100") for n in range(5))
    machine = Machine(cores=(0, 1, 2), memory_bytes=GIB, free_memory_bytes=GIB, gpus=gpus)
    pair = load_plan(Path("speccot"), Path("qwq-r1_1.5b-2x80gb")).engines
    assert [share.gpus for share in divided(pair, machine, 2)] == [gpus[:2], gpus[2:4]]
    assert [share.cores for share in divided(pair, structs.replace(machine, gpus=()), 2)] == [(0,), (1, 2)]
    with pytest.raises(UsageError, match=r"^--replicas 3: each replica needs 2 GPUs, but this machine has 5; use at most 2, or"):
        divided(pair, machine, 3)


async def _solve_by(launch: Any, places: int, ready: Any, observer: Observer, stop: Stop) -> SessionResult:
    return await Fleet(launch, ready, observer).run(places, stop)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(core_count() < 2, reason="needs two cores")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_no_process_outlives_a_driver_and_the_run_is_resumed(tmp_path: Path, number: int, code: int) -> None:
    """On the bundled pair."""
    words = ("--engines", "tiny", "--set", "engines.*.device=cpu", "--replicas", "2", "--batch-size", "4")
    with begun("run", "speccot", "--input", TEST_SET, "--limit", "40", "--output", tmp_path / "run", *words) as process:
        while not any(each.stat().st_size > 2048 for each in tmp_path.glob("run/shards/*/chains/wal-*")):
            threading.Event().wait(0.05)
        driver = psutil.Process(process.pid)
        first, other = (set(each.cpu_affinity()) for each in workers_of(driver))
        assert not first & other, "each replica has its own cores"
        everything = driver.children(recursive=True)
        process.send_signal(number)
        _, error = process.communicate(timeout=HANGS_S)
        assert process.returncode == code, error
        assert psutil.wait_procs(everything, timeout=HANGS_S)[1] == []
    done = spawned("resume", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    check_hangs_together(tmp_path / "run", 40)
    assert RunFile.read(tmp_path / "run").status == "finished"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """The same problems solved whole, and in three shards."""
    folder = tmp_path_factory.mktemp("shards")
    given: dict[str, Any] = {"input": write_problems(folder, 24), "seed": 7, "samples": 2}
    return {shard: solve_short(folder, str(place), shard=shard, **given).folder for place, shard in enumerate((None, "0/3", "1/3", "2/3"))}


def test_merged_shards_are_the_run_over_the_whole_input(shards: Mapping[str | None, Path], tmp_path: Path) -> None:
    merged, whole = tmp_path / "merged", shards[None]
    done = pipeline("merge", shards["2/3"], shards["0/3"], shards["1/3"], "--output", merged)
    assert (done.returncode, done.stderr) == (0, "")
    assert said(merged) == said(whole)
    for table, names in {"calls": ("request_id", "seed", "output_token_ids"), "problems.parquet": ("input_row", "problem")}.items():
        found, expected = ([[str(row[name]) for name in names] for row in rows(each, table)] for each in (merged, whole))
        assert sorted(found) == sorted(expected)
    one, other = RunFile.read(merged), RunFile.read(whole)
    assert (one.totals.chains, one.totals.steps, one.input.rows) == (other.totals.chains, other.totals.steps, 24)
    assert {row["run_id"] for row in rows(merged, "calls")} == {"merged"}
    assert pipeline("export", merged, "-o", "-").stdout == pipeline("export", whole, "-o", "-").stdout
    assert "is finished" in pipeline("resume", merged).stderr


def test_what_is_not_all_shards_of_one_run_once_is_refused(shards: Mapping[str | None, Path]) -> None:
    files = {name or "whole": RunFile.read(folder) for name, folder in shards.items()}
    other = structs.replace(files["1/3"], options=structs.replace(files["1/3"].options, seed=8))
    stopped = structs.replace(files["1/3"], status="interrupted")
    for given, what in (
        ([files["0/3"], files["1/3"]], "each once; these are 0/3, 1/3$"),
        ([files["0/3"], files["1/3"], files["1/3"]], "each once; these are 0/3, 1/3, 1/3$"),
        ([files["0/3"], files["whole"]], "is not a shard"),
        ([files["0/3"], other, files["2/3"]], "are not shards of one run: seed is 8, was 7"),
        ([files["0/3"], stopped, files["2/3"]], "is interrupted; `pipeline resume"),
    ):
        with pytest.raises(UsageError, match=what):
            in_order({Path(str(place)): file for place, file in enumerate(given)})
    assert in_order({Path(name): files[name] for name in ("2/3", "0/3", "1/3")}) == [Path("0/3"), Path("1/3"), Path("2/3")]
