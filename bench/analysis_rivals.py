"""The figures of bench/analysis.py three times: with this package, in pandas and in DuckDB. A run folder enters, a flat mapping leaves.

All three give busy, idle and overlap seconds, mean requests in flight, every line of the ledger, the path of the finished
chains by stage and segment, and p50, p90 and p99 of seven quantities by stage. Ours has more: all of it over time in 600 bins
with the causes of idleness, which the others would need a loop over events for. They have it easier too: they may take for
granted that no attempt failed, that a chain has one call at a time and that all chains finished, as is so in this trace.
"""

from pathlib import Path
from typing import Any

CALLS = (
    "chain_id",
    "engine",
    "stage",
    "purpose",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "eos_tokens",
    "submit_unix_ns",
    "end_unix_ns",
    "client_wait_s",
    "queue_time_s",
    "prefill_time_s",
    "decode_time_s",
    "time_to_first_token_s",
    "time_per_output_token_s",
)
STRINGS = ("chain_id", "engine", "stage", "purpose")
SEGMENTS = {"wait": "client_wait_s", "queue": "queue_time_s", "prefill": "prefill_time_s", "decode": "decode_time_s"}
QUANTITIES = SEGMENTS | {"first_token": "time_to_first_token_s", "e2e": "e2e", "per_output_token": "time_per_output_token_s"}
PURPOSES = {"guidance": "guidance", "fallback": "fallback", "answer": "answer", "verify": "verification", "draft": "drafted"}
"""Of the trace's stages."""
Figures = dict[str, float]


def ours(run: Path) -> Figures:
    """With this package."""
    from pipeline.analysis.study import analyse

    found = analyse(run)
    figures = {"overlap": found.occupancy.overlap_s}
    for role, engine in found.occupancy.engines.items():
        figures |= {f"busy {role}": engine.total_busy_s, f"idle {role}": sum(engine.total_idle_s.values())}
        in_flight = sum(engine.in_flight * (found.occupancy.edges_s[1:] - found.occupancy.edges_s[:-1]))
        figures[f"in flight {role}"] = float(in_flight / found.occupancy.span_s)
    for role, each in found.ledger.engines.items():
        figures |= {f"{purpose} {role}": tokens for purpose, tokens in each.output.items() if tokens}
        figures |= {f"cached {role}": each.input["cached"], f"computed {role}": each.input["computed"]}
    figures |= {f"path {stage} {segment}": seconds for (stage, segment), seconds in found.critical_path.total_s.items()}
    for stage, quantities in found.latencies.items():
        for quantity, one in quantities.items():
            figures |= {f"p50 {stage} {quantity}": one.p50, f"p90 {stage} {quantity}": one.p90, f"p99 {stage} {quantity}": one.p99}
    return figures


def in_pandas(run: Path) -> Figures:
    """In pandas; lists are counted in Arrow, as a column of ten million lists is beyond pandas."""
    import pandas as pd
    import pyarrow.parquet as pq

    calls = pq.read_table(run / "calls", columns=list(CALLS), read_dictionary=list(STRINGS)).to_pandas()
    chains = pq.read_table(run / "chains", columns=["chain_id", "start_unix_ns", "end_unix_ns"]).to_pandas().set_index("chain_id")
    calls["e2e"] = (calls["end_unix_ns"] - calls["submit_unix_ns"]) / 1e9
    span = (chains["end_unix_ns"].max() - chains["start_unix_ns"].min()) / 1e9
    figures = _pandas_busy(pd, calls, span) | _pandas_tokens(pd, pq, run, calls)
    quantiles = calls.groupby("stage", observed=True)[list(QUANTITIES.values())].quantile([0.5, 0.9, 0.99], interpolation="lower")
    for (stage, percent), row in quantiles.iterrows():
        figures |= {f"p{percent * 100:.0f} {stage} {name}": row[column] for name, column in QUANTITIES.items() if pd.notna(row[column])}
    return figures | _pandas_path(calls, chains)


def _pandas_busy(pd: Any, calls: Any, span: float) -> Figures:
    figures, blocks = {}, []
    for role, mine in calls.groupby("engine", observed=True):
        mine = mine[["submit_unix_ns", "end_unix_ns"]].sort_values("submit_unix_ns")
        latest = mine["end_unix_ns"].cummax()
        block = (mine["submit_unix_ns"] > latest.shift(fill_value=0)).cumsum().to_numpy()
        merged = pd.DataFrame({"since": mine["submit_unix_ns"], "until": latest}).groupby(block).agg({"since": "min", "until": "max"})
        busy = (merged["until"] - merged["since"]).sum() / 1e9
        figures |= {f"busy {role}": busy, f"idle {role}": span - busy}
        figures[f"in flight {role}"] = float((mine["end_unix_ns"] - mine["submit_unix_ns"]).sum() / 1e9 / span)
        blocks += [pd.DataFrame({"at": merged["since"], "by": 1}), pd.DataFrame({"at": merged["until"], "by": -1})]
    events = pd.concat(blocks).sort_values("at", kind="stable")
    return figures | {"overlap": float(events["at"].diff().shift(-1)[events["by"].cumsum() > 1].sum() / 1e9)}


