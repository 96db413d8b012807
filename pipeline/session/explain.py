"""`pipeline grade --explain`: how the verdicts on one row of a run come about. A run folder and the row's name enter, `Explanation`s leave.

Nothing is written. What is said is what the grading code recorded: `grading.stated` says where the answer was found, the
`Ruling` of a `Grade` what decided.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from pipeline.errors import InputError, UsageError, did_you_mean
from pipeline.grading.answers import as_kind, form_of, taken
from pipeline.grading.grader import LIMIT_S, Grader
from pipeline.grading.stated import WHOLE, stated_in
from pipeline.store.query import Query
from pipeline.store.read import has_table


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


CHAINS = """
SELECT chain_id, stop_reason, finished, answer_text, answer, reference_answer AS reference, correct AS recorded, grader,
       (SELECT string_agg(step_text, '' ORDER BY step_index) FROM steps WHERE steps.chain_id = chains.chain_id) AS thought
FROM chains WHERE $row IN (chain_id, problem_id) ORDER BY sample_index
"""
"""The chains of a row, each with its thought."""


class GradedChain(Struct, frozen=True):
    """What `CHAINS` gives."""

    chain_id: str
    stop_reason: str
    finished: bool
    answer_text: str | None
    answer: str | None
    reference: str | None
    recorded: bool | None
    grader: str
    thought: str | None


def explanations(run: Path, row: str, limit_s: float = LIMIT_S) -> list[Explanation]:
    """How the verdicts on all samples of the problem `row` come about, or on the one chain of that name.

    Raises `InputError` where there are no chains or they cannot be read, `UsageError` where none has that name.
    """
    if not has_table(run, "chains"):
        raise InputError(str(run), "is not a run folder with finished chains; expected chains/part-*.parquet in it")
    with Query(run) as db:
        found = db.rows(CHAINS, GradedChain, row=row)
        if not found:
            known = [name for (name,) in db.stream("SELECT DISTINCT problem_id FROM chains LIMIT 10_000")]
            raise UsageError(f"{run}: no finished chain or problem {row!r}; {did_you_mean(row, known)}")
    with Grader(1, limit_s) as grader:
        return [_explained(chain, grader) for chain in found if chain.chain_id == row or all(each.chain_id != row for each in found)]


def _explained(chain: GradedChain, grader: Grader) -> Explanation:
    kind = as_kind(chain.grader)
    verdict, why = None, None
    if chain.reference is None:
        why = "the problem has no reference answer"
    elif not chain.finished:
        why = f"the chain did not finish: {chain.stop_reason}"
    elif chain.answer is None:
        verdict, why = False, "there is no answer"
    found = Explanation(
        chain_id=chain.chain_id,
        verdict=verdict,
        recorded=chain.recorded,
        answer_text=chain.answer_text,
        answer=chain.answer,
        answer_is=None,
        reference=chain.reference,
        kind=kind,
        rule=why or "nothing",
    )
    if why is not None:
        return found
    grade = grader.grade(kind, str(chain.answer), str(chain.reference))
    ruling = grade.ruling
    return structs.replace(
        found,
        verdict=grade.correct,
        answer_is="; ".join(_found(chain, kind)),
        normal_answer=ruling.answer if ruling else None,
        normal_reference=ruling.reference if ruling else None,
        rule=grade.why or (ruling.rule if ruling else "nothing"),
    )


def _found(chain: GradedChain, kind: str) -> Iterator[str]:
    """Where the recorded answer is in the texts of the chain, and which part of it is compared."""
    answer = str(chain.answer)
    stated = stated_in(chain.answer_text or "", chain.thought or "", form_of(kind, str(chain.reference)))
    if stated is not None and stated.text == answer:
        yield stated.how
    else:
        yield "as recorded" if stated is None else f"as recorded; now {stated.text!r} would be used, {stated.how}"
    part = taken(kind, answer)
    if part.how != WHOLE:
        yield f"of it {part.text!r}, {part.how}"
