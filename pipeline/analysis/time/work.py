"""The chains and calls of a run as instants of work: a run folder enters; tables to ask in SQL, and columns as arrays, leave.

Instants are nanoseconds of work: since the start of the run, without the pauses between the sessions of a run that was resumed. In SQL
there are, next to the tables of the run folder:

- `lives`, a row for each chain: `chain` (its place), `chain_id`, `start`, `end`, `status`.
- `flights`, a row for each call: `ready`, `submit` and `end`, next to the columns of `calls`; and `timed`, the same with its `chain`.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from pipeline.store.query import Query
from pipeline.store.rows import UNFINISHED
from pipeline.store.run_file import RunFile

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
READY = "submit_unix_ns - (client_wait_s * 1e9)::BIGINT"
"""The SQL of the instant at which a call could have been sent, ns UTC."""
FINISHED, LOST, OPEN = 0, 1, 2
"""The status of a chain: it came to its end; it failed or was cancelled; it has no row in the chains table (yet)."""
SLACK_NS = 2
"""Ready times are differences of rounded numbers: calls of one chain whose ready times differ by so little were ready together, and one may
end so much later than the next is ready."""


class Calls(NamedTuple):
    """Calls as columns, in any order."""

    chain: Array
    """Places in the chains."""
    again: Array
    """True for a repeated attempt at a call."""
    ready: Array
    """When it could have been sent; never after `submit`."""
    submit: Array
    """When it was sent."""
    end: Array
    """When it was answered or had failed; never before `submit`."""
    engine: Array
    """Places of their roles."""


class Lives(NamedTuple):
    """Chains as columns, in the order of their starts."""

    start: Array
    end: Array
    """Never before `start`; the end of the run for a chain without a row."""
    status: Array
    """`FINISHED`, `LOST` or `OPEN`."""


class Axis(Struct, frozen=True):
    """Converts instants in nanoseconds UTC into nanoseconds of work: since `origin`, without `pauses`."""

    origin: int
    """The start of the run, ns UTC."""
    pauses: tuple[tuple[int, int], ...] = ()
    """Start and end, ns UTC, of the times between sessions."""

    def of(self, instants: Any) -> Any:
        """Instants, a number or an array in ns UTC, as nanoseconds of work; those within a pause become its start."""
        paused = sum(np.clip(instants - since, 0, until - since) for since, until in self.pauses)
        return instants - self.origin - paused

    def sql(self, instant: str) -> str:
        """The SQL of an instant in ns UTC as nanoseconds of work."""
        paused = "".join(f" - greatest(0, least({instant}, {until}) - {since})" for since, until in self.pauses)
        return f"({instant} - {self.origin}{paused})"


_READ = (
    "* FROM chains",
    "chain_id, problem_id, step_index, stage, decision, chosen_candidate, step_tokens, draft_tokens, cut, verify_kind, score_mass, "
    "score_probs, start_unix_ns, end_unix_ns FROM steps",
    "chain_id, problem_id, engine, stage, purpose, attempt, error_type, error_message, submit_unix_ns, end_unix_ns, client_wait_s, "
    "queue_time_s, input_tokens, cached_input_tokens, output_tokens FROM calls",
)
"""What the figures of a run are made of: checksums of columns that are read together are verified in less time."""
_SEEN_IN_CALLS = f"""
SELECT min(first) AS first, max(last) AS last, list(DISTINCT engine ORDER BY engine) AS engines
FROM (SELECT engine, min({READY}) AS first, max(end_unix_ns) AS last FROM calls GROUP BY ALL)
"""


class RunTimes(Struct, frozen=True, kw_only=True):
    """A run on the axis of its work."""

    db: Query
    """The tables of the run folder, and those that this module adds."""
    run: RunFile
    """The content of its `run.json`, as far as that can be read."""
    axis: Axis
    span: int
    """Nanoseconds of work from the start of the run until its end; of one in progress or killed, until the last event in its tables."""
    engines: tuple[str, ...]
    """Roles: those of the plan, then others that calls name."""
    lives: Lives

    def read_calls(self) -> Calls:
        """All calls of the run, which take much memory."""
        asked = """
        SELECT chain::INTEGER AS chain, attempt > 0 AS again, ready, submit, "end", (list_position($engines, engine) - 1)::TINYINT AS engine
        FROM timed"""
        return Calls(**self.db.columns(asked, engines=list(self.engines)))


def read_work(db: Query) -> RunTimes:
    """The one run that is open in `db`; a chain without a row ends with the last call. Raises `InputError` where it cannot be read."""
    run = RunFile.read(db.folders[0])
    for columns in _READ:
        db.execute(f"SELECT {columns} LIMIT 1")
    [(first, last, roles)], [ends] = db.stream(_SEEN_IN_CALLS), db.stream("SELECT min(start_unix_ns), max(end_unix_ns) FROM chains")
    known = [at for at in (first, last, *ends, run.started_unix_ns, run.ended_unix_ns) if at]
    axis = Axis(min(known, default=0), run.pauses)
    db.execute(f"""
        CREATE TEMP TABLE lives AS
        WITH rows AS (
            SELECT chain_id, start_unix_ns, end_unix_ns, if(stop_reason IN {UNFINISHED}, {LOST}, {FINISHED}) AS status FROM chains
            UNION ALL
            SELECT chain_id, min({READY}), {last or 0}, {OPEN} FROM calls ANTI JOIN chains USING (chain_id) GROUP BY chain_id)
        SELECT row_number() OVER (ORDER BY start_unix_ns, chain_id) - 1 AS chain, chain_id, {axis.sql("start_unix_ns")} AS start,
               greatest({axis.sql("start_unix_ns")}, {axis.sql("end_unix_ns")}) AS "end", status::BIGINT AS status
        FROM rows""")
    db.execute(f"""
        CREATE TEMP VIEW flights AS
        SELECT *, least({axis.sql(f"({READY})")}, {axis.sql("submit_unix_ns")}) AS ready, {axis.sql("submit_unix_ns")} AS submit,
               {axis.sql("greatest(submit_unix_ns, end_unix_ns)")} AS "end"
        FROM calls""")
    db.execute("CREATE TEMP VIEW timed AS SELECT flights.*, chain FROM flights JOIN lives USING (chain_id)")
    return RunTimes(
        db=db,
        run=run,
        axis=axis,
        span=int(axis.of(max(known, default=0))),
        engines=tuple(dict.fromkeys([*run.plan.engines, *(roles or [])])),
        lives=Lives(**db.columns('SELECT start, "end", status FROM lives ORDER BY chain')),
    )
