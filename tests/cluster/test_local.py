"""Replicas on this machine: processes with devices of their own, whose answers are those of one process, whatever dies in between, and
simulated ones on one clock."""

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from msgspec import structs

from pipeline.cluster.local import DeviceShare, divided, process_launcher, solve_on_this_machine
from pipeline.cluster.messages import Orders
from pipeline.errors import ReplicaLost, UsageError
from pipeline.session.loop import Stop, in_loop
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.prepare import RunSettings, load_plan, prepared
from pipeline.session.run import SessionResult, run
from pipeline.store.run_file import RunFile
from pipeline.system.machine import GIB, Gpu, Machine, core_count
from tests.support.commands import begun, pipeline, spawned
from tests.support.fated_replicas import options_of, places, stopping
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import said, write_problems
from tests.support.waiting_engines import engines_file, waiting, when

pytestmark = pytest.mark.slow  # whole runs, and processes
CHAINS = 40
PROGRAM = "pipeline.cluster.replica_process"


def replicas_of(process: psutil.Process) -> list[psutil.Process]:
    """The processes of replicas that a process has started."""
    return sorted((each for each in process.children() if PROGRAM in each.cmdline()), key=lambda each: each.pid)


def check_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=HANGS_S)
    assert left == []


def watched() -> tuple[Observer, list[View]]:
    """An observer, and what it gets to watch."""
    views: list[View] = []
    return Observer(watch=lambda view: nullcontext(views.append(view))), views


