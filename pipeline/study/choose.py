"""The settings to use: the measured points of a sweep over a validation set enter, the fastest whose accuracy is good enough leaves.

The loss is the accuracy of the baseline minus the point's, over the same problems. Its interval is Tango's score interval for paired
shares (Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design", Statistics in
Medicine 17), one-sided at 95 %, by Bonferroni for all points together.
"""

import math
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from pipeline.analysis.curves import Measured, best_baseline, curves
from pipeline.errors import UsageError
from pipeline.graph.files import written
from pipeline.graph.load import PRESET, load_preset
from pipeline.graph.rules import with_keys


class Pairs(Struct, frozen=True):
    """How the answers of two runs over the same problems differ."""

    problems: int
    lost: int
    """Problems that the baseline alone has right."""
    won: int
    """Problems that the point alone has right."""

    def most(self, z: float) -> float:
        """The upper end of the loss, -1 to 1, with a deviate `z`: the largest loss whose score test is not rejected."""
        low, high = (self.lost - self.won) / self.problems, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if -self._score(middle) <= z else (low, middle)
        return high

    def _score(self, loss: float) -> float:
        """Tango's score statistic of this loss."""
        n, b, c = self.problems, self.lost, self.won
        linear = -b - c + (2 * n - b + c) * loss
        q = (math.sqrt(linear * linear + 8 * n * c * loss * (1 - loss)) - linear) / (4 * n)
        variance = n * (2 * q + loss * (1 - loss))
        return (b - c - n * loss) / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, b - c - n * loss)


def choose(points: Sequence[Measured], max_loss: float) -> tuple[Measured, float] | None:
    """The fastest point but the baselines whose loss is at most `max_loss`, 0 to 1, with the upper end of its loss; None where none is.

    Raises `UsageError` where problems have several samples, or no reference answers.
    """
    found, pairs = curves(points), list[tuple[Measured, Pairs]]()
    for name, curve in found.items():
        for size, here in curve.items():
            alone = best_baseline(name, found, size)
            if not here[0].label.baseline and alone is not None and here[0].run.problems_per_s is not None:
                pairs.append((here[0], _pairs(here[0], found[alone][size][0])))
    if not pairs:
        raise UsageError("--max-loss: no point finished beside the target alone")
    z = NormalDist().inv_cdf(1 - 0.05 / len(pairs))
    fit = [(point, most) for point, each in pairs if (most := each.most(z)) <= max_loss]
    if not fit:
        return None
    return max(fit, key=lambda each: each[0].run.problems_per_s or 0.0)


def _pairs(point: Measured, alone: Measured) -> Pairs:
    ours, theirs = point.run.sums, alone.run.sums
    _, mine, other = np.intersect1d(ours["problem"], theirs["problem"], assume_unique=True, return_indices=True)
    graded, right, was_right = ours["graded"][mine] * theirs["graded"][other], ours["right"][mine], theirs["right"][other]
    if graded.max(initial=0) > 1:
        raise UsageError("--max-loss: needs one sample a problem; add --samples 1")
    if not graded.any():
        raise UsageError("--max-loss: needs problems with a reference answer")
    both = graded > 0
    return Pairs(int(both.sum()), int((was_right > right)[both].sum()), int((right > was_right)[both].sum()))


def write_preset(chosen: Measured, file: Path) -> None:
    """Write the params of a chosen point as a preset file, and what it, or a preset that it had, set of single stages."""
    run, names = chosen.run.file, list[str]()
    for each in run.options.settings:
        names += load_preset(each.removeprefix(PRESET)).set if each.startswith(PRESET) else [each.partition("=")[0]]
    stages = {keys[-1]: msgspec.to_builtins(stage) for keys, stage in with_keys(run.plan.graph.stages)}
    found: dict[str, Any] = dict(run.plan.params)
    for part, stage, key in (name.split(".", 2) for name in names if name.startswith("stages.")):
        for own in stages if stage == "*" else stages.keys() & {stage}:
            found[f"{part}.{own}.{key}"] = reduce(getitem, key.split("."), stages[own])
    text = written({"set": found}, default_flow_style=False)
    file.write_text(f"# Chosen by pipeline sweep on {', '.join(run.options.input)}.\n{text}\n")
