"""Why chains of a run failed: the chains table of a run folder enters, its failed chains grouped by cause leave."""

from pathlib import Path

from msgspec import Struct

from pipeline.store.query import Query

EXAMPLES = 5
"""How many chains are named for each cause."""
SQL = r"""
SELECT error_type, error_stage AS stage, coalesce(arg_min(error_message, end_unix_ns), '') AS message, count(*) AS count,
       list(chain_id ORDER BY end_unix_ns, input_row, sample_index)[:$examples] AS examples
FROM chains WHERE error_type IS NOT NULL
GROUP BY error_type, error_stage, regexp_replace(coalesce(error_message, ''), '\d+(\.\d+)?', '#', 'g')
ORDER BY count DESC, min(end_unix_ns), min(input_row)
"""


class Failure(Struct, frozen=True, kw_only=True):
    """Chains that failed for one cause: the same error in the same stage, with the same message but for its numbers."""

    error_type: str
    stage: str | None
    """Null where the chain failed before its first stage."""
    message: str
    """The message of the first of them."""
    count: int
    """The number of chains."""
    examples: tuple[str, ...]
    """The first few `chain_id`s."""


def failures(run: Path) -> list[Failure]:
    """The failed chains of the run folder, most frequent cause first; raises `InputError` where it cannot be read."""
    with Query(run) as query:
        return query.rows(SQL, Failure, examples=EXAMPLES)
