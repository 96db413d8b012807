"""Whether a run folder hangs together, by a plain loop over all rows."""

from collections import Counter
from pathlib import Path

from tests.support.runs import rows


def check_hangs_together(folder: Path, chains: int) -> None:
    """Fails unless all `chains` have ended once, each with exactly the steps and calls that it counts."""
    ended = {row["chain_id"]: row for row in rows(folder, "chains")}
    assert len(ended) == len(rows(folder, "chains")) == chains
    for table in ("calls", "steps"):
        numbers = Counter((row["chain_id"], row[f"{table[:-1]}_index"]) for row in rows(folder, table))
        assert set(numbers.values()) <= {1}, f"rows of {table} are there twice"
        for chain_id, row in ended.items():
            there = sorted(number for chain, number in numbers if chain == chain_id)
            guided = table == "steps" and (chain_id, 0) in numbers  # guidance is a row, but no step that is counted
            first = 1 if table == "steps" and not guided else 0
            assert there == list(range(first, first + row[table] + guided)), f"{table} of {chain_id}"
        assert {chain for chain, _ in numbers} <= set(ended), f"{table} of no chain"
