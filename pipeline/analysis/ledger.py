"""The wasted-work ledger: what became of every token that the engines sampled and read. A run folder enters, one `Ledger` leaves.

Tokens are added up from the calls table, by engine, stage and purpose of the call. Whether drafted tokens were committed, and
where a text was cut off, is known from the steps table.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.time.calls import Calls, accumulate, in_one_piece, whole
from pipeline.analysis.time.outline import FINISHED, LOST, Outline
from pipeline.analysis.time.timeline import Array, Names
from pipeline.engine import EngineStatistics
from pipeline.store.read import read_backwards

OUTCOMES = (
    "committed",
    "guidance",
    "written",
    "fallback",
    "answer",
    "verification",
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
- `guidance`, `written`, `fallback`: in a step that an engine wrote without a draft: before the first step, to guide the thought;
  as a first step, in a graph without drafts or in direct mode; or after the drafts were rejected.
- `answer`: in the answer after the thought.
- `verification`: in a verdict.
- `not_chosen`: in another candidate of a step that was accepted.
- `rejected`: in a candidate of a step of which none was accepted.
- `cut`: sampled and not kept: end-of-sequence tokens, and what was cut off after a step's end.
- `retried`: in an attempt that failed, as far as its row counts tokens.
- `lost_chains`: any of the above, in a chain that failed or was cancelled.
- `unfinished`: any of the above, in a chain without a row in the chains table: the run is in progress, or was killed.
- `unrecorded`: tokens in the engine's own count that the trace does not have; see `EngineLedger.why_unrecorded`.
"""
WRITTEN = {"guidance": ("guidance",), "written": ("first_steps", "written", "interrupted"), "fallback": ("fallback",)}
"""For each outcome of steps that an engine wrote without a draft: the decisions in the steps table that it covers."""
USEFUL = ("committed", "guidance", "written", "fallback", "answer")
WASTED = ("not_chosen", "rejected", "cut", "retried", "lost_chains", "unrecorded")
"""Outcomes that count as waste; `verification` and `unfinished` are neither useful nor wasted."""


FAILED = 3
"""The `status` in a `CallKey` of attempts that failed, in addition to the statuses of chains `FINISHED`, `LOST` and `OPEN`."""
GUIDES, EARLY, LATER = range(3)
"""When in its chain a call was made: before the first step, during the first steps that its stage writes without drafts, or later."""
STEP_KEYS = ("stage", "source_engine", "decision")
STEP_COLUMNS = ("chain_id", *STEP_KEYS, "step_index", "draft_tokens", "draft_tokens_wasted", "candidate_tokens")


