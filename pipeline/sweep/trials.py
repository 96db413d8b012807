"""The trial answers of a recorded run, which were asked for before its thoughts were over: its folder enters, what each was leaves.

Run folders hold their tokens, and no grades: here they are read as `stages.trial` reads them, and graded as the answers of the run are.
"""

import math
from pathlib import Path

from msgspec import Struct

from pipeline.engines.replay.recording import read_recording, tokenizer_of
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.errors import GraphError
from pipeline.grading.grader import Grader
from pipeline.graph.plan import settings_of
from pipeline.stages.trial import answer_in
from pipeline.store.query import Query

TRIALS = """
SELECT chain_id, calls.step_index - 1 AS step_index, calls.engine AS role, output_token_ids[1] AS ids, finish_reason[1] AS finish_reason,
       exp(logprob_mean[1]) AS sure, reference_answer AS reference, grader
FROM calls JOIN chains USING (chain_id) WHERE purpose = 'trial' AND output_token_ids[1] IS NOT NULL
"""


class _TrialCall(Struct, frozen=True):
    """What `TRIALS` gives."""

    chain_id: str
    step_index: int
    role: str
    ids: list[int]
    finish_reason: str
    sure: float | None
    reference: str | None
    grader: str


class TrialAnswer(Struct, frozen=True):
    """An answer that was asked for after a step."""

    sure: float
    """How sure the engine was, 0 to 1; 0 where it gave no answer."""
    correct: float
    """1 if it is right, 0 if not, NaN where that cannot be said."""


def trial_answers(folder: Path) -> dict[tuple[str, int], TrialAnswer]:
    """The trial answers of the run in `folder` by chain and index of the step after which they were asked for.

    Where the tokenizer of their engine cannot be had, no answer is graded, and each that came to its end counts as one.
    """
    with Query(folder) as db:
        calls = db.rows(TRIALS, _TrialCall)
    if not calls:
        return {}
    recording = read_recording(str(folder))
    role, plan = calls[0].role, recording.file.plan
    try:
        trust = bool(settings_of(recording.engine(role)).get("trust_remote_code"))
        tokenizer = tokenizer_of(role, ReplaySpec(run=str(folder), trust_remote_code=trust), recording)
    except GraphError:
        return {(call.chain_id, call.step_index): TrialAnswer(_sure(call, call.finish_reason == "stop"), math.nan) for call in calls}
    found = {}
    with Grader() as grader:
        for call in calls:
            answer = answer_in(plan.prompts.trial + tokenizer.decode(call.ids), call.finish_reason)
            graded = grader.grade(call.grader, answer, call.reference).correct if answer and call.reference is not None else None
            correct = math.nan if call.reference is None else 0.0 if answer is None else math.nan if graded is None else float(graded)
            found[call.chain_id, call.step_index] = TrialAnswer(_sure(call, answer is not None), correct)
    return found


def _sure(call: _TrialCall, answered: bool) -> float:
    return call.sure if answered and call.sure is not None else 0.0
