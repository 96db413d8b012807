"""The wasted-work ledger: what became of every token that the engines sampled and read. A run folder enters, one `Ledger` leaves."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.analysis.quality.selection import stages_of
from pipeline.analysis.time.calls import Calls, is_long, observe
from pipeline.analysis.time.outline import FINISHED, LOST, Outline
from pipeline.analysis.tokens.ledger_calls import GUIDES, LATER, CallKey, CallSums, CallTokens
from pipeline.analysis.tokens.ledger_steps import read_step_tokens, read_written

PURPOSES = (
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
"""What a sampled token came to, each in exactly one:

- `committed`: in a drafted step that was accepted.
- `guidance`, `written`, `fallback`: in a step that an engine wrote by itself: to give the direction, on its own account (first
  steps, and thoughts of graphs without drafts), or after the drafts were rejected.
- `answer`: after the thought.
- `verification`: a verdict.
- `not_chosen`: in another candidate of a step that was accepted.
- `rejected`: in a candidate of a step of which none was accepted.
- `cut`: sampled and not kept: end-of-sequence tokens, and what was cut off behind a step's end.
- `retried`: in an attempt that failed, as far as its row knows of tokens.
- `lost_chains`: any of the above, in a chain that failed or was cancelled.
- `unfinished`: likewise, in a chain that has no row (yet): the run goes on, or was killed.
- `unrecorded`: the engine's own count less all of the above; see `EngineLedger.why_unrecorded`.
"""
WRITTEN = {"guidance": ("guidance",), "written": ("first_steps", "written"), "fallback": ("fallback",)}
"""Decisions of the steps that engines write by themselves."""
USEFUL = ("committed", "guidance", "written", "fallback", "answer")
WASTED = ("not_chosen", "rejected", "cut", "retried", "lost_chains", "unrecorded")
"""The rest, `verification` and `unfinished`, is neither."""


class EngineLedger(Struct, frozen=True, kw_only=True):
    """One engine's tokens."""

    output: dict[str, int]
    """Sampled tokens by each of `PURPOSES`; their sum is `counted_output`, where that is known."""
    input: dict[str, int]
    """Prompt tokens that were `computed`, found in the prefix cache (`cached`), or are `unrecorded`; the sum is `counted_input`."""
    speculated: dict[str, int]
    """Tokens that it proposed to itself, `accepted` and `rejected`, by its own count; those accepted are among the output too.
    Empty where it does not speculate."""
    counted_output: int | None
    """By the engine's own counter, over all sessions; null where a session left no word: then nothing is `unrecorded`."""
    counted_input: int | None
    why_unrecorded: tuple[str, ...]
    """What can account for a number in `unrecorded` in this run; empty where it must be 0."""