class EngineLedger(Struct, frozen=True, kw_only=True):
    """The tokens of one engine, by what became of them."""

    output: dict[str, int]
    """Sampled tokens by outcome, one of `OUTCOMES`; their sum is `counted_output`, where that is known."""
    input: dict[str, int]
    """Prompt tokens that were `computed` for the first time, computed again after they had been evicted from the cache (`recomputed`, at
    least: see the column of the calls table), found in the prefix cache (`cached`), or are missing in the trace (`unrecorded`); the sum
    is `counted_input`, where that is known. `unstated`: of calls for which the engine does not say what was cached."""
    speculated: dict[str, int]
    """Tokens that the engine's own token-level speculation proposed, `accepted` and `rejected`, by its own count. Accepted ones are in
    `output` too. Empty where the engine does not speculate."""
    counted_output: int | None
    """Sampled tokens by the engine's own counter, over all sessions; null where a session recorded no count: then nothing is
    `unrecorded`."""
    counted_input: int | None
    """Prompt tokens by the engine's own counter, likewise."""
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

    @property
    def recomputed_share(self) -> float | None:
        """Share of the prompt tokens that were computed again after an eviction, 0 to 1, which is waste; null where there are none."""
        return self._input_share("recomputed")

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that were in a prefix cache, 0 to 1; null where there are none."""
        return self._input_share("cached")

    def _input_share(self, outcome: str) -> float | None:
        total = sum(sum(each.input.values()) - each.input["unstated"] for each in self.engines.values())
        return sum(each.input[outcome] for each in self.engines.values()) / total if total else None

    def _share(self, outcomes: tuple[str, ...]) -> float | None:
        return sum(map(self.output, outcomes)) / self.output_tokens if self.output_tokens else None


class CallKey(NamedTuple):
    """A group of calls that are added up together."""

    status: int
    """`FAILED` for attempts that were not answered; else the status of their chain: `FINISHED`, `LOST` or `OPEN`."""
    engine: str
    stage: str
    purpose: str
    """What the calls were for: `guide`, `draft`, `judge`, `write` or `answer`."""
    place: int
    """`GUIDES`, `EARLY` or `LATER`."""


class CallSums(NamedTuple):
    """Sums over answered calls of one `CallKey`."""

    sampled: int
    """Output tokens."""
    ended: int
    """End-of-sequence tokens among them: one for each candidate that ended with one."""
    read: int
    """Prompt tokens, cached ones included."""
    cached: int
    """Prompt tokens that were in the prefix cache."""
    recomputed: int
    """Prompt tokens that were computed again."""
    unstated: int
    """Prompt tokens of calls for which the engine does not say what was cached."""


class CallTokens:
    """Adds up tokens of calls by `CallKey`. `first_steps` is, by stage, how many first steps of a chain it writes without drafts."""

    columns: tuple[str, ...] = (
        "purpose",
        "step_index",
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "eos_tokens",
        "recomputed_input_tokens",
    )

    def __init__(self, outline: Outline, first_steps: Mapping[str, int]) -> None:
        self._outline, self._first_steps, self._purposes = outline, first_steps, Names()
        self.sums: dict[CallKey, CallSums] = {}
        self.failed: Counter[str] = Counter()
        """Number of attempts that failed, by engine."""
        self.retried: Counter[str] = Counter()
        """Sampled tokens of attempts that failed, as far as their rows count them, by engine."""

    def add(self, calls: Calls) -> None:
        table = calls.table
        purpose = self._purposes.codes(whole(table, "purpose"))
        status = np.where(calls.failed, FAILED, self._outline.chains.status[calls.chain])
        first = np.array([self._first_steps.get(stage, 0) for stage in calls.stages], np.int64)
        step = whole(table, "step_index").to_numpy()
        place = np.where(step == 0, GUIDES, np.where(step <= first[calls.stage], EARLY, LATER))
        names: list[Sequence[Any]] = [range(4), self._outline.engines, calls.stages, list(self._purposes), range(3)]
        shape = tuple(map(len, names))
        keys = np.ravel_multi_index((status, calls.engine, calls.stage, purpose, place), shape)
        numbers = [whole(table, f"{name}_tokens").to_numpy() for name in ("output", "eos", "input")]
        cached = whole(table, "cached_input_tokens")
        numbers += [pc.fill_null(each, 0).to_numpy() for each in (cached, whole(table, "recomputed_input_tokens"))]
        numbers.append(numbers[2] * cached.is_null().to_numpy(zero_copy_only=False))
        found, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        sums = [np.bincount(inverse, column, len(found)).astype(np.int64).tolist() for column in numbers]
        for codes, count, *each in zip(np.transpose(np.unravel_index(found, shape)), counts.tolist(), *sums, strict=True):
            self._enter(CallKey(*(name[code] for name, code in zip(names, codes, strict=True))), count, CallSums(*each))

    def _enter(self, key: CallKey, count: int, sums: CallSums) -> None:
        if key.status == FAILED:
            self.failed[key.engine] += count
            self.retried[key.engine] += sums.sampled
        else:
            self.sums[key] = CallSums(*map(sum, zip(self.sums.get(key, (0,) * len(sums)), sums, strict=True)))


class StepTokens:
    """Adds up tokens of steps. Candidates count for the engine that drafted them, or under the empty name where only one engine drafts."""

    def __init__(self, outline: Outline) -> None:
        self._chains = outline.chains
        owners = outline.run.plan.drafters
        self.drafters = tuple(dict.fromkeys(owners)) if len(set(owners)) > 1 else ("",)
        self._owners = np.array([self.drafters.index(owner) for owner in owners] if len(self.drafters) > 1 else [0])
        self.committed: Counter[str] = Counter()
        """Tokens of accepted candidates in finished chains, by the engine that wrote them."""
        self.accepted: Counter[str] = Counter()
        """Tokens of all candidates of accepted steps in finished chains, by drafter."""
        self.cut = 0
        """Tokens that were sampled for candidates of finished chains and are in none of them."""
        self.decisions: set[tuple[str, str]] = set()
        """Every pair of stage and decision that occurs in a step."""
        self.first_steps: Counter[str] = Counter()
        """By stage, the number of the last first step that it wrote without drafts."""

    def add(self, table: pa.Table) -> None:
        """Add the steps of `table`, which has the `STEP_COLUMNS`."""
        finished = self._chains.status_of(whole(table, "chain_id")) == FINISHED
        drafted = table.column("draft_tokens").to_numpy() * finished
        kept = [each * finished for each in self._kept(table)]
        if len(kept) == 1:  # an engine that is asked greedily for several may sample one and give it several times
            kept = [np.minimum(kept[0], drafted)]
        numbers = {
            "index": table.column("step_index").to_numpy(),
            "cut": drafted - np.sum(kept, axis=0),
            "committed": drafted - table.column("draft_tokens_wasted").to_numpy() * finished,
            **{f"kept {place}": each for place, each in enumerate(kept)},
        }
        keyed = table.select(STEP_KEYS)
        for name, values in numbers.items():
            keyed = keyed.append_column(name, pa.array(values))
        sums = [(name, "sum") for name in numbers if name != "index"]
        for row in keyed.group_by(list(STEP_KEYS)).aggregate([("index", "max"), *sums]).to_pylist():
            self._add_row(row)

    def _add_row(self, row: dict[str, Any]) -> None:
        stage, engine, decision = (row[key] for key in STEP_KEYS)
        self.decisions.add((stage, decision))
        self.cut += row["cut_sum"]
        if decision == "first_steps":
            self.first_steps[stage] = max(self.first_steps[stage], row["index_max"])
        if decision == "accepted":
            self.committed[engine] += row["committed_sum"]
            for place, owner in enumerate(self.drafters):
                self.accepted[owner] += row[f"kept {place}_sum"]

    def _kept(self, table: pa.Table) -> list[Array]:
        """How many tokens the candidates of each step hold, one array for each of the drafters."""
        lists = whole(table, "candidate_tokens")
        tokens = lists.flatten().to_numpy()
        if len(self.drafters) == 1:
            return [_sums(lists, tokens)]
        lengths = pc.list_value_length(lists).to_numpy()
        places = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owner = self._owners[np.minimum(places, len(self._owners) - 1)]
        return [_sums(lists, tokens * (owner == place)) for place in range(len(self.drafters))]


def read_step_tokens(run: Path, outline: Outline) -> StepTokens:
    """Add up the steps of the run folder `run`; raises `InputError` where they cannot be read."""
    tokens = StepTokens(outline)
    for table in read_backwards(run, "steps", STEP_COLUMNS, ("chain_id", *STEP_KEYS)):
        if table.num_rows:
            tokens.add(in_one_piece(table))
    return tokens


def read_written(run: Path, outline: Outline) -> Counter[tuple[str, str]]:
    """Tokens of all steps of finished chains, by engine and decision. Reads the token ids of all steps, which takes long."""
    written: Counter[tuple[str, str]] = Counter()
    for table in read_backwards(run, "steps", ("chain_id", *STEP_KEYS[1:], "step_token_ids"), ("chain_id", *STEP_KEYS[1:])):
        if not table.num_rows:
            continue
        table = in_one_piece(table)
        finished = outline.chains.status_of(whole(table, "chain_id")) == FINISHED
        lengths = pc.list_value_length(table.column("step_token_ids")).to_numpy() * finished
        keyed = table.select(STEP_KEYS[1:]).append_column("tokens", pa.array(lengths))
        for row in keyed.group_by(list(STEP_KEYS[1:])).aggregate([("tokens", "sum")]).to_pylist():
            written[row["source_engine"], row["decision"]] += row["tokens_sum"]
    return written


def _sums(lists: pa.ListArray, values: Array) -> Array:
    """The sum of each list's part of `values`, which are the elements of `lists` one after the other."""
    offsets = lists.offsets.to_numpy()
    return np.diff(np.concatenate([[0], np.cumsum(values)])[offsets - offsets[0]])


