"""Selection data: verifications that are answered with one token, with all options that are right (SCoT 3.4; SpecCoT 3.4; SpecReason 4.1).

Retraced chains enter, rows leave. A choice is right with each right candidate, or, where none is right, with the option that rejects
them all. A score is right with each digit from the threshold on where the step is right, with each digit below it where it is not.
"""

from collections.abc import Collection, Iterator
from typing import Any

from pipeline.errors import UsageError
from pipeline.graph.spec import StageSpec
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.score import ScoreSpec
from pipeline.training.examples import SelectionRow
from pipeline.training.labels import SOURCES, Labels, Source, has_rewards
from pipeline.training.retrace import Asked, RetracedChain, RetracedStep, Retracer

TRAINED = (ChooseSpec, ScoreSpec)
"""Stages whose verdict is one token."""


def judges(retracer: Retracer) -> dict[str, StageSpec]:
    """The stages of a run whose verifications can be trained, by name. Raises `UsageError` where it has none."""
    found: dict[str, StageSpec] = {node.name: node.spec for node in retracer.plan.stages() if isinstance(node.spec, TRAINED)}
    if not found:
        what = f"{retracer.run}: its graph, {retracer.record.graph}, has no `choose` or `score` stage, so it chose among no drafts"
        raise UsageError(f"--as selection: {what}; export a run of graphs/scot.yaml, graphs/speccot.yaml or graphs/specreason.yaml")
    return found


def default_source(retracer: Retracer) -> Source:
    """Where labels come from if nobody says: from answers for whole thoughts, for steps from rewards where the run has them."""
    if all(isinstance(spec, ChooseSpec) and spec.unit == "thought" for spec in judges(retracer).values()):
        return "answers"
    return "rewards" if has_rewards(retracer.run) else "verdicts"


def check_source(retracer: Retracer, source: Source) -> None:
    """Raise `UsageError` for labels from answers where steps are judged, which state no answer of their own."""
    assert source in SOURCES
    for name, spec in judges(retracer).items():
        if source == "answers" and not (isinstance(spec, ChooseSpec) and spec.unit == "thought"):
            what = f"the stage `{name}` of {retracer.run} judges steps, which state no answers"
            raise UsageError(f"--labels answers: {what}; use rewards or verdicts")


class Selections:
    """The selection rows of one run."""

    def __init__(self, retracer: Retracer, labels: Labels) -> None:
        self._retracer, self._labels, self._judges = retracer, labels, judges(retracer)
        self.unlabelled = 0
        """Verifications that were left out, because nobody knows what is right, or no option is."""

    def rows(self, chain: RetracedChain, origin: dict[str, Any]) -> Iterator[SelectionRow]:
        """A row for each verification of `chain`; `origin` are the columns that say where it comes from, but for the step and the model."""
        for step in chain.steps:
            for asked in step.asked:
                if asked.label.name not in self._judges:
                    continue
                row = self._row(chain, step, asked, origin)
                if row is None:
                    self.unlabelled += 1
                else:
                    yield row

    def _row(self, chain: RetracedChain, step: RetracedStep, asked: Asked, origin: dict[str, Any]) -> SelectionRow | None:
        found = self._labels.right(chain, step, asked.label.name, asked.distinct)
        if found is None:
            return None
        options, right, none = self._options(asked, found)
        if not right:
            return None
        builder = self._retracer.builders[asked.label.role]
        return SelectionRow(
            prompt=builder.tokenizer.decode(asked.request.prompt_ids),
            input_ids=tuple(asked.request.prompt_ids),
            option_ids=asked.request.option_ids,
            options=options,
            right=right,
            none=none,
            step_index=step.step.index,
            model=asked.label.model,
            **origin,
        )

    def _options(self, asked: Asked, found: Collection[int]) -> tuple[tuple[str, ...], tuple[int, ...], int | None]:
        """What the options of a request say, which are right if the candidates `found` are, and which of them rejects all."""
        spec, stage = self._judges[asked.label.name], self._retracer.stages[asked.label.name]
        builder = stage.builder  # type: ignore[attr-defined]
        if isinstance(spec, ScoreSpec):
            scores = builder.prompts.score.labels
            return scores, tuple(score for score in range(len(scores)) if (score >= spec.threshold) == bool(found)), None
        assert isinstance(spec, ChooseSpec)
        options = builder.options(spec.unit, len(asked.distinct), spec.reject)
        places = [place for place in range(len(options.all)) if place != options.none]
        right = tuple(place for place, index in zip(places, asked.distinct, strict=True) if index in found)
        if not right and options.none is not None:
            right = (options.none,)
        return options.all, right, options.none
