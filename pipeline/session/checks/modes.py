"""What switches the chains of a run between speculation and the target alone: checked options enter, a `ModeControl` leaves.

For a plan without `speculate: auto` there is none.
"""

from collections.abc import Iterable, Mapping

from pipeline.engine import Engine
from pipeline.graph.plan import Plan
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.speculation.adaptive import Adaptive, Requests
from pipeline.runtime.speculation.modes import Change, ModeControl
from pipeline.store.run_file import ModeChange

MOST_CHANGES = 1000
"""Most decisions that `run.json` holds: the last ones."""


def new_control(plan: Plan, engines: Mapping[str, Engine]) -> ModeControl | None:
    """What decides for the chains of a run on open `engines`; None where nothing is to be decided."""
    if plan.direct is None:
        return None
    target = engines[str(plan.direct.response.spec.role)]

    def requests() -> Requests:
        now = target.statistics()
        return Requests(now.running, now.waiting)

    return Adaptive(written=lambda: target.statistics().written_tokens, requests=requests)


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
