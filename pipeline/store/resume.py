"""Resuming a run: its folder enters, changed options are refused by name, and the chains that are over or were begun leave.

Every table is read once, in batches. Of a chain that is over its place and a hash of its id are held in memory; of one that was
begun its calls and steps, which are at most as many chains as were live when the run ended.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from pipeline.engine import Usage
from pipeline.errors import InputError
from pipeline.store.resume_state import NO_STAGE, ResumedCall, ResumedChain, ResumeMismatch, ResumeState
from pipeline.store.rows import MEASURED_IN, confidences, counted
from pipeline.store.run_file import RunFile
from pipeline.store.store import REMEDY, RunStore, read_batches

Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
# Columns that are read of `chains` and `calls`.
OUTCOME = ("stop_reason", "correct", "reference_answer", "error_type", "error_stage", "steps", "calls")
CHAIN = ("chain_id", "input_row", "sample_index", *OUTCOME)
USAGE = ("input_tokens", "cached_input_tokens", "output_tokens")
ANSWER = ("output_token_ids", "finish_reason", "stop_reason", "option_logprobs", "scored_logprobs")
RECORDED = ("chain_id", "error_type", "request_id", "prompt_digest", "client_wait_s", *USAGE, *ANSWER, *MEASURED_IN.values())
CALL = ("engine", "submit_unix_ns", "end_unix_ns", *RECORDED)
FAILED = ("chain_id", "error_type")
MISMATCH = ResumeMismatch.__name__


def take_again(stop_reason: str, retry_failed: bool) -> bool:
    """Whether a chain with this `stop_reason` is to be solved further or again."""
    return stop_reason == "cancelled" or (retry_failed and stop_reason == "error")


def read_resume_state(folder: Path, samples: int, retry_failed: bool, sessions: Sequence[int]) -> ResumeState:
    """What earlier `sessions`, which started at these instants, left in the folder of a run of `samples` chains for each problem.

    Raises `InputError` where its tables cannot be read.
    """
    resume_state = ResumeState(decisions=Counter(), errors=Counter())
    over, needed = _read_chains(folder, resume_state, samples, retry_failed)
    there = {"steps": _read_steps(folder, resume_state, over), "calls": _read_calls(folder, resume_state, over, sessions)}
    for table, rows in there.items():
        if lacking := max(0, needed[table] - rows):
            raise InputError(str(folder / table), f"lacks {lacking:,} of the rows that `chains` counts; {REMEDY}")
    return resume_state


def drop_unfinished(folder: Path, retry_failed: bool) -> None:
    """Remove the rows of chains that are to be solved again from the table `chains`."""

    def kept(rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array([not take_again(each, retry_failed) for each in rows["stop_reason"].to_pylist()], pa.bool_()))

    RunStore(folder).rewrite("chains", kept)


def forget_mismatched(folder: Path, run: RunFile) -> None:
    """Remove all rows of the chains that failed because a resumed step came out differently, so that they begin anew.

    Rows that rest on others go first, and the `run.json` of a finished run says before that it was interrupted, so that the run can
    be resumed if this is cut short.
    """
    chains = [
        row["chain_id"] for batch in read_batches(folder, "chains", FAILED) for row in batch.to_pylist() if row["error_type"] == MISMATCH
    ]
    if not chains:
        return
    if run.status == "finished":
        structs.replace(run, status="interrupted").write(folder)
    ids, store = pa.array(chains, pa.string()), RunStore(folder)

    def kept(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.invert(pc.is_in(rows["chain_id"], ids)))

    for table in ("rewards", "chains", "steps", "calls"):
        store.rewrite(table, kept)


def _read_chains(folder: Path, resume_state: ResumeState, samples: int, retry_failed: bool) -> tuple[Hashes, Counter[str]]:
    """Add the table `chains` to `resume_state`; the sorted hashes of the `chain_id`s of chains that are over, and how many steps and calls
    these count."""
    over, places, needed = array("q"), array("q"), Counter[str]()
    for batch in read_batches(folder, "chains", CHAIN):
        for row in batch.to_pylist():
            if take_again(row["stop_reason"], retry_failed):
                continue
            if row["input_row"] < 1 or row["sample_index"] >= samples:
                what = f"{row['chain_id']!r} is sample {row['sample_index']} of row {row['input_row']}, in a run of {samples} a row, from 1"
                raise InputError(str(folder / "chains"), f"has a chain that is not part of the run: {what}")
            places.append((row["input_row"] - 1) * samples + row["sample_index"])
            over.append(hash(row["chain_id"]))
            if row["error_type"] != MISMATCH:  # it has steps of both sessions
                needed.update(steps=row["steps"], calls=row["calls"])
            if row["stop_reason"] == "error":
                resume_state.failed += 1
                resume_state.errors[row["error_type"], row["error_stage"] or NO_STAGE] += 1
            resume_state.done += row["stop_reason"] != "error"
            verdict = counted(row["correct"], row["stop_reason"], row["reference_answer"])
            resume_state.graded += verdict is not None
            resume_state.correct += bool(verdict)
    resume_state.over = array("q", sorted(places))
    return np.sort(np.frombuffer(over, np.int64)) if over else np.empty(0, np.int64), needed


def _read_steps(folder: Path, resume_state: ResumeState, over: Hashes) -> int:
    """Add the table `steps`; the number of its rows of chains that are over, without guidance, which no chain counts."""
    rows = 0
    for batch in read_batches(folder, "steps", ["chain_id", "decision", "step_token_ids"]):
        for count in pc.value_counts(batch.column("decision")).to_pylist():
            resume_state.decisions[count["values"]] += count["counts"]
        begun = _begun(batch, over)
        rows += _counted(batch) - _counted(begun)
        for row in begun.to_pylist():
            _resumed(resume_state, row).steps.append(tuple(row["step_token_ids"]))
    return rows


def _read_calls(folder: Path, resume_state: ResumeState, over: Hashes, sessions: Sequence[int]) -> int:
    """Add the table `calls`; the number of its rows of chains that are over."""
    rows = 0
    for batch in read_batches(folder, "calls", CALL):
        for sums in pa.Table.from_batches([batch]).group_by("engine").aggregate([("output_tokens", "sum")]).to_pylist():
            role, sampled = sums["engine"], resume_state.output_tokens
            sampled[role] = sampled.get(role, 0) + sums["output_tokens_sum"]
        ended = pc.max(batch.column("end_unix_ns")).as_py() or 0
        resume_state.last_call_unix_ns = max(ended, resume_state.last_call_unix_ns or 0) or None
        begun = _begun(batch, over)
        rows += batch.num_rows - begun.num_rows
        for row in begun.to_pylist():
            resumed, submit = _resumed(resume_state, row), row["submit_unix_ns"]
            resumed.attempt(bisect_right(sessions, submit), submit, row["client_wait_s"], row["end_unix_ns"])
            if row["error_type"] is None:
                resumed.calls[row["request_id"]] = recorded_call(row)
    return rows


def _counted(steps: pa.RecordBatch) -> int:
    """How many of these steps a chain counts."""
    return sum(decision != "guidance" for decision in steps.column("decision").to_pylist())


def recorded_call(row: Mapping[str, Any]) -> ResumedCall:
    """A call that was answered, from the columns `RECORDED`."""
    return ResumedCall(
        request_id=row["request_id"],
        prompt_digest=row["prompt_digest"],
        usage=Usage(**{name: row[name] for name in USAGE}),
        wait_s=row["client_wait_s"],
        confidences=confidences(row, len(row["output_token_ids"])),
        **{name: row[name] for name in ANSWER},
    )


def _resumed(resume_state: ResumeState, row: Mapping[str, Any]) -> ResumedChain:
    resumed = resume_state.chains.get(row["chain_id"])
    if resumed is None:
        resumed = resume_state.chains[row["chain_id"]] = ResumedChain()
    return resumed


def _begun(batch: pa.RecordBatch, over: Hashes) -> pa.RecordBatch:
    """The rows of `batch` that belong to chains which are not over."""
    column = batch.column("chain_id")
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    hashes = np.fromiter(map(hash, column.dictionary.to_pylist()), np.int64)
    places = np.minimum(np.searchsorted(over, hashes), max(len(over) - 1, 0))
    begun = over[places] != hashes if len(over) else np.ones(len(hashes), np.bool_)
    return batch.filter(pa.array(begun[column.indices.to_numpy(zero_copy_only=False)]))
