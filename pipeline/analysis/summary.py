"""The figures of a run: the trace files of a run folder and its `run.json` enter, one frozen `Summary` leaves.

Calls and steps are streamed; of each chain a few bytes are held (`chain_rows`). Works on a run that is in progress or cut short: it counts
what is on disk, in parts or write-ahead files. Nothing is written.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.analysis.arrays import Array, Names
from pipeline.analysis.capabilities import PURPOSE_FROM, read_steps, with_purpose
from pipeline.analysis.chain_rows import ChainCounts, ChainRows
from pipeline.analysis.headline.decided import decided
from pipeline.analysis.headline.figures import EngineSummary, StageSummary, Summary
from pipeline.analysis.order import order_correlation
from pipeline.analysis.quality.option_mass import option_mass, read_masses
from pipeline.analysis.quality.samples import GradedChains, sample_statistics
from pipeline.analysis.time.timeline import Timeline, timeline
from pipeline.analysis.time.work import read_work
from pipeline.engine import EngineStatistics
from pipeline.errors import InputError
from pipeline.store.events import UNFINISHED
from pipeline.store.query import Query
from pipeline.store.read import read_batches
from pipeline.store.run_file import FILE, RunFile

TABLES = ("calls", "steps", "chains")
RECOMPUTED, MODEL = "recomputed_input_tokens", "response_model"


def summarize(run: Path) -> Summary:
    """The summary of the run folder `run`; raises `InputError` when that is not a run folder or its trace cannot be read."""
    if not any((run / table).is_dir() for table in TABLES) and not (run / FILE).is_file():
        raise InputError(str(run), f"is not a run folder; expected {', '.join(TABLES[:2])} and {TABLES[2]} in it")
    file = RunFile.read_known(run)
    finishing = file.plan.finishing
    rows = ChainRows(run)
    wall_s = _wall_s(file, rows)
    chains, steps, calls = ChainCounts(rows), _read_steps(run, finishing), _Calls(run)
    with Query(run) as db:
        times = timeline(read_work(db))
    tokens = int(sum(totals["output_tokens"] for totals in calls.by_engine.values()))
    kept = _kept(file, chains, steps, calls)
    return Summary(
        run=run.resolve().name,
        status=None if file.status == "unknown" else file.status,
        **decided(file),
        batch_size=file.batch_size or None,
        admission=file.admission or None,
        pauses=file.totals.pauses,
        order=file.order or None,
        order_correlation=order_correlation(run) if file.order not in ("", "input") else None,
        wall_time_s=wall_s,
        **_chain_counts(chains, wall_s),
        **_sample_counts(run, chains.graded),
        **_step_counts(steps, wall_s),
        draft_tokens=calls.drafted,
        wasted_draft_tokens=calls.drafted - steps["kept_draft_tokens"],
        option_mass=option_mass(read_masses(run)),
        output_tokens=tokens,
        output_tokens_per_s=_over(tokens, wall_s),
        kept_tokens=kept,
        kept_tokens_per_s=None if kept is None else _over(kept, wall_s),
        span_s=times.span_s,
        overlap_s=times.overlap_s,
        overlap_share=times.overlap_share,
        tail_time_s=times.tail_s,
        replicas=times.imbalance,
        engines={name: _engine(calls, times, name, wall_s, file.engine_statistics.get(name)) for name in calls.by_engine},
        stages={name: _stage(calls.by_stage[name], times, name) for name in _in_order(calls.by_stage, file)},
        error_examples=_error_examples(run),
    )


def _kept(run: RunFile, chains: ChainCounts, steps: Counter[str], calls: "_Calls") -> int | None:
    """Tokens of the thoughts and answers of the chains that are done. What a stage samples that ends its chain is an answer, but for the
    thought in it."""
    if not run.plan.engines:
        return None
    answers = sum(totals["output_tokens"] for stage, totals in calls.by_stage.items() if stage in run.plan.finishing)
    return chains.done_thought_tokens + int(answers) - steps["finished_thought_tokens"]


def _in_order(stages: Iterable[str], run: RunFile) -> list[str]:
    """The stages in the order of the graph; those that are not in it last."""
    places = {node.name: place for place, node in enumerate(run.plan.stages())}
    return sorted(stages, key=lambda name: places.get(name, len(places)))


class _Calls:
    """Totals over the calls of each engine and of each stage."""

    SUMS = ("input_tokens", "cached_input_tokens", "output_tokens", "client_wait_s", "queue_time_s")

    def __init__(self, run: Path) -> None:
        self.by_engine: dict[str, Counter[str]] = {}
        self.by_stage: dict[str, Counter[str]] = {}
        self.models: dict[str, Counter[str]] = {}
        """Calls by the model that answered, by engine."""
        self.drafted = 0
        """Tokens that were sampled for drafts."""
        read = ["engine", "stage", "error_type", "attempt", *PURPOSE_FROM, *self.SUMS]
        for batch in map(with_purpose, read_batches(run, "calls", read, [RECOMPUTED, MODEL, "purpose"])):
            self._add_models(batch)
            drafts = pc.equal(batch.column("purpose"), "draft")
            self.drafted += pc.sum(batch.column("output_tokens").filter(drafts)).as_py() or 0
            columns = {name: pc.fill_null(batch.column(name), 0).to_numpy(zero_copy_only=False) for name in self.SUMS}
            columns["retried_calls"] = batch.column("attempt").to_numpy() > 0
            columns["failed_calls"] = batch.column("error_type").is_valid().to_numpy(zero_copy_only=False)
            columns["calls"] = np.ones(batch.num_rows, int)
            columns["said_calls"] = batch.column("cached_input_tokens").is_valid().to_numpy(zero_copy_only=False)
            columns["said_tokens"] = columns["input_tokens"] * columns["said_calls"]
            if RECOMPUTED in batch.schema.names:
                columns[RECOMPUTED] = pc.fill_null(batch.column(RECOMPUTED), 0).to_numpy()
                columns["stated_calls"] = batch.column(RECOMPUTED).is_valid().to_numpy(zero_copy_only=False)
            self._add(self.by_engine, batch.column("engine"), columns)
            self._add(self.by_stage, batch.column("stage"), columns)

    def _add_models(self, batch: pa.RecordBatch) -> None:
        if MODEL not in batch.schema.names or batch.column(MODEL).null_count == batch.num_rows:
            return
        found = pa.Table.from_batches([batch]).group_by(["engine", MODEL]).aggregate([([], "count_all")])
        for row in found.to_pylist():
            if row[MODEL] is not None:
                self.models.setdefault(row["engine"], Counter())[row[MODEL]] += row["count_all"]

    @staticmethod
    def _add(totals: dict[str, Counter[str]], keys: Any, columns: dict[str, Array]) -> None:
        names = Names()
        codes = names.codes(keys)
        for column, values in columns.items():
            for name, total in zip(names, np.bincount(codes, values, len(names)).tolist(), strict=True):
                totals.setdefault(name, Counter())[column] += total


def _engine(found: _Calls, times: Timeline, name: str, wall_s: float | None, own: EngineStatistics | None) -> EngineSummary:
    totals = found.by_engine[name]
    time = times.engines[name]
    speculation = own.speculation if own else None
    calls, tokens, cached, output = (int(totals[key]) for key in ("calls", "input_tokens", "cached_input_tokens", "output_tokens"))
    says = totals["said_calls"] > 0
    return EngineSummary(
        calls=calls,
        input_tokens=tokens,
        answered_by=dict(found.models.get(name, {})),
        cached_input_tokens=cached if says else None,
        cached_share=_over(cached, totals["said_tokens"]) if says else None,
        recomputed_input_tokens=int(totals[RECOMPUTED]) if totals["stated_calls"] else None,
        output_tokens=output,
        output_tokens_per_s=_over(output, wall_s),
        busy_s=time.busy_s,
        busy_share=time.busy_share,
        mean_in_flight=time.mean_in_flight,
        retried_calls=int(totals["retried_calls"]),
        restarts=own.restarts if own else None,
        speculated_tokens=speculation.draft_tokens if speculation else None,
        accepted_speculated_tokens=speculation.accepted_tokens if speculation else None,
        speculations=speculation.drafts if speculation else None,
    )


def _stage(totals: Counter[str], times: Timeline, name: str) -> StageSummary:
    calls, failed, tokens, output = (int(totals[key]) for key in ("calls", "failed_calls", "input_tokens", "output_tokens"))
    return StageSummary(calls, failed, tokens, output, times.stages[name].in_flight_s, totals["client_wait_s"] + totals["queue_time_s"])


def _read_steps(run: Path, finishing: Collection[str]) -> Counter[str]:
    """Counts over all steps; `finishing` are the stages that end a chain."""
    totals: Counter[str] = Counter()
    columns = ["stage", "decision", "verify_kind", "step_token_ids", "draft_tokens", "draft_tokens_wasted"]
    for batch in read_steps(run, columns):
        length = pc.list_value_length(batch.column("step_token_ids")).to_numpy()
        totals["steps"] += batch.num_rows
        totals["verified_steps"] += batch.num_rows - batch.column("verify_kind").null_count
        accepted = pc.equal(batch.column("decision"), "accepted").to_numpy(zero_copy_only=False)
        totals["accepted_steps"] += int(accepted.sum())
        totals["fallback_steps"] += pc.sum(pc.equal(batch.column("decision"), "fallback")).as_py() or 0
        totals["thought_tokens"] += int(length.sum())
        totals["drafted"] += int(length[accepted].sum())
        ends = pc.is_in(pc.cast(batch.column("stage"), pa.string()), pa.array(finishing, pa.string())).to_numpy(zero_copy_only=False)
        totals["finished_thought_tokens"] += int(length[ends].sum())
        kept = pc.subtract(batch.column("draft_tokens"), batch.column("draft_tokens_wasted"))
        totals["kept_draft_tokens"] += pc.sum(kept).as_py() or 0
    return totals


def _step_counts(totals: Counter[str], wall_s: float | None) -> dict[str, Any]:
    counted = ("steps", "verified_steps", "accepted_steps", "fallback_steps", "thought_tokens")
    return {name: totals[name] for name in counted} | {
        "steps_per_s": _over(totals["steps"], wall_s),
        "acceptance_rate": _over(totals["accepted_steps"], totals["verified_steps"]),
        "fallback_rate": _over(totals["fallback_steps"], totals["verified_steps"]),
        "draft_share": _over(totals["drafted"], totals["thought_tokens"]),
    }


def _error_examples(run: Path) -> dict[str, str]:
    examples: dict[str, str] = {}
    for batch in read_batches(run, "chains", ["error_type", "error_message"]):
        for row in batch.filter(batch.column("error_type").is_valid()).to_pylist():
            examples.setdefault(row["error_type"], row["error_message"] or "")
    return examples


def _chain_counts(chains: ChainCounts, wall_s: float | None) -> dict[str, Any]:
    failed, cancelled = (chains.stop_reasons[name] for name in UNFINISHED)
    done = chains.number - failed - cancelled
    graded, correct = len(chains.graded.correct), int(chains.graded.correct.sum())
    return {
        "problems": chains.problems,
        "chains": chains.number,
        "done": done,
        "failed": failed,
        "cancelled": cancelled,
        "graded": graded,
        "failed_as_wrong": chains.failed_as_wrong,
        "correct": correct,
        "grading_errors": dict(chains.grading_errors.most_common()),
        "accuracy": _over(correct, graded),
        "problems_per_s": _over(chains.done_problems, wall_s),
        "chains_per_s": _over(done, wall_s),
        "stop_reasons": dict(chains.stop_reasons.most_common()),
        "errors": dict(chains.errors.most_common()),
    }


def _sample_counts(run: Path, graded: GradedChains) -> dict[str, Any]:
    found = sample_statistics(run, graded)
    return {
        "accuracy_interval": found.interval,
        "samples": found.samples,
        "pass_at": {str(k): share for k, share in found.pass_at.items()},
        "majority_accuracy": found.majority,
    }


def _wall_s(file: RunFile, rows: ChainRows) -> float | None:
    if file.wall_time_s:
        return file.wall_time_s
    started, ended = file.started_unix_ns or None, file.ended_unix_ns
    if started is None or ended is None:
        start, end = rows.times()
        if len(end):
            started, ended = int(start[0]), int(end[-1])
    return None if started is None or ended is None or ended <= started else (ended - started) / 1e9


def _over(over: float, under: float | None) -> float | None:
    return over / under if under else None