def _pandas_tokens(pd: Any, pq: Any, run: Path, calls: Any) -> Figures:
    import pyarrow.compute as pc

    steps = pq.read_table(run / "steps", columns=["decision", "draft_tokens", "draft_tokens_wasted", "candidate_tokens"])
    sums = calls.groupby(["engine", "stage"], observed=True)[["output_tokens", "eos_tokens", "input_tokens", "cached_input_tokens"]].sum()
    columns = {
        "decision": steps["decision"].to_pandas(),
        "drafted": steps["draft_tokens"].to_pandas(),
        "committed": pc.subtract(steps["draft_tokens"], steps["draft_tokens_wasted"]).to_pandas(),
        "kept": _list_sums(pd, pc, steps["candidate_tokens"], pc.list_flatten(steps["candidate_tokens"])),
    }
    by_decision = pd.DataFrame(columns).groupby("decision")[["drafted", "committed", "kept"]].sum()
    return _ledger(*(dict(zip(each.index, map(tuple, each.to_numpy().tolist()), strict=True)) for each in (sums, by_decision)))


def _list_sums(pd: Any, pc: Any, lists: Any, values: Any) -> Any:
    sums = pd.Series(values.to_numpy()).groupby(pc.list_parent_indices(lists).to_numpy()).sum()
    return sums.reindex(range(len(lists)), fill_value=0)


def _pandas_path(calls: Any, chains: Any) -> Figures:
    origin = chains["start_unix_ns"].min()
    ready = calls["submit_unix_ns"] - (calls["client_wait_s"] * 1e9).round().astype("int64")
    calls = calls.assign(ready=ready).sort_values(["chain_id", "end_unix_ns"])
    before = (calls["end_unix_ns"] - origin).groupby(calls["chain_id"], observed=True).shift()  # small numbers: it makes floats of them
    before = before.fillna(calls["chain_id"].map(chains["start_unix_ns"] - origin).astype("float64"))
    calls["between"] = (calls["ready"] - origin - before) / 1e9
    calls["transfer"] = calls["e2e"] - calls["queue_time_s"] - calls["prefill_time_s"] - calls["decode_time_s"]
    parts = {**SEGMENTS, "between": "between", "transfer": "transfer"}
    figures = {}
    for stage, row in calls.groupby("stage", observed=True)[list(parts.values())].sum().iterrows():
        figures |= {f"path {stage} {segment}": row[column] for segment, column in parts.items()}
    last = calls.groupby("chain_id", observed=True)["end_unix_ns"].max()
    return figures | {"path (end) between": float((chains["end_unix_ns"] - last).sum() / 1e9)}


def _ledger(calls: dict[tuple[str, str], tuple[float, ...]], steps: dict[str, tuple[float, ...]]) -> Figures:
    """Lines of the ledger out of sums by engine and stage, and of steps by decision."""
    figures: Figures = {}
    for (role, stage), (sampled, ended, read, cached) in calls.items():
        kept = sampled if stage in ("draft", "verify") else sampled - ended
        lines = {PURPOSES[stage]: kept, "cut": sampled - kept, "cached": cached, "computed": read - cached}
        for line, tokens in lines.items():
            figures[f"{line} {role}"] = figures.get(f"{line} {role}", 0) + tokens
    drafted, cut = figures.pop("drafted draft"), sum(drafted - kept for drafted, _, kept in steps.values())
    _, committed, kept = steps["accepted"]
    lines = {"committed": committed, "not_chosen": kept - committed, "cut": cut, "rejected": drafted - kept - cut}
    return {**figures, **{f"{line} draft": tokens for line, tokens in lines.items()}}


