"""The wasted-work ledger: what became of every token that the engines sampled and read. A run folder enters, one `Ledger` leaves.

Tokens are added up from the calls table, by engine and outcome of the call. Whether drafted tokens were committed, and where a text was
cut off, is known from the steps table.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from pipeline.engine import EngineStatistics
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

OUTCOMES = (
    "committed",
    "unverified",
    "guidance",
    "written",
    "fallback",
    "answer",
    "verification",
    "trial",
    "not_chosen",
    "rejected",
    "cut",
    "retried",
    "lost_chains",
    "unfinished",
    "unrecorded",
)
"""What can become of a sampled token; every token counts in exactly one of these:

- `committed`: in a drafted step that was accepted.
- `unverified`: in a step by the draft that a gate let pass, which nothing verified.
- `guidance`, `written`, `fallback`: in a step that an engine wrote without a draft: before the first step, to guide the thought;
  as a first step, in a graph without drafts, or because a gate flagged the draft; or after the drafts were rejected.
- `answer`: in the answer after the thought.
- `verification`: in a verdict.
- `trial`: in an answer that was asked for before the thought was over.
- `not_chosen`: in another candidate of a step of which one was accepted, or passed a gate.
- `rejected`: in a candidate of a step of which none was.
- `cut`: sampled and not kept: end-of-sequence tokens, and what was cut off after a step's end.
- `retried`: in an attempt that failed, as far as its row counts tokens.
- `lost_chains`: any of the above, in a chain that failed or was cancelled.
- `unfinished`: any of the above, in a chain without a row in the chains table: the run is in progress, or was killed.
- `unrecorded`: tokens in the engine's own count that the trace does not have; see `EngineLedger.why_unrecorded`.
"""
WRITTEN = {
    "unverified": ("unverified",),
    "guidance": ("guidance",),
    "written": ("first_steps", "written"),
    "fallback": ("fallback",),
}
"""For each outcome of steps that an engine may have written without a draft: the decisions in the steps table that it covers."""
USEFUL = ("committed", "unverified", "guidance", "written", "fallback", "answer")
WASTED = ("not_chosen", "rejected", "cut", "retried", "lost_chains", "unrecorded")
"""Outcomes that count as waste; `verification`, `trial` and `unfinished` are neither useful nor wasted."""
CALLS = Path(__file__).with_name("ledger.sql")
"""Sums of the calls by engine and outcome. Drafted tokens count as `rejected` until the steps tell what became of them."""
STEPS = """
SELECT source_engine AS engine, decision, decision = 'accepted' OR (decision = 'unverified' AND chosen_candidate IS NOT NULL) AS chosen,
       sum(draft_tokens - draft_tokens_wasted)::BIGINT AS committed,
       sum(draft_tokens)::BIGINT AS drafted, sum(least(coalesce(list_sum(candidate_tokens), 0), draft_tokens))::BIGINT AS kept
FROM steps JOIN chains USING (chain_id) WHERE finished GROUP BY ALL ORDER BY ALL
"""
"""`kept` are the tokens in candidates: an engine that is asked greedily for several may sample one and give it several times."""
CANDIDATES = """
SELECT list_extract($owners, least(place, len($owners))) AS engine, sum(tokens)::BIGINT AS tokens
FROM (SELECT unnest(candidate_tokens) AS tokens, generate_subscripts(candidate_tokens, 1) AS place
      FROM steps JOIN chains USING (chain_id)
      WHERE finished AND (decision = 'accepted' OR (decision = 'unverified' AND chosen_candidate IS NOT NULL))) GROUP BY ALL
