"""Do the orchestration and the trace cost more than in the parent commit? Both in this process, in turns.

    python -m bench.cost.against_parent [--parent HEAD~1] [--rounds 7]

The parent's tree is checked out next to this one, and its `pipeline` and `bench/cost/workloads.py` are imported apart from this tree's.
Prints, for each workload, the minimum of microseconds of CPU over the rounds, which other work changes least; fails where this
tree's is above the bound.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent.parent
APART = ("pipeline", "bench")
"""Packages of which each side has its own."""


class Side:
    """One tree: its modules are in `sys.modules` only while it is at work, so that what it imports late is its own, too."""

    def __init__(self, root: Path) -> None:
        self.root, self.modules = root, dict[str, object]()
        with self.at_work():
            self.workloads: Mapping[str, Callable[[], float]] = importlib.import_module("bench.cost.workloads").workloads()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        before, path = _taken(), list(sys.path)
        sys.modules.update(self.modules)  # type: ignore[arg-type]
        sys.path.insert(0, str(self.root))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            self.modules, sys.path[:] = _taken(), path
            sys.modules.update(before)  # type: ignore[arg-type]

    def cost(self, workload: str) -> float:
        """Microseconds of CPU a call or a row."""
        with self.at_work():
            return self.workloads[workload]()


def _taken() -> dict[str, object]:
    """The modules that are of one side, no longer in `sys.modules`."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in APART}


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit, in a folder that is removed again."""
    with tempfile.TemporaryDirectory(prefix="parent-") as folder:
        try:
            tree = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        except subprocess.CalledProcessError as error:
            raise click.ClickException(f"{commit}: {error.stderr.decode().strip()}") from None
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        if not (Path(folder) / "bench/cost/workloads.py").exists():
            raise click.ClickException(f"{commit} has no bench/cost/workloads.py: choose a later commit with --parent")
        yield Path(folder)


@click.command()
@click.option("--parent", default="HEAD~1", show_default=True, help="The commit that this tree is compared with.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--bound", default=1.15, show_default=True, help="A ratio above it is a failure.")
def main(parent: str, rounds: int, bound: float) -> None:
    """Print the costs of both trees."""
    if (pool := "ARROW_DEFAULT_MEMORY_POOL") not in os.environ:  # as `pipeline run` has it, which Arrow reads as it is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {pool: "system"})
    with checked_out(parent) as tree:
        before, now, dearer = Side(tree), Side(ROOT), []
        for name in (name for name in now.workloads if name in before.workloads):
            pairs = [_pair(before, now, name, number) for number in range(rounds)]
            old, new = (min(costs) for costs in zip(*pairs, strict=True))
            ratio = new / old
            click.echo(f"{name:<14} {parent} {old:6.1f} us, this tree {new:6.1f} us, ratio {ratio:.2f}")
            dearer += [f"{name} {ratio:.2f}"] if ratio > bound else []
    if dearer:
        raise click.ClickException(f"more than {bound:.2f} times the cost of {parent}: {', '.join(dearer)}")


def _pair(before: Side, now: Side, name: str, number: int) -> tuple[float, float]:
    """The costs of both; who is first alternates."""
    if number % 2:
        new = now.cost(name)
        return before.cost(name), new
    return before.cost(name), now.cost(name)


if __name__ == "__main__":
    main()
