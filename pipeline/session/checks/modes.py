"""What switches the chains of a run between speculation and the target alone: checked options enter, a `ModeControl` leaves.

For a plan without `speculate: auto` there is none.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow.compute as pc

from pipeline.data.problems import Fingerprint
from pipeline.engine import Engine
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import UsageError
from pipeline.graph.direct import BOUNDARY, RESPONSE
from pipeline.graph.loader import load_engines
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.speculation.adaptive import Adaptive, Requests
from pipeline.runtime.speculation.cost_model import CostModel
from pipeline.runtime.speculation.modes import Change, Decision, ModeControl, Recorded
from pipeline.session.checks.replay import needs
from pipeline.session.options import RunOptions
from pipeline.trace.read import read_batches
from pipeline.trace.run_file import ModeChange, RunFile

MOST_CHANGES = 1000
"""Most decisions that `run.json` holds: the last ones."""


def check_modes(plan: Plan, options: RunOptions, fingerprint: Fingerprint) -> None:
    """Raise `UsageError` where `options.modes` is no run whose modes the chains of this one could have."""
    if options.modes is None:
        return
    asked = f"--modes {options.modes}"
    if plan.speculate != "auto":
        said = "this graph has no loop that drafts" if plan.speculate is None else f"this run has `speculate: {plan.speculate}`"
        raise UsageError(f"{asked}: {said}; the modes of a run with `speculate: auto` are for another one with `--set speculate=auto`")
    then = RunFile.read(options.modes)
    if then.plan.speculate != "auto":
        raise UsageError(f"{asked}: was recorded with `speculate: {then.plan.speculate}`; name a run with `speculate: auto`")
    if then.status != "finished":
        raise UsageError(f"{asked}: is {then.status}; finish it with `pipeline resume {options.modes}`")
    if (then.plan.block, then.plan.prompts) != (plan.block, plan.prompts):
        raise UsageError(f"{asked}: was recorded with another graph or other params; its modes are for {then.graph} as it was then")
    if needed := next(needs(then, options, fingerprint), None):
        raise UsageError(f"{asked} needs {needed}")


def calibrated_costs(plan: Plan, options: RunOptions) -> CostModel | None:
    """The costs in `options.calibration`; None without. Raises `UsageError` where nobody would use them, or they are not there."""
    if options.calibration is None:
        return None
    asked = f"--calibration {options.calibration}"
    if plan.speculate is None:
        raise UsageError(f"{asked}: is for a controller, and this graph has no loop that drafts; leave it out")
    if plan.speculate != "auto" or plan.direct is None:
        raise UsageError(f"{asked}: is for a controller, and this run has none; add `--set speculate=auto`")
    if options.modes is not None:
        raise UsageError(f"{asked}: --modes says which mode each step has; drop one of them")
    found = load_engines(options.calibration, engine_specs())
    specs = {}
    for part, role in (("target", str(plan.direct.response.spec.role)), ("draft", plan.drafters[0])):
        spec = found.get(role)
        if not isinstance(spec, SimSpec):
            what = "is not in it" if spec is None else f"is of backend {spec.backend}, not sim"
            raise UsageError(f"{asked}: role {role!r} {what}; give a file that `pipeline calibrate` wrote of a run of this graph")
        specs[part] = spec
    return CostModel.from_sim(specs["target"], specs["draft"])


def new_control(plan: Plan, options: RunOptions, engines: Mapping[str, Engine], costs: CostModel | None = None) -> ModeControl | None:
    """What decides for the chains of a checked run on open `engines`; None where nothing is to be decided.

    `costs`: see `calibrated_costs`.
    """
    if plan.direct is None:
        return None
    if options.modes is not None:
        return Recorded(read_decisions(options.modes, options.samples))
    target = engines[str(plan.direct.response.spec.role)]

    def requests() -> Requests:
        now = target.statistics()
        return Requests(now.running, now.waiting)

    return Adaptive(written=lambda: target.statistics().written_tokens, requests=requests, model=costs)


def recorded_changes(changes: Iterable[Change], clock: Clock) -> tuple[ModeChange, ...]:
    """The decisions of a control as `run.json` holds them."""
    return tuple(
        ModeChange(
            unix_ns=clock.unix_ns(change.time),
            what=change.what,
            speculating=change.speculating,
            live=change.live,
            speculative=change.speculative,
            direct=change.direct,
        )
        for change in changes
    )


def read_decisions(run: Path, samples: int) -> dict[int, list[Decision]]:
    """What was decided for each chain of a finished run, at one step boundary after the other, by the chain's order in a run of
    `samples` for each row. Raises `InputError` where its tables cannot be read."""
    orders, lengths = _orders(run, samples), dict(_interrupted(run))
    found: dict[int, list[Decision]] = defaultdict(list)
    steps: dict[str, int] = defaultdict(int)
    known: dict[Decision, Decision] = {}  # one object for the many that are equal
    for batch in read_batches(run, "steps", ["chain_id", "stage", "decision", "mode"]):
        for row in batch.to_pylist():
            chain = row["chain_id"]
            index, steps[chain] = steps[chain], steps[chain] + 1
            if chain in orders and row["stage"] != BOUNDARY and row["decision"] != "guidance":
                decision = Decision(row["mode"], lengths.get(f"{chain}/{index}/{RESPONSE}"))
                found[orders[chain]].append(known.setdefault(decision, decision))
    return found


def _orders(run: Path, samples: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for batch in read_batches(run, "chains", ["chain_id", "input_row", "sample_index"]):
        rows = (row for row in batch.to_pylist() if row["sample_index"] < samples)
        found |= {row["chain_id"]: (row["input_row"] - 1) * samples + row["sample_index"] for row in rows}
    return found


def _interrupted(run: Path) -> Iterator[tuple[str, int]]:
    """The ids of the responses that were interrupted, and how many tokens each had."""
    for batch in read_batches(run, "calls", ["stage", "request_id", "finish_reason", "output_token_ids"]):
        for row in batch.filter(pc.equal(batch.column("stage"), RESPONSE)).to_pylist():
            if row["finish_reason"] == ["interrupted"]:
                yield row["request_id"], len(row["output_token_ids"][0])