class Ledger(Struct, frozen=True, kw_only=True):
    """All engines of a run, by role."""

    engines: dict[str, EngineLedger]

    def output(self, purpose: str) -> int:
        """Tokens of one of `PURPOSES`, of all engines."""
        return sum(each.output[purpose] for each in self.engines.values())

    @property
    def output_tokens(self) -> int:
        """All sampled tokens."""
        return sum(sum(each.output.values()) for each in self.engines.values())

    @property
    def useful_share(self) -> float | None:
        """Share of the sampled tokens that are in thoughts and answers, 0 to 1; null where there are none."""
        return self._share(USEFUL)

    @property
    def waste_share(self) -> float | None:
        """Share of the sampled tokens that came to nothing, 0 to 1."""
        return self._share(WASTED)

    @property
    def verification_share(self) -> float | None:
        """Share of the sampled tokens that are verdicts; their cost is in reading, see `EngineLedger.input`."""
        return self._share(("verification",))

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens that were in a prefix cache."""
        total = sum(sum(each.input.values()) for each in self.engines.values())
        return sum(each.input["cached"] for each in self.engines.values()) / total if total else None

    def _share(self, purposes: tuple[str, ...]) -> float | None:
        return sum(map(self.output, purposes)) / self.output_tokens if self.output_tokens else None


def ledger(run: Path) -> Ledger:
    """The ledger of the run folder `run`; raises `InputError` when that has no trace that can be read."""
    [clerk] = observe(run, lambda outline: (Clerk(run, outline, fast=is_long(run)),))
    return clerk.ledger()


class Clerk:
    """Looks at calls, and at the steps of the run folder `run`."""

    columns: tuple[str, ...] = CallTokens.columns

    def __init__(self, run: Path, outline: Outline, *, fast: bool) -> None:
        self._run, self._outline = run, outline
        self._steps = read_step_tokens(run, outline)
        self._calls = CallTokens(outline, self._steps.first_steps, fast=fast)

    def add(self, calls: Calls) -> None:
        """Look at some calls."""
        self._calls.add(calls)

    def ledger(self) -> Ledger:
        """What the calls so far come to."""
        output = {role: Counter(dict.fromkeys(PURPOSES, 0)) for role in self._outline.engines}
        for key, sums in self._calls.sums.items():
            self._enter(output[key.engine], key, sums)
        for role, entries in output.items():
            entries["retried"] += self._calls.retried[role]
            self._enter_drafts(role, entries)
        self._settle(output)
        return Ledger(engines={role: self._engine(role, entries) for role, entries in output.items()})

    def _enter(self, entries: Counter[str], key: CallKey, sums: CallSums) -> None:
        """Count calls in; of drafts all as rejected, to begin with."""
        if key.status != FINISHED:
            entries["lost_chains" if key.status == LOST else "unfinished"] += sums.sampled
        elif key.purpose == "draft":
            entries["rejected"] += sums.sampled
        elif key.purpose == "judge":
            entries["verification"] += sums.sampled
        else:
            entries[self._purpose(key)] += sums.sampled - sums.ended
            entries["cut"] += sums.ended

    def _purpose(self, key: CallKey) -> str:
        """What a call writes that neither drafts nor judges."""
        if key.purpose == "answer":
            return "answer"
        if key.place == GUIDES:
            return "guidance"
        return "fallback" if key.place == LATER and (key.stage, "fallback") in self._steps.decisions else "written"

    def _enter_drafts(self, role: str, entries: Counter[str]) -> None:
        """What else than rejected the drafted tokens came to."""
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
        """Where thoughts hold other than the calls say: responses are thought and answer, and a step's text may have been cut."""
        responses = {spec["engine"] for _, spec in stages_of(self._outline.card.graph) if spec.get("unit") == "response"}
        thoughts = int(self._outline.chains.thought_tokens[self._outline.chains.status == FINISHED].sum())
        entered = sum(entries[purpose] for entries in output.values() for purpose in ("committed", *WRITTEN))
        if thoughts == entered:
            return
        written = read_written(self._run, self._outline)
        for role, entries in output.items():
            for purpose, decisions in WRITTEN.items():
                kept = min(entries[purpose], sum(written[role, decision] for decision in decisions))
                entries["answer" if role in responses and purpose == "written" else "cut"] += entries[purpose] - kept
                entries[purpose] = kept

    def _engine(self, role: str, output: Counter[str]) -> EngineLedger:
        sums = [sums for key, sums in self._calls.sums.items() if key.engine == role]
        cached = sum(each.cached for each in sums)
        read = {"computed": sum(each.read for each in sums) - cached, "cached": cached}
        counted = self._outline.card.statistics(role)
        if counted is not None:
            output["unrecorded"] = _sum(counted, "output_tokens") - output.total()
        return EngineLedger(
            output={purpose: output[purpose] for purpose in PURPOSES},
            input=read | {"unrecorded": 0 if counted is None else _sum(counted, "input_tokens") - sum(read.values())},
            speculated=_speculated(counted or []),
            counted_output=None if counted is None else _sum(counted, "output_tokens"),
            counted_input=None if counted is None else _sum(counted, "input_tokens"),
            why_unrecorded=tuple(self._why(role, counted)),
        )

    def _why(self, role: str, counted: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
        if counted is None:
            yield "a session left no word of what the engine counted: it goes on, or was killed"
        if failed := self._calls.failed[role]:
            yield f"{failed} attempts failed; what was sampled for them is in the engine's count alone"
        if restarts := _sum(counted or [], "restarts"):
            yield f"the engine died {restarts} times; its last count before a death may be of a moment earlier"
        if any(session.get("status") == "killed" for session in self._outline.card.sessions):
            yield "a session was killed; the calls that were in flight then left no rows"


def _sum(counted: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(each.get(name) or 0) for each in counted)


def _speculated(counted: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found = [each["speculation"] for each in counted if each.get("speculation")]
    proposed, accepted = _sum(found, "draft_tokens"), _sum(found, "accepted_tokens")
    return {"accepted": accepted, "rejected": proposed - accepted} if found else {}
