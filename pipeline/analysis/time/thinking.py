"""How long chains think: a run folder enters, seconds for each problem leave.

The thinking stage is what SCoT 4.2 times: from the chain's first call to the end of its thought, without the answer.
"""

from msgspec import Struct

from pipeline.analysis.time.work import READY, Axis
from pipeline.graph.plan import Plan
from pipeline.store.query import Query
from pipeline.store.rows import UNFINISHED
from pipeline.store.run_file import RunFile


class Thinking(Struct, frozen=True):
    """Thinking about a problem."""

    problem_id: str
    seconds: float = 0.0
    """From a chain's first call to the end of its thought, added up over the finished chains."""


def read_thinking(db: Query, plan: Plan, among: str = "chains") -> list[Thinking]:
    """The thinking about each problem that has a finished chain; `among`: a table whose `chain_id` are the chains that are asked for.

    If a response holds thought and answer, the decode time is split between them by tokens.
    """
    whole = [node.name for node in plan.stages() if node.spec.finishes and not node.spec.answers]
    axis = Axis(0, RunFile.read(db.folders[0]).pauses)
    return db.rows(_THINKING.format(among=among, since=axis.sql("since"), until=axis.sql("until - answering")), Thinking, whole=whole)


_THINKING = f"""
WITH written AS (
    SELECT chain_id, step_index, len(step_token_ids) AS thought FROM steps WHERE list_contains($whole::VARCHAR[], stage)),
timed AS (
    SELECT chain_id, purpose, {READY} AS since, end_unix_ns AS until,
           CASE WHEN list_contains($whole::VARCHAR[], stage) AND output_tokens > 0
                THEN (coalesce(decode_time_s * 1e9, until - since) * (1 - least(coalesce(thought, 0) / output_tokens, 1)))::BIGINT
                ELSE 0 END AS answering
    FROM calls LEFT JOIN written USING (chain_id, step_index)),
thoughts AS (
    SELECT chain_id, (max({{until}}) FILTER (purpose <> 'answer') - min({{since}})) / 1e9 AS seconds FROM timed GROUP BY chain_id),
finished AS (
    SELECT chain_id, problem_id, stop_reason FROM chains WHERE chain_id IN (SELECT chain_id FROM {{among}})
    QUALIFY row_number() OVER (PARTITION BY chain_id ORDER BY end_unix_ns DESC) = 1)
SELECT problem_id, coalesce(sum(seconds), 0) AS seconds FROM finished LEFT JOIN thoughts USING (chain_id)
WHERE stop_reason NOT IN {UNFINISHED} GROUP BY problem_id ORDER BY problem_id
"""