def in_duckdb(run: Path) -> Figures:
    """In DuckDB, on two threads."""
    import duckdb

    base = duckdb.connect()
    base.execute("SET threads = 2; SET preserve_insertion_order = false; SET enable_progress_bar = false")
    for table in ("calls", "steps", "chains"):
        base.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{run}/{table}/*.parquet')")
    [(span,)] = base.execute("SELECT (max(end_unix_ns) - min(start_unix_ns)) / 1e9 FROM chains").fetchall()
    figures: Figures = {}
    base.execute(_BLOCKS)
    for role, busy, in_flight in base.execute(_BUSY).fetchall():
        figures |= {f"busy {role}": float(busy), f"idle {role}": span - float(busy), f"in flight {role}": float(in_flight) / span}
    [(overlap,)] = base.execute(_OVERLAP).fetchall()
    figures["overlap"] = float(overlap)
    sums = {(role, stage): tuple(map(float, row)) for role, stage, *row in base.execute(_TOKENS).fetchall()}
    figures |= _ledger(sums, {decision: tuple(map(float, row)) for decision, *row in base.execute(_STEPS).fetchall()})
    sources = ["(end_unix_ns - submit_unix_ns) / 1e9" if column == "e2e" else column for column in QUANTITIES.values()]
    columns = ", ".join(f"quantile_disc({source}, [0.5, 0.9, 0.99])" for source in sources)
    for stage, *found in base.execute(f"SELECT stage, {columns} FROM calls GROUP BY stage").fetchall():
        for name, values in zip(QUANTITIES, found, strict=True):
            figures |= {f"p{p} {stage} {name}": value for p, value in zip((50, 90, 99), values or (), strict=bool(values))}
    segments = (*SEGMENTS, "transfer", "between")
    for stage, *seconds in base.execute(_PATH).fetchall():
        figures |= {f"path {stage} {segment}": float(each) for segment, each in zip(segments, seconds, strict=True)}
    [(rest,)] = base.execute(_REST).fetchall()
    return figures | {"path (end) between": float(rest)}


_BLOCKS = """
CREATE TABLE blocks AS
WITH ordered AS (
    SELECT engine, submit_unix_ns AS since, end_unix_ns AS until,
           max(end_unix_ns) OVER (PARTITION BY engine ORDER BY submit_unix_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
    FROM calls),
marked AS (
    SELECT *, sum(CASE WHEN since <= latest THEN 0 ELSE 1 END) OVER (PARTITION BY engine ORDER BY since ROWS UNBOUNDED PRECEDING) AS block
    FROM ordered)
SELECT engine, block, min(since) AS since, max(until) AS until FROM marked GROUP BY engine, block
"""
_BUSY = """
SELECT engine, sum(until - since) / 1e9, any_value(flight)
FROM blocks JOIN (SELECT engine, sum(end_unix_ns - submit_unix_ns) / 1e9 AS flight FROM calls GROUP BY engine) USING (engine)
GROUP BY engine
"""
_OVERLAP = """
WITH events AS (SELECT since AS instant, 1 AS sign FROM blocks UNION ALL SELECT until, -1 FROM blocks),
states AS (
    SELECT instant, sum(sign) OVER (ORDER BY instant ROWS UNBOUNDED PRECEDING) AS busy, lead(instant) OVER (ORDER BY instant) AS following
    FROM events)
SELECT sum(following - instant) / 1e9 FROM states WHERE busy > 1
"""
_TOKENS = """
SELECT engine, stage, sum(output_tokens), sum(eos_tokens), sum(input_tokens), sum(cached_input_tokens)
FROM calls GROUP BY engine, stage
"""
_STEPS = """
SELECT decision, sum(draft_tokens), sum(draft_tokens - draft_tokens_wasted), coalesce(sum(list_sum(candidate_tokens)), 0)
FROM steps GROUP BY decision
"""
_PATH = """
WITH ordered AS (
    SELECT stage, submit_unix_ns, end_unix_ns, client_wait_s, queue_time_s, prefill_time_s, decode_time_s, start_unix_ns,
           lag(calls.end_unix_ns) OVER (PARTITION BY chain_id ORDER BY calls.end_unix_ns) AS before
    FROM calls JOIN (SELECT chain_id, start_unix_ns FROM chains) USING (chain_id))
SELECT stage, sum(client_wait_s), sum(queue_time_s), sum(prefill_time_s), sum(decode_time_s),
       sum((end_unix_ns - submit_unix_ns) / 1e9 - queue_time_s - prefill_time_s - decode_time_s),
       sum(submit_unix_ns - coalesce(before, start_unix_ns)) / 1e9 - sum(client_wait_s)
FROM ordered GROUP BY stage
"""
_REST = """
SELECT sum(end_unix_ns - last) / 1e9
FROM chains JOIN (SELECT chain_id, max(end_unix_ns) AS last FROM calls GROUP BY chain_id) USING (chain_id)
"""
