"""What the control groups (cgroups) of Linux leave this process of the machine: memory and CPU time, of its own group and of those around
it, version 1 and 2. A container's, a batch job's and a systemd unit's limits are such groups. Without them nothing is limited.

Formats: https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT, OWN, VMSTAT = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")


def memory_limits(root: Path = ROOT, own: Path = OWN) -> list[tuple[int, int]]:
    """For each group that limits memory its limit and what is free of it, in bytes; files that the system keeps and would give back count
    as free."""
    found = []
    for group in _groups("memory", root, own):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, taken = _number(group / limit), _number(group / used)
            if most is not None and taken is not None:
                found.append((most, max(0, most - taken + (_count(group / "memory.stat", cache) or 0))))
    return found


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """The time of how many cores this process may use; None where no group limits it."""
    quotas = []
    for group in _groups("cpu", root, own):
        words = [*_words(group / "cpu.max"), *_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")][:2]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_kills(root: Path = ROOT, own: Path = OWN, vmstat: Path = VMSTAT) -> int | None:
    """How many processes the kernel has killed for lack of memory in the group of this process, or, where that is not counted, on the whole
    machine; None where neither is known."""
    group = next(_groups("memory", root, own), None)
    places = [] if group is None else [group / "memory.events", group / "memory.oom_control"]
    return next((count for place in (*places, vmstat) if (count := _count(place, "oom_kill")) is not None), None)


def _groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """The folder of the group of this process that has this controller, then those of the groups around it."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    paths = {name: path for _, names, path in (line for line in lines if len(line) == 3) for name in names.split(",")}
    unified = root / "unified" if (root / "unified").is_dir() else root
    base, path = (root / controller, paths[controller]) if controller in paths else (unified, paths.get("", "/"))
    # In a container that does not see the groups around it the path may be the host's, of which nothing is mounted here.
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for length in range(len(parts), -1, -1):
        if (group := base.joinpath(*parts[:length])).is_dir():
            yield group


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number that a file holds; None where there is no such file or it holds a word such as `max`."""
    words = _words(path)
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else None


def _count(path: Path, name: str) -> int | None:
    """The number behind `name` in a file of such lines."""
    words = _words(path)
    return next((int(value) for key, value in zip(words[::2], words[1::2], strict=False) if key == name and value.isdecimal()), None)
