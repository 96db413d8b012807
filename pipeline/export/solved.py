"""What a run has of each problem of its input: a run folder enters, problems leave in the order of the input, each with its chains.

One window of problems is in memory at a time.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pipeline.data.files import Record
from pipeline.data.problems import Problem
from pipeline.errors import BadRow
from pipeline.store.kept_problems import solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile

WINDOW = 8192
"""Chains in memory together, about."""


class SolvedChain(ChainRow, frozen=True):
    """A row of the table `chains`, and the chain's thought."""

    thought: str | None = None
    """The texts of its steps; None where it has none, or nobody asks for them."""


CHAINS = """
WITH chosen AS (FROM chains WHERE input_row BETWEEN $first AND $last), thoughts AS (
    SELECT chain_id, string_agg(step_text, '' ORDER BY step_index) AS thought FROM steps
    WHERE $thoughts AND chain_id IN (SELECT chain_id FROM chosen)
        AND end_unix_ns BETWEEN (SELECT min(start_unix_ns) FROM chosen) AND (SELECT max(end_unix_ns) FROM chosen)
    GROUP BY chain_id
)
SELECT * FROM chosen LEFT JOIN thoughts USING (chain_id) ORDER BY input_row, sample_index"""


def solved(run: Path, record: RunFile, db: Query, *, thoughts: bool = True) -> Iterator[tuple[Problem | BadRow, Record, list[SolvedChain]]]:
    """Each problem of the run that `record` is about, its row of the input, and its chains that are over in the order of their samples.

    thoughts: whether the chains have their `thought`. Raises `InputError` where a table cannot be read.
    """
    items = solved_problems(run, record).with_records()
    while window := list(islice(items, max(1, WINDOW // record.input.samples))):
        chains: dict[int, list[SolvedChain]] = {}
        for chain in db.rows(CHAINS, SolvedChain, first=window[0][0].row, last=window[-1][0].row, thoughts=thoughts):
            chains.setdefault(chain.input_row, []).append(chain)
        yield from ((item, row, chains.get(item.row, [])) for item, row in window)
