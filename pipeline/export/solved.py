"""What a run has of each problem of its input: a run folder enters, problems leave in the order of the input, each with its chains.

One window of problems is in memory at a time.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

from pipeline.data.files import Record
from pipeline.data.problems import Problem
from pipeline.errors import BadRow
from pipeline.store.kept_problems import solved_problems
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

WINDOW = 8192
"""Chains in memory together, about."""


class SolvedChain(Struct, frozen=True, kw_only=True):
    """Columns of a row of the table `chains`, and the chain's thought."""

    input_row: int
    chain_id: str
    sample_index: int
    answer: str | None
    answer_text: str | None
    answer_cut: bool | None
    reference_answer: str | None
    correct: bool | None
    stop_reason: str
    error_type: str | None
    error_message: str | None
    thought_tokens: int
    engines: tuple[str, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    end_unix_ns: int
    thought: str | None = None
    """The texts of its steps; None where it has none, or nobody asks for them."""


CHAINS = f"""
WITH chosen AS (
    SELECT {", ".join(name for name in SolvedChain.__struct_fields__ if name != "thought")}, start_unix_ns
    FROM chains WHERE input_row BETWEEN $first AND $last
)"""
BARE = f"{CHAINS} SELECT * FROM chosen ORDER BY input_row, sample_index"
WITH_THOUGHTS = f"""{CHAINS}, thoughts AS (
    SELECT chain_id, string_agg(step_text, '' ORDER BY step_index) AS thought FROM steps
    WHERE chain_id IN (SELECT chain_id FROM chosen)
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
        for chain in db.rows(WITH_THOUGHTS if thoughts else BARE, SolvedChain, first=window[0][0].row, last=window[-1][0].row):
            chains.setdefault(chain.input_row, []).append(chain)
        yield from ((item, row, chains.get(item.row, [])) for item, row in window)
