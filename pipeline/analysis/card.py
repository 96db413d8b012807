"""What analyses take from a `run.json`, as far as it is there: the run folder enters, one `RunCard` leaves.

A trace can be studied without it: whatever is missing or of another type counts as not known.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.errors import InputError
from pipeline.trace.read import read_card


class RunCard(Struct, frozen=True, kw_only=True):
    """What is known of a run beside its trace."""

    status: str | None = None
    schedule: str | None = None
    batch_size: int | None = None
    sessions: tuple[dict[str, Any], ...] = ()
    """One for each process that worked on the run."""
    engines: dict[str, dict[str, Any]] = {}
    facts: dict[str, dict[str, Any]] = {}
    graph: dict[str, Any] = {}

    @property
    def started_unix_ns(self) -> int | None:
        """When the first chain could start."""
        return _instant(self.sessions[0], "started_unix_ns") if self.sessions else None

    @property
    def ended_unix_ns(self) -> int | None:
        """When the last session ended; null while it goes on, or where it left no word."""
        return _instant(self.sessions[-1], "ended_unix_ns") if self.sessions else None

    @property
    def pauses(self) -> list[tuple[int, int]]:
        """Start and end, ns UTC, of the times between sessions: nobody was at work."""
        pairs = ((_instant(one, "ended_unix_ns"), _instant(other, "started_unix_ns")) for one, other in pairwise(self.sessions))
        return [(since, until) for since, until in pairs if since is not None and until is not None and since < until]

    def statistics(self, role: str) -> list[dict[str, Any]] | None:
        """An engine's own totals, one mapping a session; None where a session left no word of them."""
        found = [_mapping(_mapping(session.get("engine_statistics")).get(role)) for session in self.sessions]
        return found if found and all(found) else None


def read_run_card(run: Path) -> RunCard:
    """The card of the run folder `run`; an empty one where its `run.json` cannot be read."""
    try:
        card = read_card(run, dict[str, Any])
    except InputError:
        return RunCard()
    batch_size = card.get("batch_size")
    return RunCard(
        status=_text(card.get("status")),
        schedule=_text(card.get("schedule")),
        batch_size=batch_size if type(batch_size) is int and batch_size > 0 else None,
        sessions=tuple(each for each in card.get("sessions", ()) if isinstance(each, dict)),
        engines=_mapping(card.get("engines")),
        facts=_mapping(card.get("engine_facts")),
        graph=_mapping(card.get("graph")),
    )


def _instant(session: dict[str, Any], name: str) -> int | None:
    value = session.get(name)
    return value if type(value) is int and value >= 0 else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
