"""What the bundled models know: a plan and problems enter; foreign problems are refused, unless somebody chose the engines."""

from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.engines.models import bundled_name
from pipeline.errors import UsageError
from pipeline.graph.bundled import ARITH
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.store.kept_problems import Problems


def check_toys(plan: Plan, options: RunOptions, problems: Problems) -> None:
    """Raise `UsageError` where the engines are the graph's own, their models the bundled ones, and a problem may be none of
    `datasets/arith`."""
    chosen = options.bound_engines is not None or "engines" in options.in_memory
    if chosen or not all(bundled_name(str(getattr(spec, "model", ""))) for spec in plan.engines.values()):
        return
    if (where := "serve" if options.served else _foreign(options.input_names[0], problems)) is not None:
        what = f"{where}: the bundled toy models solve only the problems of `arith`"
        raise UsageError(f"{what}; pass --model ROLE=NAME for each role, or --engines tiny to have the toys try")


def _foreign(name: str, problems: Problems) -> str | None:
    """The place of the first problem that the bundled models do not know."""
    known = {item.problem for path in ARITH.glob("*.parquet") for item in read_problems(path) if isinstance(item, Problem)}
    foreign = (item.row for item in problems if isinstance(item, Problem) and item.problem not in known)
    return next((f"{name}, row {row}" for row in foreign), None)
