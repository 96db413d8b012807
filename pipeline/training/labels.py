"""Which options of a verification are right: a retraced chain and its judged candidates enter, indices of right candidates leave.

`answers`: a whole thought is right when the answer that it states is (SCoT 3.4); where none is, and one states no answer, nobody knows.
`rewards`: a candidate is right when the run's reward model gives it at least `GOOD`. `verdicts`: in a chain whose answer is right, what
the verifier decided is right.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pipeline.analysis.quality.selection import draft_is_right
from pipeline.errors import UsageError
from pipeline.grading.answers import as_kind
from pipeline.grading.grader import Grader
from pipeline.store.read import files, read_batches
from pipeline.training.retrace import RetracedChain, RetracedStep

Source: TypeAlias = Literal["answers", "rewards", "verdicts"]
SOURCES: tuple[Source, ...] = get_args(Source)
GOOD = 0.5
"""The least reward of a right candidate: more likely good than bad."""


class Labels:
    """What is right in the chains of one run."""

    def __init__(self, run: Path, source: Source, grader: Grader) -> None:
        """Raises `UsageError` for rewards that the run does not have."""
        self.source, self._grader = source, grader
        self._rewards: Mapping[tuple[str, int, int], float] = _rewards(run) if source == "rewards" else {}

    def right(self, chain: RetracedChain, step: RetracedStep, stage: str, judged: Iterable[int]) -> Collection[int] | None:
        """Those of the candidates with the indices `judged`, about which `stage` decided, that are right, perhaps none; None where nobody
        knows."""
        if self.source == "answers":
            return self._by_answers(chain, step, judged)
        if self.source == "rewards":
            return self._by_rewards(chain, step, judged)
        if not chain.correct:
            return None
        verdict = step.step.verdict
        accepted = verdict is not None and step.step.verify_stage == stage  # of two that judged a step the first one had rejected all
        return set(judged) & {verdict.chosen} if accepted and verdict is not None else set()

    def _by_answers(self, chain: RetracedChain, step: RetracedStep, judged: Iterable[int]) -> Collection[int] | None:
        reference = chain.reference_answer
        if reference is None:
            return None
        kind = as_kind(chain.grader)
        found = {index: draft_is_right(step.step.candidates[index].text, kind, reference, self._grader) for index in judged}
        right = {index for index, correct in found.items() if correct}
        return None if not right and None in found.values() else right

    def _by_rewards(self, chain: RetracedChain, step: RetracedStep, judged: Iterable[int]) -> Collection[int] | None:
        places = {index: (chain.chain.chain_id, step.step.index, index) for index in judged}
        if any(place not in self._rewards for place in places.values()):
            return None
        return {index for index, place in places.items() if self._rewards[place] >= GOOD}


def _rewards(run: Path) -> dict[tuple[str, int, int], float]:
    """The reward of every candidate that was scored, by its chain, step and index."""
    if not has_rewards(run):
        raise UsageError(f"--labels rewards: {run} has no rewards; score its candidates with `pipeline score {run} --prm FILE`")
    found = {}
    for batch in read_batches(run, "rewards", ["chain_id", "step_index", "candidate_index", "reward"]):
        for row in batch.to_pylist():
            if row["candidate_index"] is not None and row["reward"] is not None:
                found[row["chain_id"], row["step_index"], row["candidate_index"]] = row["reward"]
    return found


def has_rewards(run: Path) -> bool:
    """Whether the candidates of a run were scored by a reward model."""
    return bool(files(run, "rewards"))
