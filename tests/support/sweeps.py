"""Sweeps of short simulated runs."""

from pathlib import Path
from typing import Any

from pipeline.options import RunOptions
from pipeline.study.points import plan_sweep
from pipeline.study.run import Done, SweepResult, carry_out
from pipeline.study.systems import Matrix, SystemEntry, varied
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

SPECCOT = ROOT / "graphs/speccot.yaml"


def matrix_of(folder: Path, **changes: Any) -> Matrix:
    """SpecCoT and the target alone at two batch sizes; `changes` are fields of the matrix or of the options that its runs share."""
    options: dict[str, Any] = {"graph": SPECCOT, "engines": SIM, "output": folder / "sweep", "settings": ("engines.*.text.steps_mean=3",)}
    options |= {name: changes.pop(name) for name in list(changes) if name in RunOptions.__struct_fields__ and name not in ("baseline",)}
    problems = options.pop("input", None) or (str(write_problems(folder)),)
    systems = varied([SystemEntry(graph=str(each)) for each in changes.pop("graphs", (SPECCOT,))], changes.pop("vary", {}))
    return Matrix(shared=RunOptions(input=problems, **options), systems=systems, **{"batch_sizes": (1, 4)} | changes)


def sweep(folder: Path, *, done: Done | None = None, workers: int = 1, **changes: Any) -> SweepResult:
    """Carry out the sweep of `matrix_of`, by default in this process."""
    return carry_out(plan_sweep(matrix_of(folder, **changes)), done=done, workers=workers)