def ledger(run: Path) -> Ledger:
    """The ledger of the run folder `run`; raises `InputError` when that has no trace that can be read."""
    [accumulator] = accumulate(run, lambda outline: (LedgerAccumulator(run, outline),))
    return accumulator.result()


class LedgerAccumulator:
    """Makes a `Ledger` of the calls that are added and of the steps of the run folder `run`; see `Accumulator`."""

    columns: tuple[str, ...] = CallTokens.columns

    def __init__(self, run: Path, outline: Outline) -> None:
        self._run, self._outline = run, outline
        self._steps = read_step_tokens(run, outline)
        self._calls = CallTokens(outline, self._steps.first_steps)

    def add(self, calls: Calls) -> None:
        self._calls.add(calls)

    def result(self) -> Ledger:
        """The ledger of all calls that were added."""
        output = {role: Counter(dict.fromkeys(OUTCOMES, 0)) for role in self._outline.engines}
        for key, sums in self._calls.sums.items():
            self._enter(output[key.engine], key, sums)
        for role, entries in output.items():
            entries["retried"] += self._calls.retried[role]
            self._enter_drafts(role, entries)
        self._settle(output)
        return Ledger(engines={role: self._engine(role, entries) for role, entries in output.items()})

    def _enter(self, entries: Counter[str], key: CallKey, sums: CallSums) -> None:
        """Add `sums` to the outcomes that their key implies; drafted tokens count as rejected until `_enter_drafts` moves them."""
        if key.status != FINISHED:
            entries["lost_chains" if key.status == LOST else "unfinished"] += sums.sampled
        elif key.purpose == "draft":
            entries["rejected"] += sums.sampled
        elif key.purpose == "judge":
            entries["verification"] += sums.sampled
        else:
            entries[self._written_outcome(key)] += sums.sampled - sums.ended
            entries["cut"] += sums.ended

    def _written_outcome(self, key: CallKey) -> str:
        """The outcome of tokens of a call that neither drafts nor judges."""
        if key.purpose == "answer":
            return "answer"
        if key.place == GUIDES:
            return "guidance"
        return "fallback" if key.place == LATER and (key.stage, "fallback") in self._steps.decisions else "written"

    def _enter_drafts(self, role: str, entries: Counter[str]) -> None:
        """Move the drafted tokens of one engine that were not rejected from `rejected` to their outcomes, which the steps tell."""
        steps, sums = self._steps, self._calls.sums
        drafts = [sums[key] for key in sums if (key.engine, key.purpose, key.status) == (role, "draft", FINISHED)]
        if not drafts:
            return
        alone = len(steps.drafters) == 1
        moved = {
            "committed": steps.committed[role],
            "not_chosen": steps.accepted["" if alone else role] - steps.committed[role],
            "cut": steps.cut if alone else sum(each.ended for each in drafts),
        }
        entries.update(moved)
        entries["rejected"] -= sum(moved.values())

    def _settle(self, output: Mapping[str, Counter[str]]) -> None:
        """Move tokens that calls sampled and no thought holds: a response is thought and answer in one call, and a step's text may have
        been cut. Reads the steps' token ids only where the sums of calls and thoughts differ."""
        plan = self._outline.run.plan
        responses = {node.spec.role for node in plan.stages() if node.spec.finishes and node.spec.purpose != "answer"}
        thoughts = int(self._outline.chains.thought_tokens[self._outline.chains.status == FINISHED].sum())
        entered = sum(entries[outcome] for entries in output.values() for outcome in ("committed", *WRITTEN))
        if thoughts == entered:
            return
        written = read_written(self._run, self._outline)
        for role, entries in output.items():
            for outcome, decisions in WRITTEN.items():
                kept = min(entries[outcome], sum(written[role, decision] for decision in decisions))
                entries["answer" if role in responses and outcome == "written" else "cut"] += entries[outcome] - kept
                entries[outcome] = kept

    def _engine(self, role: str, output: Counter[str]) -> EngineLedger:
        sums = [sums for key, sums in self._calls.sums.items() if key.engine == role]
        read = {name: sum(getattr(each, name) for each in sums) for name in ("recomputed", "cached", "unstated")}
        read = {"computed": sum(each.read for each in sums) - sum(read.values()), **read}
        counted = self._outline.run.statistics(role)
        counted_output = None if counted is None else sum(each.output_tokens for each in counted)
        counted_input = None if counted is None else sum(each.input_tokens for each in counted)
        if counted_output is not None:
            output["unrecorded"] = counted_output - output.total()
        return EngineLedger(
            output={outcome: output[outcome] for outcome in OUTCOMES},
            input=read | {"unrecorded": 0 if counted_input is None else counted_input - sum(read.values())},
            speculated=_speculated(counted or []),
            counted_output=counted_output,
            counted_input=counted_input,
            why_unrecorded=tuple(self._why(role, counted)),
        )

    def _why(self, role: str, counted: Sequence[EngineStatistics] | None) -> Iterator[str]:
        if counted is None:
            yield "a session did not record what the engine counted: it is in progress, or was killed"
        if failed := self._calls.failed[role]:
            yield f"{failed} attempts failed; what was sampled for them is in the engine's count alone"
        if restarts := sum(each.restarts for each in counted or ()):
            yield f"the engine died {restarts} times; its last count before each death may be slightly out of date"
        if losses := sum(len(replica.losses) for session in self._outline.run.sessions for replica in session.replicas):
            yield f"replicas were lost {losses} times; what their engines counted last, and calls in flight then, may be missing"
        if any(session.status == "killed" for session in self._outline.run.sessions):
            yield "a session was killed; the calls that were in flight then left no rows"


def _speculated(counted: Sequence[EngineStatistics]) -> dict[str, int]:
    found = [each.speculation for each in counted if each.speculation is not None]
    proposed, accepted = sum(each.draft_tokens for each in found), sum(each.accepted_tokens for each in found)
    return {"accepted": accepted, "rejected": proposed - accepted} if found else {}
