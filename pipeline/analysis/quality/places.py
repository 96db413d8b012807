"""Chains by the problems that they solved: the table `places`, which queries about the problems of runs join with."""

from pipeline.store.query import Query

SQL = """
CREATE TEMP TABLE solved AS
    SELECT problem_id, row_number() OVER (ORDER BY problem_id) - 1 AS problem
    FROM (SELECT DISTINCT problem_id FROM chains WHERE finished OR counted IS NOT NULL);
CREATE TEMP TABLE places AS SELECT run, chain_id, problem FROM chains JOIN solved USING (problem_id) WHERE finished;
"""


def place_chains(db: Query) -> None:
    """Make the tables `solved`, with a number for each problem that has a chain that finished or counts, in the order of their ids, and
    `places`, with the problem of each finished chain by `run` and `chain_id`."""
    db.execute(SQL)
