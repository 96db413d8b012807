"""Resuming a run: its folder enters; which chains are over leaves, and what the engines have answered of those that are not.

A chain is resumed by running its plan from the start while its recorded calls stand in for the engines: the same seeds
lead to the same requests, so that it comes to its last answered call as before, and from there on asks the engines.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from pipeline.engine import Request
from pipeline.errors import ChainError
from pipeline.store.query import Query
from pipeline.store.rows import AnsweredCall
from pipeline.store.run_file import RunFile, Totals
from pipeline.store.store import RunStore

NO_STAGE = "no stage"
"""The stage of a chain that failed before its first one."""


class ResumeMismatch(ChainError):
    """A resumed chain committed another step than the run folder holds."""

    def __init__(self, step_index: int) -> None:
        super().__init__(f"step {step_index} differs from the one in the run folder; some of its calls are missing")


RECORDED = ("chain_id", "error_type", *AnsweredCall.__struct_fields__)
"""The columns of `calls` that an `AnsweredCall` is made of, the chain and whether it failed."""


class ResumedChain(Struct, kw_only=True):
    """The rows of one unfinished chain in the run folder; each call is taken out when the chain comes to it."""

    calls: dict[str, AnsweredCall] = {}
    """Its answered calls, by their requests' ids."""
    attempts: int = 0
    """Its rows in the calls table, failed ones included."""
    steps: list[tuple[int, ...]] = []
    """Token ids of its steps in the steps table, in order."""
    lives: dict[int, tuple[int, int]] = {}
    """When its first call could have been sent and its last one came back, for each time that it was live."""

    def attempt(self, life: int, submit_unix_ns: int, wait_s: float, end_unix_ns: int) -> None:
        """Count a row of the calls table, which the chain had in its `life` of that number."""
        ready = submit_unix_ns - round(wait_s * 1e9)
        since, until = self.lives.get(life, (ready, end_unix_ns))
        self.lives[life] = min(since, ready), max(until, end_unix_ns)
        self.attempts += 1

    @property
    def started_unix_ns(self) -> int | None:
        """When its first call could have been sent."""
        return min((since for since, _ in self.lives.values()), default=None)

    @property
    def lived_s(self) -> float:
        """Seconds from its first call to its last one, without the time in which it was not live."""
        return sum(until - since for since, until in self.lives.values()) / 1e9

    def take(self, request: Request) -> AnsweredCall | None:
        """Take out the answered call of this request; None where there is none, or one of the same id had another prompt."""
        call = self.calls.pop(request.request_id, None)
        return None if call is None or call.prompt_digest not in (None, request.digest()) else call

    def holds(self, index: int, ids: Sequence[int]) -> bool:
        """True if the steps table has the chain's step number `index` (from 0). Raises `ResumeMismatch` where it has other `ids`."""
        if index >= len(self.steps):
            return False
        if self.steps[index] != tuple(ids):
            raise ResumeMismatch(index)
        return True


class ResumeState(Struct):
    """Everything that earlier sessions of a run left behind; empty for a new run."""

    over: Sequence[int] = ()
    """The places in the input of the chains that are over, in ascending order."""
    chains: dict[str, ResumedChain] = {}
    """The chains that were begun and are not over, by `chain_id`."""
    totals: Totals = Totals()
    """Counts of the chains that are over, and of all steps and calls."""
    last_call_unix_ns: int | None = None
    """When the last call of any chain came back; None without calls."""

    def is_over(self, order: int) -> bool:
        """True if the chain at the place `order` of the input needs nothing more."""
        found = bisect_left(self.over, order)
        return found < len(self.over) and self.over[found] == order

    def chain(self, chain_id: str) -> ResumedChain:
        """Take out what the run folder holds of this chain; an empty `ResumedChain` where it holds nothing."""
        return self.chains.pop(chain_id, None) or ResumedChain()


COUNTS = """
    SELECT count(*) FILTER (stop_reason <> 'error') AS chains_done, count(*) FILTER (stop_reason = 'error') AS chains_failed,
           count(counted) AS graded, count(*) FILTER (counted) AS correct FROM ended"""
FAILURES = f"""
    SELECT error_type, coalesce(error_stage, '{NO_STAGE}'), count(*) FROM ended WHERE stop_reason = 'error' GROUP BY ALL ORDER BY ALL"""
UNENDED_STEPS = "SELECT chain_id, step_token_ids FROM steps ANTI JOIN ended USING (chain_id) ORDER BY chain_id, step_index"
UNENDED_CALLS = f"SELECT submit_unix_ns, end_unix_ns, {', '.join(RECORDED)} FROM calls ANTI JOIN ended USING (chain_id)"


def taken_again(retry_failed: bool) -> list[str]:
    """The values of `stop_reason` of chains that are to be solved further or again."""
    return ["cancelled", "error"] if retry_failed else ["cancelled"]


def read_resume_state(folder: Path, run: RunFile, samples: int, retry_failed: bool) -> ResumeState:
    """What earlier sessions left in the folder of a `run` of `samples` chains for each problem; write-ahead files are made parts first.

    In memory are the places of the chains that are over, and the rows of those that were begun: at most as many as were live when the run
    ended. Raises `InputError` where the tables cannot be read.
    """
    RunStore(folder).recover()
    sessions = [each.started_unix_ns for each in run.sessions]
    with Query(folder) as query:
        query.execute("CREATE TEMP TABLE ended AS FROM chains WHERE stop_reason NOT IN $again", again=taken_again(retry_failed))
        [counts] = query.rows(COUNTS, Totals)
        places = query.columns("SELECT (input_row - 1) * $samples + sample_index AS place FROM ended ORDER BY 1", samples=samples)
        errors: dict[str, dict[str, int]] = {}
        for error, stage, count in query.stream(FAILURES):
            errors.setdefault(error, {})[stage] = count
        decisions = dict(query.stream("SELECT decision, count(*) FROM steps GROUP BY 1 ORDER BY 1"))
        output_tokens = dict(query.stream("SELECT engine, sum(output_tokens)::BIGINT FROM calls GROUP BY 1 ORDER BY 1"))
        last_call_unix_ns = query.scalar("SELECT max(end_unix_ns) FROM calls")
        chains: defaultdict[str, ResumedChain] = defaultdict(ResumedChain)
        for chain, ids in query.stream(UNENDED_STEPS):
            chains[chain].steps.append(tuple(ids))
        for submit, end, *values in query.stream(UNENDED_CALLS):
            row = dict(zip(RECORDED, values, strict=True))
            resumed = chains[row["chain_id"]]
            resumed.attempt(bisect_right(sessions, submit), submit, row["client_wait_s"], end)
            if row["error_type"] is None:
                resumed.calls[row["request_id"]] = msgspec.convert(row, AnsweredCall)
    steps = sum(decisions.values())
    totals = structs.replace(counts, errors=errors, steps=steps, decisions=decisions, output_tokens=output_tokens)
    return ResumeState(array("q", places["place"].tobytes()), dict(chains), totals, last_call_unix_ns)


def drop_unfinished(folder: Path, retry_failed: bool) -> None:
    """Remove from `chains` the rows of those that are to be solved again."""
    again = pa.array(taken_again(retry_failed), pa.string())
    RunStore(folder).rewrite("chains", lambda rows: rows.filter(pc.invert(pc.is_in(rows["stop_reason"], again))))