async def abort_at(views: list[View], done: int, stop: Stop, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """A task beside a run that stops it when so many chains are done."""
    task_status.started()
    while not (views and views[0].progress.done >= done):  # noqa: ASYNC110  (to poll is what a display does)
        await anyio.sleep(0.02)
    stop.abort()


class TestSimulated:
    def here(self, options: RunOptions, **more: Any) -> SessionResult:
        return run(options, carry_out=solve_on_this_machine, **more)

    @pytest.mark.parametrize("count", [2, 5])
    def test_replicas_share_one_simulated_clock(self, problems: Path, calm: SessionResult, tmp_path: Path, count: int) -> None:
        result = self.here(options_of(tmp_path, "run", problems, replicas=count))
        assert said(result) == said(calm)
        assert result.folder is not None
        check_hangs_together(result.folder, len(said(calm)))
        session = result.run.sessions[-1]
        assert [(each.starts, each.node, each.devices) for each in session.replicas] == [(1, None, None)] * count
        assert sum(each.chains for each in session.replicas) == len(said(calm))
        assert result.run.virtual_time
        again = self.here(options_of(tmp_path, "again", problems, replicas=count))
        assert (again.run.wall_time_s, places(again)) == (result.run.wall_time_s, places(result))

    def test_twice_as_many_take_half_as_long(self, tmp_path: Path) -> None:
        problems = write_problems(tmp_path, 64)
        wall = {n: self.here(options_of(tmp_path, f"run-{n}", problems, replicas=n)).run.wall_time_s or 0.0 for n in (1, 2, 4)}
        assert wall[1] / wall[2] == pytest.approx(2, rel=0.15)
        assert wall[1] / wall[4] == pytest.approx(4, rel=0.15)

    def test_a_run_that_was_drained_goes_on_with_other_replicas(self, problems: Path, calm: SessionResult, tmp_path: Path) -> None:
        options = options_of(tmp_path, "run", problems, replicas=3, batch_size=1)
        drained = self.here(options, attend=stopping("drain", 0.5))
        assert drained.exit_code == 130
        assert 0 < drained.done < len(said(calm))
        result = self.here(structs.replace(options, resume=True, replicas=2))
        assert said(result) == said(calm)
        assert [len(session.replicas) for session in result.run.sessions] == [3, 2]

    def test_by_the_command(self, problems: Path, tmp_path: Path) -> None:
        words = ("run", "speccot", "--engines", "sim-2xh100", "--input", problems, "--output", tmp_path / "run", "--replicas", "3")
        done = pipeline(*words, "--batch-size", "1")
        assert done.returncode == 0, done.stderr
        assert len(RunFile.read(tmp_path / "run").sessions[-1].replicas) == 3
        refused = pipeline(*words[:-3], tmp_path / "lockstep", *words[-2:], "--schedule", "lockstep")
        assert refused.returncode == 2
        assert "--schedule lockstep cannot be combined with --replicas" in refused.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def alone(folder: Path) -> SessionResult:
    """The run of one process, on virtual time, whose answers all others are to give."""
    write_problems(folder, CHAINS)
    return run(waiting(folder, "alone"))


class TestProcesses:
    """Processes whose engines wait in real time in place of computing."""

    def here(self, options: RunOptions, observer: Observer | None = None) -> SessionResult:
        plan = load_plan(options.graph, options.bound_engines, options.settings)
        with prepared(options, plan, virtual=False) as ready:
            result: SessionResult = in_loop(partial(solve_on_this_machine, ready, observer or Observer()), virtual=False)
        assert replicas_of(psutil.Process()) == [], "no process is left behind"
        return result

    def check(self, result: SessionResult, alone: SessionResult) -> None:
        assert (result.exit_code, result.done, result.error) == (0, CHAINS, None)
        assert result.folder is not None
        check_hangs_together(result.folder, CHAINS)
        assert said(result) == said(alone)

    def test_a_replica_that_is_killed_is_replaced_and_its_chains_go_on(self, folder: Path, alone: SessionResult) -> None:
        told: list[str] = []
        struck = when(8, lambda view: replicas_of(psutil.Process())[0].kill(), told)
        result = self.here(waiting(folder, "struck", replicas=2), struck)
        self.check(result, alone)
        replicas = result.run.sessions[-1].replicas
        assert sorted(each.starts for each in replicas) == [1, 2]
        [loss] = [loss for each in replicas for loss in each.losses]
        assert loss.startswith("its process ended: killed by SIGKILL")
        assert any("lost, restarting it: its process ended: killed by SIGKILL" in sentence for sentence in told)

    def test_a_driver_that_is_stopped_goes_on_in_one_process(self, folder: Path, alone: SessionResult) -> None:
        """The folder is that of any run."""
        options = waiting(folder, "stopped", replicas=2)
        plan = load_plan(options.graph, options.bound_engines)
        with prepared(options, plan, virtual=False) as ready:
            observer, views = watched()
            carried = partial(solve_on_this_machine, ready, observer, attend=partial(abort_at, views, 4))
            stopped: SessionResult = in_loop(carried, virtual=False)
        assert replicas_of(psutil.Process()) == []
        assert stopped.exit_code == 130
        assert 4 <= stopped.done < CHAINS
        self.check(run(structs.replace(resume_options(folder / "stopped"), replicas=1)), alone)

    def test_a_model_that_is_not_there_is_one_sentence(self, folder: Path, alone: SessionResult) -> None:
        engines = folder / "missing.yaml"
        engines.write_text("target: {backend: torch, device: cpu, model: /nowhere/target}\n")
        options = structs.replace(waiting(folder, "missing", replicas=core_count()), engines=engines, graph=Path("target"))
        with pytest.raises(UsageError, match="/nowhere/target"):
            self.here(options)
        assert not (folder / "missing").exists()

    def test_a_process_sees_its_gpus_alone_and_its_last_error_is_told(self, folder: Path, alone: SessionResult) -> None:
        plan = load_plan(ROOT / "graphs/speccot.yaml", engines_file(folder))
        settings = RunSettings(plan=plan, options=waiting(folder, "unused"), run_id="run", virtual_time=False)
        launch = process_launcher(settings, [DeviceShare(gpus=(Gpu(index=0, cuda_name="3", name="H100"),))])
        bare = process_launcher(settings, [DeviceShare(cores=(1 << 16,))])
        seen: list[dict[str, str]] = []

        async def main() -> None:
            async with launch(0) as link:
                report = await link.exchange(Orders())
                while report.opened is None:
                    report = await link.exchange(Orders())
                [process] = replicas_of(psutil.Process())
                seen.append(process.environ())
            assert (link.devices, replicas_of(psutil.Process())) == ("GPU 0", [])
            with pytest.raises(ReplicaLost, match=r"^its process ended: OSError: .*\(exit status 1\)$"):
                async with bare(0) as link:
                    await link.exchange(Orders())

        anyio.run(main)
        assert {name: seen[0][name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")} == {
            "CUDA_VISIBLE_DEVICES": "3",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }


def test_replicas_have_equal_parts_of_the_gpus_or_of_the_cores() -> None:
    gpus = tuple(Gpu(index=n, cuda_name=str(n), name="H100") for n in range(5))
    machine = Machine(cores=(0, 1, 2), memory_bytes=GIB, free_memory_bytes=GIB, gpus=gpus)
    pair = load_plan(Path("speccot"), Path("qwq-r1_1.5b-2x80gb")).engines
    assert [share.words for share in divided(pair, machine, 2)] == ["GPU 0-1", "GPU 2-3"]
    assert [share.words for share in divided(pair, structs.replace(machine, gpus=()), 2)] == ["CPU core 0", "CPU cores 1-2"]
    with pytest.raises(UsageError, match=r"^--replicas 3: each replica needs 2 GPUs, but this machine has 5; use at most 2, or"):
        divided(pair, machine, 3)


def test_more_replicas_than_cores_are_refused_before_anything_starts(tmp_path: Path) -> None:
    many = core_count() + 1
    done = pipeline(
        "run", "speccot", "--engines", "tiny", "--set", "engines.*.device=cpu", "--input", TEST_SET, "--output", tmp_path / "run",
        "--replicas", str(many),
    )  # fmt: skip
    assert done.returncode == 2
    assert f"error: --replicas {many}: this machine has " in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(core_count() < 2, reason="needs two cores")
class TestModels:
    """Processes that compute with the bundled pair."""

    WORDS = ("--engines", "tiny", "--set", "engines.*.device=cpu", "--replicas", "2", "--batch-size", "4")

    def all_of(self, process: psutil.Process) -> list[psutil.Process]:
        """The replicas of a run, and their engines."""
        _until(lambda: sum("pipeline.engines.torch.model:load_model" in each.cmdline() for each in process.children(recursive=True)) == 4)
        assert len(replicas_of(process)) == 2
        return process.children(recursive=True)

    def test_a_replica_is_killed_in_mid_run(self, tmp_path: Path) -> None:
        options = RunOptions(
            graph=Path("speccot"), engines=Path("tiny"), settings=("engines.*.device='cpu'",), input=TEST_SET, limit=24, batch_size=4,
            output=tmp_path / "run", replicas=2,
        )  # fmt: skip
        ended, cores = list[psutil.Process](), list[set[int]]()

        def strike(view: Any) -> None:
            victim, other = replicas_of(psutil.Process())
            ended.extend(victim.children(recursive=True))
            cores.extend(set(each.cpu_affinity()) for each in (victim, other))
            victim.kill()

        result = run(options, when(6, strike, []), carry_out=solve_on_this_machine)
        assert (result.exit_code, result.done) == (0, 24)
        check_hangs_together(tmp_path / "run", 24)
        assert len(ended) == 2
        check_gone(ended)
        assert not cores[0] & cores[1], "each replica has cores of its own"
        replicas = result.run.sessions[-1].replicas
        assert sorted(each.starts for each in replicas) == [1, 2]
        assert all((each.devices or "").startswith("CPU core") for each in replicas)
        assert replicas_of(psutil.Process()) == []

    def begin(self, folder: Path, limit: int) -> Any:
        return begun("run", "speccot", "--input", TEST_SET, "--limit", str(limit), "--output", folder, *self.WORDS, chains=limit)

    def test_no_process_outlives_a_driver_that_is_killed_and_the_run_is_resumed(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        with self.begin(folder, 40) as process:
            _until(lambda: any(each.stat().st_size > 2048 for each in (folder / "chains").glob("wal-*")))
            everything = self.all_of(psutil.Process(process.pid))
            process.kill()
            check_gone(everything)
        done = spawned("resume", str(folder))
        assert done.returncode == 0, done.stderr
        check_hangs_together(folder, 40)
        assert [(session.status, len(session.replicas)) for session in RunFile.read(folder).sessions][-1] == ("finished", 2)

    def test_ctrl_c_ends_everything(self, tmp_path: Path) -> None:
        with self.begin(tmp_path / "run", 200) as process:
            everything = self.all_of(psutil.Process(process.pid))
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=HANGS_S)
            assert process.returncode == 130, error
            check_gone(everything)
        assert "to resume: pipeline resume" in error


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(int(HANGS_S * 20)):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it never happened")
