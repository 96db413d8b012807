"""`pipeline grade --explain`: how the verdicts on one row of a run come about. A run folder and the row's name enter, `Explanation`s leave.

Nothing is written. What is said is what the grading code recorded: `grading.stated` says where the answer was found, the
`Ruling` of a `Grade` what decided.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.errors import InputError, UsageError, did_you_mean
from pipeline.grading.answers import as_kind, form_of, taken
from pipeline.grading.grader import LIMIT_S, Grader
from pipeline.grading.stated import WHOLE, stated_in
from pipeline.session.regrade import NEEDED
from pipeline.store.events import UNFINISHED
from pipeline.store.read import has_table, read_batches

MAX_KNOWN = 10_000
"""Names of rows that are kept to suggest one of them."""


class Explanation(Struct, frozen=True, kw_only=True):
    """How the verdict on one chain comes about."""

    chain_id: str
    verdict: bool | None
    """True if its answer is right; None where there is nothing to compare, or it cannot be compared here."""
    recorded: bool | None
    """The verdict in the run folder; `pipeline grade RUN` writes a new one."""
    answer_text: str | None
    """What the answer stage wrote; None where there was none, or texts were not kept."""
    answer: str | None
    """The text that is graded as the answer; None where the chain gave none."""
    answer_is: str | None
    """Where it was found, such as `the last box`."""
    reference: str | None
    kind: str
    """How it is graded: `math`, `numeric`, `letter`, or by an announced grader."""
    normal_answer: str | None = None
    """The answer in the form in which it was compared; None where that did not come about."""
    normal_reference: str | None = None
    rule: str
    """What decided, or why nothing could."""


def explanations(run: Path, row: str, limit_s: float = LIMIT_S) -> list[Explanation]:
    """How the verdicts on all samples of the problem `row` come about, or on the one chain of that name.

    Raises `InputError` where there are no chains or they cannot be read, `UsageError` where none has that name.
    """
    if not has_table(run, "chains"):
        raise InputError(str(run), "is not a run folder with finished chains; expected chains/part-*.parquet in it")
    chains = _chains(run, row)
    thoughts = _thoughts(run, {chain["chain_id"] for chain in chains})
    with Grader(1, limit_s) as grader:
        return [_explained(chain, thoughts.get(chain["chain_id"], ""), grader) for chain in chains]


def _chains(run: Path, row: str) -> list[dict[str, Any]]:
    known: dict[str, None] = {}
    found = []
    for batch in read_batches(run, "chains", [*NEEDED, "problem_id", "answer_text"]):
        for chain in batch.to_pylist():
            if row in (chain["chain_id"], chain["problem_id"]):
                found.append(chain)
            elif len(known) < MAX_KNOWN:
                known[chain["problem_id"]] = None
    if not found:
        raise UsageError(f"{run}: no finished chain or problem {row!r}; {did_you_mean(row, list(known))}")
    return [chain for chain in found if chain["chain_id"] == row] or found


def _thoughts(run: Path, chains: set[str]) -> dict[str, str]:
    """The thoughts of these chains."""
    steps: dict[str, list[str]] = {}
    for batch in read_batches(run, "steps", ["chain_id", "step_text"]):
        for step in batch.to_pylist():
            if step["chain_id"] in chains:
                steps.setdefault(step["chain_id"], []).append(step["step_text"] or "")
    return {chain: "".join(texts) for chain, texts in steps.items()}


def _explained(chain: dict[str, Any], thought: str, grader: Grader) -> Explanation:
    answer, reference, kind = chain["answer"], chain["reference_answer"], as_kind(chain["grader"])
    said = {"answer_text": chain["answer_text"], "answer": answer, "reference": reference, "kind": kind, "recorded": chain["correct"]}
    if reference is None or chain["stop_reason"] in UNFINISHED:
        why = "the problem has no reference answer" if reference is None else f"the chain did not finish: {chain['stop_reason']}"
        return Explanation(chain_id=chain["chain_id"], verdict=None, answer_is=None, rule=why, **said)
    if answer is None:
        return Explanation(chain_id=chain["chain_id"], verdict=False, answer_is=None, rule="there is no answer", **said)
    grade = grader.grade(kind, answer, reference)
    ruling = grade.ruling
    return Explanation(
        chain_id=chain["chain_id"],
        verdict=grade.correct,
        answer_is="; ".join(_found(chain, thought, kind)),
        normal_answer=ruling.answer if ruling else None,
        normal_reference=ruling.reference if ruling else None,
        rule=grade.why or (ruling.rule if ruling else "nothing"),
        **said,
    )


def _found(chain: dict[str, Any], thought: str, kind: str) -> Iterator[str]:
    """Where the recorded answer is in the texts of the chain, and which part of it is compared."""
    answer = chain["answer"]
    stated = stated_in(chain["answer_text"] or "", thought, form_of(kind, chain["reference_answer"]))
    if stated is not None and stated.text == answer:
        yield stated.how
    else:
        yield "as recorded" if stated is None else f"as recorded; now {stated.text!r} would be used, {stated.how}"
    part = taken(kind, answer)
    if part.how != WHOLE:
        yield f"of it {part.text!r}, {part.how}"
