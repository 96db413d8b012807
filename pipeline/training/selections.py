"""Verifications of a run that were answered with one token, each with all options that are right (SCoT 3.4; SpecCoT 3.4; SpecReason 4.1).

A choice is right with each right candidate, or, where none is right, with the option that rejects them all. A score is right with each
digit from the threshold on where the step is right, with each digit below it where it is not.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pipeline.analysis.choices import draft_is_right
from pipeline.errors import UsageError
from pipeline.grading.answers import as_kind
from pipeline.grading.grader import Grader
from pipeline.reasoning.chain import Step
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.score import ScoreSpec
from pipeline.store.query import Query
from pipeline.store.store import table_files
from pipeline.training.examples import Found, tokenizer_hash
from pipeline.training.retrace import AskedRequest, RetracedChain, Retracer

Labels: TypeAlias = Literal["answers", "rewards", "verdicts"]
"""What says which candidates are right. `answers`: a whole thought is right when the answer that it states is (SCoT 3.4); where none is,
and one states no answer, nobody knows. `rewards`: a candidate is right when the run's reward model gives it at least `GOOD`.
`verdicts`: in a chain whose answer is right, what the verifier decided is right."""
LABELS: tuple[Labels, ...] = get_args(Labels)
REWARDS = """
SELECT chain_id, step_index, candidate_index, reward FROM rewards WHERE candidate_index IS NOT NULL AND reward IS NOT NULL"""
GOOD = 0.5
"""The least reward of a right candidate: more likely good than bad."""


class Selections:
    """The verifications of one run; raises `UsageError` for a run that has none, or cannot say what is right by `labels`."""

    def __init__(self, run: Path, labels: Labels | None, grader: Grader) -> None:
        """labels: None: answers where whole thoughts are judged; of steps rewards, where the run has them, else verdicts."""
        self._retracer, self._grader = Retracer(run), grader
        self._judges = {node.name: node.spec for node in self._retracer.plan.stages() if isinstance(node.spec, ChooseSpec | ScoreSpec)}
        if not self._judges:
            what = f"{run}: its graph, {self._retracer.record.graph}, has no `choose` or `score` stage, so it chose among no drafts"
            raise UsageError(f"--as selection: {what}; export a run of scot, speccot or specreason")
        of_steps = [name for name, spec in self._judges.items() if not (isinstance(spec, ChooseSpec) and spec.unit == "thought")]
        scored = bool(table_files(run, "rewards"))
        self._labels = labels or ("answers" if not of_steps else "rewards" if scored else "verdicts")
        if self._labels == "answers" and of_steps:
            what = f"the stage `{of_steps[0]}` of {run} judges steps, which state no answers"
            raise UsageError(f"--labels answers: {what}; use rewards or verdicts")
        if self._labels == "rewards" and not scored:
            raise UsageError(f"--labels rewards: {run} has no rewards; score its candidates with `pipeline score {run} --prm FILE`")
        self._rewards: dict[tuple[str, int, int], float] = {}
        """By chain, step and candidate."""
        if self._labels == "rewards":
            with Query(run) as db:
                self._rewards = {(chain, step, index): reward for chain, step, index, reward in db.stream(REWARDS)}

    def found(self, left_out: Counter[str]) -> Iterator[Found]:
        """Each verification that has a right option. What gives no row is counted in `left_out` by the reason, as a clause."""
        for chain in self._retracer.chains():
            of_chain = chain.chain.problem, chain.row.chain_id, chain.row.correct
            for step, requests in chain.steps:
                for asked in requests:
                    if asked.label.name in self._judges:
                        found = self._right(chain, step, asked)
                        options, right = ((), ()) if found is None else self._options(asked, found)
                        if right:
                            yield *of_chain, self._columns(step, asked) | {"options": options, "right": right}
                        else:
                            left_out["verifications without a known right option"] += 1
        lost, unfinished = "chains whose recorded calls do not lead to their recorded steps", "chains that failed or were not finished"
        left_out += Counter({lost: self._retracer.lost, unfinished: self._retracer.unfinished})

    def _columns(self, step: Step, asked: AskedRequest) -> dict[str, Any]:
        tokenizer, ids = self._retracer.builders[asked.label.role].tokenizer, tuple(asked.request.prompt_ids)
        return {
            "step_index": step.index,
            "model": asked.label.model,
            "tokenizer": tokenizer_hash(tokenizer),
            "prompt": tokenizer.decode(ids),
            "input_ids": ids,
            "option_ids": asked.request.option_ids,
        }

    def _options(self, asked: AskedRequest, found: Collection[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The texts of the options of a request, and which of them are right if the candidates `found` are."""
        spec, stage = self._judges[asked.label.name], self._retracer.stages[asked.label.name]
        builder = stage.builder  # type: ignore[attr-defined]
        if isinstance(spec, ScoreSpec):
            scores = builder.prompts.score.labels
            return scores, tuple(score for score in range(len(scores)) if (score >= spec.threshold) == bool(found))
        options = builder.options(spec.unit, len(asked.distinct), spec.reject)
        places = [place for place in range(len(options.all)) if place != options.none]
        right = tuple(place for place, index in zip(places, asked.distinct, strict=True) if index in found)
        return options.all, right if right or options.none is None else (options.none,)

    def _right(self, chain: RetracedChain, step: Step, asked: AskedRequest) -> Collection[int] | None:
        """The indices of the judged candidates that are right, perhaps none; None where nobody knows."""
        judged = asked.distinct
        if self._labels == "answers":
            return self._by_answers(chain, step, judged)
        if self._labels == "rewards":
            places = {index: (chain.row.chain_id, step.index, index) for index in judged}
            if not self._rewards.keys() >= {*places.values()}:
                return None
            return {index for index, place in places.items() if self._rewards[place] >= GOOD}
        if not chain.row.correct:
            return None
        # Of two stages that judged a step the first one had rejected all.
        verdict = step.verdict if step.verify_stage == asked.label.name else None
        return set() if verdict is None else {*judged} & {verdict.chosen}

    def _by_answers(self, chain: RetracedChain, step: Step, judged: Iterable[int]) -> Collection[int] | None:
        reference = chain.row.reference_answer
        if reference is None:
            return None
        kind = as_kind(chain.row.grader)
        found = {index: draft_is_right(step.candidates[index].text, kind, reference, self._grader) for index in judged}
        right = {index for index, correct in found.items() if correct}
        return None if not right and None in found.values() else right
