"""The budget of a run: the options `--max-time`, `--max-tokens` and `--max-cost` and the prices in its engines file enter, its limits and
what earlier sessions have spent of them leave."""

import re
from collections.abc import Mapping, Sequence

from pipeline.errors import UsageError
from pipeline.graph.plan import Plan
from pipeline.runtime.admission.budget import Budget, Costs, said
from pipeline.runtime.clock import Clock
from pipeline.runtime.progress import Progress
from pipeline.runtime.resume_state import ResumeState
from pipeline.session.options import RunOptions
from pipeline.store.budget import Amounts
from pipeline.store.run_file import Session

NONE = "none"
"""The value that removes a limit when a run is resumed."""
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
FORMS = {
    "max_time": "a time above 0 with its unit, such as 90s, 45m, 2h or 1.5d",
    "max_tokens": "a number of tokens above 0, such as 250000, 500k or 2M",
    "max_cost": "an amount above 0, such as 2.50, in the currency of the prices in the engines file",
}
"""What is right for each of the options."""
PRICED = "`price: {input: 0.2, output: 0.8}` (of a million tokens) or `price: {hour: 2.5}`"


def limits_of(options: RunOptions) -> Amounts | None:
    """The limits that the options set, None where they set none; raises `UsageError`."""
    tokens = _number("max_tokens", options.max_tokens, THOUSANDS)
    limits = Amounts(
        time_s=_number("max_time", options.max_time, SECONDS),
        tokens=None if tokens is None else max(1, round(tokens)),
        cost=_number("max_cost", options.max_cost, {"": 1.0}),
    )
    return None if limits == Amounts() else limits


def _number(option: str, text: str | None, units: Mapping[str, float]) -> float | None:
    if text is None or text == NONE:
        return None
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([A-Za-z]?)", text)
    if found is None or found[2] not in units or not float(found[1]):
        raise UsageError(f"--{option.replace('_', '-')} {text}: expected {FORMS[option]}")
    return float(found[1]) * units[found[2]]


def spelled(option: str, value: str | float) -> str:
    """A limit that a caller of the Python API has given, as the command line spells it: a number is one of seconds, tokens or money."""
    if not isinstance(value, int | float):
        return str(value)
    number = f"{value:f}".rstrip("0").rstrip(".")
    return f"{number}s" if option == "max_time" else number


def costs_of(plan: Plan, replicas: int = 1) -> Costs:
    """The prices of the engines of a plan."""
    return Costs(prices={role: spec.price for role, spec in plan.engines.items() if spec.price is not None}, replicas=replicas)


def check_budget(options: RunOptions, plan: Plan) -> None:
    """Raise `UsageError` for a budget that means nothing, and for a cost without prices."""
    limits = limits_of(options)
    if limits is not None and limits.cost is not None and not costs_of(plan).prices:
        roles = " or ".join(f"`{role}`" for role in plan.engines)
        raise UsageError(f"--max-cost {options.max_cost}: no engine has a price; add {PRICED} to {roles} in the engines file")


def new_budget(
    limits: Amounts, plan: Plan, replicas: int, sessions: Sequence[Session], clock: Clock, *, virtual: bool, startup_s: float = 0.0
) -> Budget:
    """The budget of a session after the earlier `sessions`. Its own engines took `startup_s` to start, which costs nothing on virtual
    time."""
    before = [(each.wall_time_s or 0.0, 0.0 if virtual else each.startup_s, each.sets / replicas) for each in sessions]
    before_s = sum(wall_s for wall_s, _, _ in before)
    cost_s = sum((wall_s + opening_s) * sets for wall_s, opening_s, sets in before)
    opening_s = (0.0 if virtual else startup_s) + cost_s - before_s
    return Budget(limits, costs_of(plan, replicas), clock, before_s=before_s, opening_s=opening_s)


def spent_before(
    options: RunOptions, plan: Plan, sessions: Sequence[Session], state: ResumeState, *, virtual: bool
) -> tuple[str, Amounts | None]:
    """The clause that says which limit of the options the earlier sessions have reached, empty where they reached none; and what they have
    spent, None where the options set no limit."""
    limits = limits_of(options)
    if limits is None:
        return "", None
    budget = new_budget(limits, plan, options.replicas, sessions, Clock(0, lambda: 0.0), virtual=virtual)
    budget.meter(Progress(plan, state))
    name = limits.used_up(budget.spent)
    return "" if name is None else said(name, limits, budget.spent), budget.spent
