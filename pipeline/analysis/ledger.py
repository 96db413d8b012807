"""The ledger: what became of every token that the engines sampled and read. A run folder enters, one `Ledger` leaves.

Tokens are added up from the calls table, by engine and outcome of the call. Whether drafted tokens were committed, and where a text was
cut off, is known from the steps table.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct

from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

USEFUL = ("committed", "unverified", "written", "answer")
WASTED = ("rejected", "cut", "lost", "unrecorded")
OUTCOMES = (*USEFUL, "verification", *WASTED)
"""What can become of a sampled token; every token counts in exactly one of these:

- `committed`: in a drafted step that was accepted.
- `unverified`: in a step by the draft that a gate let pass, which nothing verified.
- `written`: in a step that an engine wrote without a draft, or after the drafts were rejected.
- `answer`: in the answer after the thought.
- `verification`: in a verdict, or in an answer that was asked for before the thought was over.
- `rejected`: drafted, and in no step.
- `cut`: written and not kept: end-of-sequence tokens, and what was cut off after a step's end.
- `lost`: in an attempt that failed, as far as its row counts tokens, or in a chain that failed, was cancelled or is not over.
- `unrecorded`: in the engine's own count and not in the trace; see `EngineLedger.why_unrecorded`.
"""
CALLS = Path(__file__).with_name("ledger.sql")
DRAFTS = """
SELECT source_engine AS engine, if(decision = 'accepted', 'committed', decision) AS outcome,
       sum(step_tokens)::BIGINT AS tokens
FROM steps JOIN chains USING (chain_id)
WHERE finished AND chosen_candidate IS NOT NULL GROUP BY ALL
"""
TEXTS = """
SELECT source_engine AS engine, if(decision = 'unverified', decision, 'written') AS outcome, sum(step_tokens)::BIGINT AS tokens
FROM steps JOIN chains USING (chain_id) WHERE finished AND decision <> 'accepted' GROUP BY ALL
"""


class EngineLedger(Struct, frozen=True, kw_only=True):
    """The tokens of one engine, by what became of them."""

    output: dict[str, int]
    """Sampled tokens by outcome, one of `OUTCOMES`; their sum is what the engine counted, where every session recorded that."""
    input: dict[str, int]
    """Prompt tokens that were `computed`, found in the prefix cache (`cached`), or are missing in the trace (`unrecorded`).
    `unstated`: of calls for which the engine does not say what was cached."""
    why_unrecorded: str
    """Why `unrecorded` may be wrong or differ from 0 in this run; empty where it must be 0."""


class Ledger(Struct, frozen=True, kw_only=True):
    """What became of the tokens of all engines of a run."""

    engines: dict[str, EngineLedger]
    """By role."""

    def output(self, *outcomes: str) -> int:
        """Sampled tokens of all engines with these `OUTCOMES`."""
        return sum(each.output[outcome] for each in self.engines.values() for outcome in outcomes)

    def share(self, *outcomes: str) -> float | None:
        """The share of these `OUTCOMES` in all sampled tokens, 0 to 1; None where there are none."""
        return self.output(*outcomes) / total if (total := self.output(*OUTCOMES)) else None


def read_ledger(db: Query) -> Ledger:
    """The ledger of the one run that is open in `db`; raises `InputError` where its tables cannot be read."""
    run, calls = RunFile.read(db.folders[0]), db.arrow(CALLS).to_pylist()
    output = {role: Counter(dict.fromkeys(OUTCOMES, 0)) for role in [*run.plan.engines, *(each["engine"] for each in calls)]}
    for sums in calls:
        output[sums["engine"]].update({sums["outcome"]: sums["sampled"] - sums["cut"], "cut": sums["cut"]})
    for engine, outcome, tokens in db.stream(DRAFTS):
        output[engine].update({outcome: tokens, "rejected": -tokens})
    _reconcile(db, run, output)
    return Ledger(engines={role: _engine(run, role, [each for each in calls if each["engine"] == role], output[role]) for role in output})


def _reconcile(db: Query, run: RunFile, output: Mapping[str, Counter[str]]) -> None:
    """Move tokens that calls sampled and no thought holds: one call may return thought and answer, and a step's text may be cut."""
    thoughts = db.scalar("SELECT coalesce(sum(thought_tokens), 0) FROM chains WHERE finished")
    if thoughts == sum(entries[outcome] for entries in output.values() for outcome in ("committed", "unverified", "written")):
        return
    responses = {node.spec.role for node in run.plan.stages() if node.spec.finishes and node.spec.purpose != "answer"}
    texts = {(engine, outcome): tokens for engine, outcome, tokens in db.stream(TEXTS)}
    for role, entries in output.items():
        for outcome in ("unverified", "written"):
            beyond = max(0, entries[outcome] - texts.get((role, outcome), 0))
            entries.update({outcome: -beyond, "answer" if role in responses and outcome == "written" else "cut": beyond})


def _engine(run: RunFile, role: str, calls: Collection[Mapping[str, int]], output: Counter[str]) -> EngineLedger:
    read, cached, unstated, failed = (sum(each[name] for each in calls) for name in ("read", "cached", "unstated", "failed"))
    counted = run.statistics(role)
    own = None if counted is None else sum(each.input_tokens for each in counted)
    output["unrecorded"] = 0 if counted is None else sum(each.output_tokens for each in counted) - output.total()
    reasons = {
        "a session that is in progress or was killed did not record what the engine counted": counted is None,
        "calls that were in flight when a session was killed left no rows": any(each.status == "killed" for each in run.sessions),
        "what was sampled in failed attempts is in the engine's count alone": failed,
        "the last count of an engine that died is from shortly before its death": any(each.restarts for each in counted or ()),
    }
    return EngineLedger(
        output={outcome: output[outcome] for outcome in OUTCOMES},
        input={
            "computed": read - cached - unstated,
            "cached": cached,
            "unstated": unstated,
            "unrecorded": 0 if own is None else own - read,
        },
        why_unrecorded=next((reason for reason, holds in reasons.items() if holds), ""),
    )