"""
"""Tokens of the candidates of steps of which one was committed, by the engine that drafted them, of several."""
TEXTS = """
SELECT source_engine AS engine, decision, sum(len(step_token_ids))::BIGINT AS tokens
FROM steps JOIN chains USING (chain_id) WHERE finished GROUP BY ALL
"""


class CallSums(Struct, frozen=True):
    """Sums over the calls of an engine with one outcome."""

    engine: str
    outcome: str
    drafts: bool
    calls: int
    sampled: int
    """Output tokens."""
    ended: int
    """End-of-sequence tokens among them: one for each candidate that ended with one."""
    read: int
    """Prompt tokens, cached ones included."""
    cached: int
    unstated: int
    """Prompt tokens of calls for which the engine does not say what was cached."""


class StepSums(Struct, frozen=True):
    """Sums over the steps of finished chains that an engine wrote, with one decision."""

    engine: str
    decision: str
    chosen: bool
    """True if the step is one of its candidates."""
    committed: int
    drafted: int
    kept: int


class TokenSum(Struct, frozen=True):
    """Tokens of an engine."""

    engine: str
    tokens: int
    decision: str = ""


class EngineLedger(Struct, frozen=True, kw_only=True):
    """The tokens of one engine, by what became of them."""

    output: dict[str, int]
    """Sampled tokens by outcome, one of `OUTCOMES`; their sum is `counted_output`, where that is known."""
    input: dict[str, int]
    """Prompt tokens that were `computed`, found in the prefix cache (`cached`), or are missing in the trace (`unrecorded`).
    `unstated`: of calls for which the engine does not say what was cached."""
    counted_output: int | None
    """Sampled tokens by the engine's own counter, over all sessions; null where a session recorded no count: then nothing is
    `unrecorded`."""
    why_unrecorded: tuple[str, ...]
    """Reasons why `unrecorded` may differ from 0 in this run, as clauses; empty where it must be 0."""


class Ledger(Struct, frozen=True, kw_only=True):
    """What became of the tokens of all engines of a run."""

    engines: dict[str, EngineLedger]
    """By role."""

    def output(self, outcome: str) -> int:
        """Sampled tokens of all engines with this outcome, one of `OUTCOMES`."""
        return sum(each.output[outcome] for each in self.engines.values())

    @property
    def output_tokens(self) -> int:
        """Sampled tokens of all engines."""
        return sum(sum(each.output.values()) for each in self.engines.values())

    @property
    def useful_share(self) -> float | None:
        """Share of the sampled tokens that are in thoughts and answers, 0 to 1; null where there are none."""
        return self._share(USEFUL)

    @property
    def waste_share(self) -> float | None:
        """Share of the sampled tokens whose outcome is one of `WASTED`, 0 to 1; null where there are none."""
        return self._share(WASTED)

    @property
    def verification_share(self) -> float | None:
        """Share of the sampled tokens that are verdicts, 0 to 1. Verification mostly costs prompt tokens, see `EngineLedger.input`."""
        return self._share(("verification",))

    def _share(self, outcomes: tuple[str, ...]) -> float | None:
        return sum(map(self.output, outcomes)) / self.output_tokens if self.output_tokens else None


def ledger(run: Path) -> Ledger:
    """The ledger of the run folder `run`; raises `InputError` when that has no tables that can be read."""
    with Query(run) as db:
        return read_ledger(db)


def read_ledger(db: Query) -> Ledger:
    """The ledger of the one run that is open in `db`."""
    run, calls = RunFile.read(db.folders[0]), db.rows(CALLS, CallSums)
    output = {role: Counter(dict.fromkeys(OUTCOMES, 0)) for role in [*run.plan.engines, *(each.engine for each in calls)]}
    for each in calls:
        written = each.outcome in (*WRITTEN, "answer")
        output[each.engine][each.outcome] += each.sampled - each.ended * written
        output[each.engine]["cut"] += each.ended * written
    _enter_drafts(db, run, calls, output)
    _reconcile(db, run, output)
    return Ledger(engines={role: _engine(run, role, calls, entries) for role, entries in output.items()})


def _enter_drafts(db: Query, run: RunFile, calls: Sequence[CallSums], output: Mapping[str, Counter[str]]) -> None:
    """Move the drafted tokens that were not rejected from `rejected` to their outcomes, which the steps tell."""
    steps, owners = db.rows(STEPS, StepSums), list(run.plan.drafters)
    alone = len(set(owners)) < 2
    by_owner = {} if alone else {each.engine: each.tokens for each in db.rows(CANDIDATES, TokenSum, owners=owners)}
    chosen = [each for each in steps if each.chosen]
    for sums in calls:
        if not sums.drafts or sums.outcome != "rejected":
            continue
        own = [each for each in chosen if each.engine == sums.engine]
        unverified = sum(each.committed for each in own if each.decision == "unverified")
        committed = sum(each.committed for each in own) - unverified
        kept = sum(each.kept for each in chosen) if alone else by_owner.get(sums.engine, 0)
        cut = sum(each.drafted - each.kept for each in steps) if alone else sums.ended
        passed = {"committed": committed, "unverified": unverified, "not_chosen": kept - committed - unverified, "cut": cut}
        output[sums.engine].update(passed)
        output[sums.engine]["rejected"] -= kept + cut


def _reconcile(db: Query, run: RunFile, output: Mapping[str, Counter[str]]) -> None:
    """Move tokens that calls sampled and no thought holds: one call may return thought and answer, and a step's text may be cut.
    Reads the token ids of all steps, which is slow, only where the sums of calls and thoughts differ."""
    thoughts = db.scalar("SELECT coalesce(sum(thought_tokens), 0) FROM chains WHERE finished")
    if thoughts == sum(entries[outcome] for entries in output.values() for outcome in ("committed", *WRITTEN)):
        return
    responses = {node.spec.role for node in run.plan.stages() if node.spec.finishes and node.spec.purpose != "answer"}
    written = {(each.engine, each.decision): each.tokens for each in db.rows(TEXTS, TokenSum)}
    for role, entries in output.items():
        for outcome, decisions in WRITTEN.items():
            kept = min(entries[outcome], sum(written.get((role, decision), 0) for decision in decisions))
            entries["answer" if role in responses and outcome == "written" else "cut"] += entries[outcome] - kept
            entries[outcome] = kept


def _engine(run: RunFile, role: str, calls: Sequence[CallSums], output: Counter[str]) -> EngineLedger:
    answered = [sums for sums in calls if sums.engine == role and sums.outcome != "retried"]
    read = {name: sum(getattr(each, name) for each in answered) for name in ("cached", "unstated")}
    read = {"computed": sum(each.read for each in answered) - sum(read.values()), **read}
    counted = run.statistics(role)
    counted_output = None if counted is None else sum(each.output_tokens for each in counted)
    counted_input = None if counted is None else sum(each.input_tokens for each in counted)
    if counted_output is not None:
        output["unrecorded"] = counted_output - output.total()
    failed = sum(sums.calls for sums in calls if sums.engine == role and sums.outcome == "retried")
    return EngineLedger(
        output={outcome: output[outcome] for outcome in OUTCOMES},
        input=read | {"unrecorded": 0 if counted_input is None else counted_input - sum(read.values())},
        counted_output=counted_output,
        why_unrecorded=tuple(_why(run, failed, counted)),
    )


def _why(run: RunFile, failed: int, counted: Sequence[EngineStatistics] | None) -> Iterator[str]:
    """Reasons why the engine may have counted other tokens than the tables hold."""
    if counted is None:
        yield "a session did not record what the engine counted: it is in progress, or was killed"
    if failed:
        yield f"{failed} attempts failed; what was sampled for them is in the engine's count alone"
    if restarts := sum(each.restarts for each in counted or ()):
        yield f"the engine died {restarts} times; its last count before each death may be slightly out of date"
    if any(session.status == "killed" for session in run.sessions):
        yield "a session was killed; the calls that were in flight then left no rows"
