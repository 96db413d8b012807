"""What `run.json` says of the budget of a run."""

from msgspec import Struct, structs


class Amounts(Struct, frozen=True, kw_only=True):
    """Time, tokens and cost of a run, those of earlier sessions included; as limits None is no limit."""

    time_s: float | None = None
    """Seconds by the run's clock, on which starting the engines takes none."""
    tokens: int | None = None
    """Tokens that all engines sampled."""
    cost: float | None = None
    """In the currency of the prices in the engines file."""

    def used_up(self, spent: "Amounts") -> str | None:
        """The name of a limit that is reached where `spent` is spent; None where none is."""
        return next((name for name, limit, used in self._pairs(spent) if used >= limit), None)

    def _pairs(self, spent: "Amounts") -> list[tuple[str, float, float]]:
        limits, used = structs.asdict(self), structs.asdict(spent)
        return [(name, limit, used[name] or 0) for name, limit in limits.items() if limit is not None]


class BudgetRecord(Struct, frozen=True, kw_only=True):
    """The budget of a run, of all its sessions together."""

    limits: Amounts
    spent: Amounts = Amounts()
    """At the end of the last session."""
    used_up: str = ""
    """Why the last session ended before its chains were over, as a clause; empty: the budget was not the reason."""
