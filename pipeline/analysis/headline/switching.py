"""What `speculate: auto` decided during a run: the `run.json` enters, a `Switching` leaves. Pure."""

from collections.abc import Iterator

from pipeline.analysis.headline.figures import Departure, Switching
from pipeline.analysis.resources import replica_count
from pipeline.analysis.time.work import Axis
from pipeline.store.run_file import ModeChange, RunFile


def switching(run: RunFile) -> Switching | None:
    """The decisions of all sessions of `run`; None where it decided nothing, or has recorded nothing of it, as until a session ends."""
    changes = sorted(run.mode_changes, key=lambda change: change.unix_ns)
    if run.started is None or run.speculation is None or not changes:
        return None
    axis, first, last = Axis(run.started, run.pauses), changes[0], changes[-1]
    return Switching(
        begun_from=run.speculation.begun_from,
        began_drafting=_drafts(first) if first.live == 0 else None,  # only the decision of the start is made before a chain is there
        departures=tuple(_departures(changes, axis)),
        ended_drafting=_drafts(last),
        replicas=replica_count(run),
    )


def _drafts(change: ModeChange) -> bool:
    """Whether chains are drafted from then on: at the start, without a chain, only the word says it."""
    return change.what == "speculate" if change.live == 0 else change.speculating > 0


def _departures(changes: list[ModeChange], axis: Axis) -> Iterator[Departure]:
    for change in changes:
        if change.live and not _drafts(change):
            gain = change.speculative / change.direct if change.speculative and change.direct else None
            yield Departure(at_s=float(axis.seconds(change.unix_ns)), live=change.live, gain=gain)
