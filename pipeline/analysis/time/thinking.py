"""How long chains think and wait: a run folder enters, seconds for each problem or chain leave.

The thinking stage is what SCoT 4.2 times: from the chain's first call to the end of its thought, without the answer. Seconds in which
several calls of one kind are under way at once count once.
"""

from collections.abc import Sequence

from msgspec import Struct

from pipeline.analysis.time.work import READY
from pipeline.graph.plan import Plan
from pipeline.store.events import UNFINISHED
from pipeline.store.query import Query

KINDS = ("drafting", "verification", "target", "answer")
"""What a call's time counts as: drafting, and what a drafting engine writes in place of the target; choosing and scoring; thinking by other
engines, and what they answer before the thought is over; or the answer."""


class Thinking(Struct, frozen=True):
    """Seconds of thinking, added up over the finished chains of a problem."""

    problem_id: str
    seconds: float = 0.0
    """From the chain's first call to the end of its thought."""
    drafting: float = 0.0
    """Seconds in which a call of this kind was waiting or at an engine; the next three likewise."""
    verification: float = 0.0
    target: float = 0.0
    answer: float = 0.0


class _Queued(Struct, frozen=True):
    chain_id: str
    seconds: float


def read_thinking(db: Query, plan: Plan, among: str = "chains") -> list[Thinking]:
    """The thinking about each problem that has a finished chain; `among`: a table whose `chain_id` are the chains that are asked for.

    Of a response that holds thought and answer, the thought's part of the decode time is that of its tokens.
    """
    whole = [node.name for node in plan.stages() if node.spec.finishes and not node.spec.answers]
    drafters = sorted(set(plan.drafters) - {node.spec.role for node in plan.stages() if node.spec.answers})
    return db.rows(_THINKING.format(among=among), Thinking, whole=whole, drafters=drafters)


def _merged(spans: str, keys: str) -> str:
    """The SQL of the `spans`, from `since` to `until`, merged where they touch or overlap, for each of the values of the columns `keys`."""
    return f"""
        SELECT {keys}, since, coalesce(lead(before) OVER (PARTITION BY {keys} ORDER BY since), last) AS until
        FROM (
            SELECT {keys}, since, max(until) OVER (PARTITION BY {keys}) AS last,
                   max(until) OVER (PARTITION BY {keys} ORDER BY since ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM {spans})
        WHERE before IS NULL OR since > before"""


_THINKING = f"""
WITH written AS (
    SELECT chain_id, step_index, len(step_token_ids) AS thought FROM steps WHERE list_contains($whole::VARCHAR[], stage)),
timed AS (
    SELECT chain_id, {READY} AS since, end_unix_ns AS until,
           CASE WHEN purpose = 'draft' OR purpose = 'write' AND list_contains($drafters::VARCHAR[], engine) THEN 'drafting'
                WHEN purpose = 'judge' THEN 'verification' WHEN purpose = 'answer' THEN 'answer' ELSE 'target' END AS kind,
           CASE WHEN list_contains($whole::VARCHAR[], stage) AND output_tokens > 0
                THEN (coalesce(decode_time_s * 1e9, until - since) * (1 - least(coalesce(thought, 0) / output_tokens, 1)))::BIGINT
                ELSE 0 END AS answering
    FROM calls LEFT JOIN written USING (chain_id, step_index)),
spans AS (
    SELECT chain_id, kind, since, until - answering AS until FROM timed
    UNION ALL
    SELECT chain_id, 'answer', until - answering, until FROM timed WHERE answering > 0),
busy AS (
    SELECT chain_id, kind, sum(until - since) / 1e9 AS seconds FROM ({_merged("spans", "chain_id, kind")}) GROUP BY ALL),
kinds AS (
    SELECT chain_id, {", ".join(f"sum(seconds) FILTER (kind = '{kind}') AS {kind}" for kind in KINDS)} FROM busy GROUP BY chain_id),
thoughts AS (SELECT chain_id, (max(until) FILTER (kind <> 'answer') - min(since)) / 1e9 AS seconds FROM spans GROUP BY chain_id),
finished AS (
    SELECT chain_id, problem_id, stop_reason FROM chains WHERE chain_id IN (SELECT chain_id FROM {{among}})
    QUALIFY row_number() OVER (PARTITION BY chain_id ORDER BY end_unix_ns DESC) = 1)
SELECT problem_id, {", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in ("seconds", *KINDS))}
FROM finished LEFT JOIN thoughts USING (chain_id) LEFT JOIN kinds USING (chain_id)
WHERE stop_reason NOT IN {UNFINISHED} GROUP BY problem_id ORDER BY problem_id
"""


def queued_s(db: Query, chains: Sequence[str]) -> dict[str, float]:
    """Seconds in which at least one call of each of these `chains` was queued, here or at an engine that reports it."""
    spans = f"""(
        SELECT chain_id, {READY} AS since, submit_unix_ns + (coalesce(queue_time_s, 0) * 1e9)::BIGINT AS until
        FROM calls WHERE chain_id IN (SELECT unnest($chains::VARCHAR[])))"""
    sums = f"SELECT chain_id, sum(until - since) / 1e9 AS seconds FROM ({_merged(spans, 'chain_id')}) GROUP BY ALL"
    rows = db.rows(sums, _Queued, chains=list(chains))
    return dict.fromkeys(chains, 0.0) | {each.chain_id: each.seconds for each in rows}
