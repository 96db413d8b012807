"""How rewards of steps are shown: a bar on a terminal while they are scored, and a few lines afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from pipeline.rewards.score import Watch
from pipeline.rewards.tally import Scored

_MEANS = {"all": "drafted steps", "accepted": "of these, one selected", "fallback": "of these, none: fallback"}


@contextmanager
def watched(run: Path) -> Iterator[Watch]:
    """A bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{run.name}: steps", total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def reward_lines(scored: Scored, run: Path) -> list[str]:
    """The means, and what has no reward."""
    lines = [
        f"{scored.run}: {scored.steps:,} steps and {scored.candidates:,} candidates scored by {scored.model}",
        f"{scored.requests:,} requests in {scored.wall_s:,.1f} s",
    ]
    if scored.quality:
        lines.append(f"{'mean reward':<28}{'steps':>9}{'drafted':>10}{'committed':>11}")
    for decision, title in _MEANS.items():
        if (quality := scored.quality.get(decision)) is not None:
            means = ("-" if value is None else f"{value:.4f}" for value in (quality.drafted, quality.committed))
            lines.append("  {:<26}{:>9,}{:>10}{:>11}".format(title, quality.steps, *means))
    if not scored.quality:
        lines.append("no step of this run was drafted")
    if scored.errors:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in scored.errors.items())
        lines.append(f"texts without a reward: {kinds}; the first: {scored.first_error}")
    return [*lines, f"rewards: {run / 'rewards'}/*.parquet"]
