"""What control groups leave: files laid out as the kernel documents them, of both versions, nested, in containers and without any."""

from pathlib import Path

import pytest

from pipeline.system import machine, worker_process
from pipeline.system.cgroup import cpu_quota, memory_kills, memory_limits
from pipeline.system.worker_process import Program, WorkerProcess

GIB = 1 << 30
MOST = "9223372036854771712"
"""What version 1 says where there is no limit."""


def laid_out(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")
    return root


def v2(group: str, most: str, used: int, cache: int = 0) -> dict[str, str]:
    return {f"{group}memory.max": most, f"{group}memory.current": str(used), f"{group}memory.stat": f"anon 5\ninactive_file {cache}"}


def v1(group: str, most: str, used: int, cache: int = 0) -> dict[str, str]:
    place = f"memory/{group}memory."
    return {f"{place}limit_in_bytes": most, f"{place}usage_in_bytes": str(used), f"{place}stat": f"cache 5\ntotal_inactive_file {cache}"}


MEMORY = {
    "none": ("", {}, []),
    "a container of version 2": ("0::/", v2("", str(GIB), GIB // 2, GIB // 8), [(GIB, GIB // 2 + GIB // 8)]),
    "a unit in a slice": (
        "0::/user.slice/job.scope",
        v2("user.slice/job.scope/", "max", 7) | v2("user.slice/", str(4 * GIB), GIB),
        [(4 * GIB, 3 * GIB)],
    ),
    "more used than allowed": ("0::/", v2("", str(GIB), 2 * GIB), [(GIB, 0)]),
    "Slurm on version 1": (
        "9:cpu,cpuacct:/slurm\n4:memory:/slurm/job_7/step_0",
        v1("slurm/job_7/step_0/", str(GIB), 0) | v1("slurm/job_7/", str(2 * GIB), 0) | v1("", MOST, 7),
        [(GIB, GIB), (2 * GIB, 2 * GIB), (int(MOST), int(MOST) - 7)],
    ),
    "the host's path in a container": ("4:memory:/docker/0f3a", v1("", str(GIB), GIB // 4, GIB // 4), [(GIB, GIB)]),
}


@pytest.mark.parametrize(("own", "files", "expected"), MEMORY.values(), ids=MEMORY)
def test_memory_is_limited_by_the_own_group_and_those_around_it(
    tmp_path: Path, own: str, files: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    place = laid_out(tmp_path, {"own": own}) / "own"
    assert memory_limits(laid_out(tmp_path / "fs", files), place) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "250000 100000"}, 2.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("3:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "150000", "cpu/x/cpu.cfs_period_us": "50000"}, 3.0),
    ],
)
def test_a_cpu_quota_is_the_smallest_of_all(tmp_path: Path, own: str, files: dict[str, str], expected: float | None) -> None:
    place = laid_out(tmp_path, {"own": own}) / "own"
    assert cpu_quota(laid_out(tmp_path / "fs", files), place) == expected


def test_a_quota_leaves_fewer_cores_and_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: tuple(range(8)))
    found = []
    for quota in (None, 0.5, 2.5, 8.0, 64.0):
        monkeypatch.setattr(machine, "cpu_quota", lambda quota=quota: quota)
        found.append(machine.core_count())
    assert found == [8, 1, 2, 8, 8]


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/job", {"job/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0"}, 2),
        ("4:memory:/job", {"memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4"}, 4),
        ("0::/job", {"job/cgroup.procs": "1"}, 9),
        ("", {}, 9),
    ],
)
def test_kills_for_lack_of_memory_are_counted(tmp_path: Path, own: str, files: dict[str, str], expected: int) -> None:
    place = laid_out(tmp_path, {"own": own, "vmstat": "nr_free_pages 5\noom_kill 9"})
    assert memory_kills(laid_out(tmp_path / "fs", files), place / "own", place / "vmstat") == expected
    assert memory_kills(tmp_path / "nowhere", tmp_path / "nowhere", tmp_path / "nowhere") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "ending"),
    [
        (1, 2, "killed by SIGKILL for lack of memory, of which its cgroup may have 2.0 GiB"),
        (1, 1, "killed by SIGKILL"),
        (None, None, "killed by SIGKILL, often for lack of memory"),
    ],
)
def test_a_worker_that_the_kernel_killed_says_so(
    before: int | None, after: int | None, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "memory_kills", lambda: before)
    monkeypatch.setattr(worker_process, "memory_limits", lambda: [(2 * GIB, 0), (4 * GIB, 0)])
    worker = WorkerProcess(Program(module="timeit", arguments=("-n1", "input()")))
    worker.kill()
    worker.wait(60)
    monkeypatch.setattr(worker_process, "memory_kills", lambda: after)
    assert worker.exit_reason().endswith(ending)
    worker.close_files()
