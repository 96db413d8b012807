"""The formats of training data: retraced chains enter, rows of one format leave, as text or as token ids.

`sft`: what the chains of a run wrote, for a model to learn to write (SCoT 3.3: the target's thoughts, for the draft). `selection`:
verifications that are answered with one token, with all options that are right (SCoT 3.4; SpecCoT 3.4; SpecReason 4.1). `preference`: each
drafted step that was rejected, next to the step that was written instead.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

from msgspec import Struct

from pipeline.analysis.quality.selection import draft_is_right
from pipeline.errors import UsageError, did_you_mean
from pipeline.grading.answers import as_kind
from pipeline.grading.grader import Grader
from pipeline.graph.prompts import DELIMITER, Message
from pipeline.reasoning.chain import Chain
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.score import ScoreSpec
from pipeline.store.store import has_table, read_batches
from pipeline.training.examples import (
    IGNORED,
    Origin,
    PreferenceRow,
    PreferenceTokensRow,
    SelectionRow,
    SftRow,
    SftTokensRow,
    tokenizer_hash,
)
from pipeline.training.retrace import LEARNER, AskedRequest, RetracedChain, RetracedStep, Retracer

Format: TypeAlias = Literal["sft", "selection", "preference"]
Part: TypeAlias = Literal["thought", "response"]
"""`thought`: up to the mark that closes it (SCoT 3.3); `response`: with the answer, to the end of the sequence."""
Source: TypeAlias = Literal["answers", "rewards", "verdicts"]
"""What says which candidates are right. `answers`: a whole thought is right when the answer that it states is (SCoT 3.4); where none is,
and one states no answer, nobody knows. `rewards`: a candidate is right when the run's reward model gives it at least `GOOD`.
`verdicts`: in a chain whose answer is right, what the verifier decided is right."""
SOURCES: tuple[Source, ...] = get_args(Source)
GOOD = 0.5
"""The least reward of a right candidate: more likely good than bad."""
WHOLE = ("thought_closed", "answer_boxed", "answer_confident", "answer_stable")
"""The stop reasons of thoughts that were not cut."""
GRAPHS = "export a run of graphs/scot.yaml, graphs/speccot.yaml or graphs/specreason.yaml"


class Wanted(Struct, frozen=True, kw_only=True):
    """The training data that is wanted of some runs."""

    format: Format
    tokens: bool = False
    """Token ids rather than text; a selection has both."""
    completion: Part = "thought"
    """Of `sft`: what is to be learnt."""
    engine: str | None = None
    """Of `sft`: the role of the model that learns; None: the only role, or else `draft`."""
    model: str | None = None
    """Of `sft`: a model that was not in the run and learns, by folder, hub name or `bundled:NAME`."""
    labels: Source | None = None
    """Of `selection`: what says which options are right; None: see `Selections.source`."""
    correct: bool = False
    """Only chains whose answer is right."""
    validation: float = 0.1
    """The share of the problems in the split `validation`, 0 to 1."""


class Maker(Protocol):
    """Makes the rows of one run in one format."""

    nothing: str
    """Why a run that could give rows gives none, as a clause."""
    left_out: Counter[str]
    """The number of chains or verifications without a row, by the reason, as a clause."""

    def __init__(self, retracer: Retracer, wanted: Wanted, grader: Grader) -> None:
        """Raises `UsageError` for a run that cannot give what is wanted."""

    def rows(self, chain: RetracedChain, origin: dict[str, Any]) -> Iterator[Origin]:
        """The rows of a chain; `origin` are the columns that say where they come from, but for the step and the model."""


class Replies:
    """`sft`: a row for each chain whose text is whole; what was cut would teach a model never to end."""

    nothing = "no chain ended"

    def __init__(self, retracer: Retracer, wanted: Wanted, grader: Grader) -> None:
        self._key, self._model = _learner(retracer, wanted)
        self._builder, self._tokens = retracer.builders[self._key], wanted.tokens
        self._with_answer = wanted.completion == "response" or not self._builder.thinks
        self.left_out: Counter[str] = Counter()

    def rows(self, chain: RetracedChain, origin: dict[str, Any]) -> Iterator[Origin]:
        if chain.stop_reason not in WHOLE or (self._with_answer and not chain.ended):
            self.left_out["chains whose text was cut"] += 1
            return
        origin = {**origin, **_made_with(self._model, self._builder), "step_index": 0}
        yield self._token_row(chain.chain, origin) if self._tokens else self._text_row(chain.chain, origin)

    def _text_row(self, chain: Chain, origin: dict[str, Any]) -> SftRow:
        """The chat as messages; the reply has both marks of the thought, as chat templates take it."""
        prompts, problem = self._builder.prompts, chain.problem
        asked = Message("user", prompts.asked(problem.problem, problem.options))
        said = (Message("assistant", self._said(chain)),)
        return SftRow(prompt=(*prompts.before(problem.history), asked), completion=said, **origin)

    def _token_row(self, chain: Chain, origin: dict[str, Any]) -> SftTokensRow:
        """The prompt of serving, and the thought as it follows it in the context of a chain."""
        builder, begin, context = self._builder, chain.begins[self._key], chain.contexts[self._key]
        reply = list(context[begin:])
        if builder.think_close_id is not None and reply[-1:] != [builder.think_close_id]:
            reply += builder.close_thought_ids if self._with_answer else [builder.think_close_id]
        if self._with_answer and chain.answer is not None:
            reply += [*chain.translate(chain.answer, self._key), *sorted(builder.tokenizer.eos_ids)[:1]]
        return SftTokensRow(input_ids=(*context[:begin], *reply), labels=(*[IGNORED] * begin, *reply), **origin)

    def _said(self, chain: Chain) -> str:
        """The whole reply as text."""
        marks, thought = self._builder.prompts.thought, "".join(span.text for span in chain.thought)
        answer = chain.answer.text if self._with_answer and chain.answer is not None else ""
        if not self._builder.thinks:
            return answer
        begun = f"{marks.open}\n{thought.removesuffix(marks.close)}{marks.close}"
        return f"{begun}{answer}" if answer[:1].isspace() or not answer else f"{begun}{DELIMITER}{answer}"


class Selections:
    """`selection`: a row for each verification whose verdict is one token.

    A choice is right with each right candidate, or, where none is right, with the option that rejects them all. A score is right with each
    digit from the threshold on where the step is right, with each digit below it where it is not.
    """

    nothing = "nothing was verified"

    def __init__(self, retracer: Retracer, wanted: Wanted, grader: Grader) -> None:
        self._retracer, self._grader, run = retracer, grader, retracer.run
        self._judges = {node.name: node.spec for node in retracer.plan.stages() if isinstance(node.spec, ChooseSpec | ScoreSpec)}
        if not self._judges:
            what = f"{run}: its graph, {retracer.record.graph}, has no `choose` or `score` stage, so it chose among no drafts"
            raise UsageError(f"--as selection: {what}; {GRAPHS}")
        of_steps = [name for name, spec in self._judges.items() if not (isinstance(spec, ChooseSpec) and spec.unit == "thought")]
        scored = has_table(run, "rewards")
        self.source = wanted.labels or ("answers" if not of_steps else "rewards" if scored else "verdicts")
        """Where labels come from: if nobody says, from answers for whole thoughts, for steps from rewards where the run has them."""
        if self.source == "answers" and of_steps:
            what = f"the stage `{of_steps[0]}` of {run} judges steps, which state no answers"
            raise UsageError(f"--labels answers: {what}; use rewards or verdicts")
        if self.source == "rewards" and not scored:
            raise UsageError(f"--labels rewards: {run} has no rewards; score its candidates with `pipeline score {run} --prm FILE`")
        self._rewards = _rewards(run) if self.source == "rewards" else {}
        self.left_out: Counter[str] = Counter()

    def rows(self, chain: RetracedChain, origin: dict[str, Any]) -> Iterator[Origin]:
        for step in chain.steps:
            for asked in step.asked:
                if asked.label.name in self._judges:
                    found = self._right(chain, step, asked)
                    options, right, none = ((), (), None) if found is None else self._options(asked, found)
                    if right:
                        yield self._row(step, asked, options, right, none, origin)
                    else:
                        self.left_out["verifications without a known right option"] += 1

    def _row(
        self,
        step: RetracedStep,
        asked: AskedRequest,
        options: tuple[str, ...],
        right: tuple[int, ...],
        none: int | None,
        origin: dict[str, Any],
    ) -> SelectionRow:
        builder, ids = self._retracer.builders[asked.label.role], tuple(asked.request.prompt_ids)
        return SelectionRow(
            prompt=builder.tokenizer.decode(ids),
            input_ids=ids,
            option_ids=asked.request.option_ids,
            options=options,
            right=right,
            none=none,
            step_index=step.step.index,
            **_made_with(asked.label.model, builder),
            **origin,
        )

    def _options(self, asked: AskedRequest, found: Collection[int]) -> tuple[tuple[str, ...], tuple[int, ...], int | None]:
        """The texts of the options of a request, which are right if the candidates `found` are, and which of them rejects all."""
        spec, stage = self._judges[asked.label.name], self._retracer.stages[asked.label.name]
        builder = stage.builder  # type: ignore[attr-defined]
        if isinstance(spec, ScoreSpec):
            scores = builder.prompts.score.labels
            return scores, tuple(score for score in range(len(scores)) if (score >= spec.threshold) == bool(found)), None
        options = builder.options(spec.unit, len(asked.distinct), spec.reject)
        places = [place for place in range(len(options.all)) if place != options.none]
        right = tuple(place for place, index in zip(places, asked.distinct, strict=True) if index in found)
        if not right and options.none is not None:
            right = (options.none,)
        return options.all, right, options.none

    def _right(self, chain: RetracedChain, step: RetracedStep, asked: AskedRequest) -> Collection[int] | None:
        """The indices of the judged candidates that are right, perhaps none; None where nobody knows."""
        judged = asked.distinct
        if self.source == "answers":
            return self._by_answers(chain, step, judged)
        if self.source == "rewards":
            rewards = {index: self._rewards.get((chain.chain.chain_id, step.step.index, index)) for index in judged}
            known = {index: reward for index, reward in rewards.items() if reward is not None}
            return {index for index, reward in known.items() if reward >= GOOD} if len(known) == len(rewards) else None
        if not chain.correct:
            return None
        verdict = step.step.verdict
        # Of two stages that judged a step the first one had rejected all.
        accepted = verdict is not None and step.step.verify_stage == asked.label.name
        return set(judged) & {verdict.chosen} if accepted and verdict is not None else set()

    def _by_answers(self, chain: RetracedChain, step: RetracedStep, judged: Iterable[int]) -> Collection[int] | None:
        reference = chain.reference_answer
        if reference is None:
            return None
        kind = as_kind(chain.grader)
        found = {index: draft_is_right(step.step.candidates[index].text, kind, reference, self._grader) for index in judged}
        right = {index for index, correct in found.items() if correct}
        return None if not right and None in found.values() else right


class Preferences:
    """`preference`: a row for each different rejected candidate of each step that was written after a rejection."""

    nothing = "no draft was rejected"

    def __init__(self, retracer: Retracer, wanted: Wanted, grader: Grader) -> None:
        self._builders, self._tokens = retracer.builders, wanted.tokens
        specs = [node.spec for node in retracer.plan.stages()]
        if not any(spec.drafts for spec in specs) or not any(spec.judges and spec.may_reject for spec in specs):
            what = f"{retracer.run}: its graph, {retracer.record.graph}, drafts nothing that could be rejected"
            raise UsageError(f"--as preference: {what}; {GRAPHS}")
        self.left_out: Counter[str] = Counter()

    def rows(self, chain: RetracedChain, origin: dict[str, Any]) -> Iterator[Origin]:
        for step in chain.steps:
            if step.step.decision == "fallback":
                yield from self._of_step(chain.chain, step, origin)

    def _of_step(self, chain: Chain, step: RetracedStep, origin: dict[str, Any]) -> Iterator[Origin]:
        written = step.step.span
        builder = self._builders[written.role]
        prompt = next(asked for asked in reversed(step.asked) if asked.label.purpose == "write")
        origin = {**origin, **_made_with(prompt.label.model, builder), "step_index": step.step.index}
        ids = tuple(prompt.request.prompt_ids)
        for rejected in {each.text: each for each in step.step.candidates if each.text != written.text}.values():
            if self._tokens:
                rejected_ids = tuple(chain.translate(rejected, written.role))
                yield PreferenceTokensRow(prompt_ids=ids, chosen_ids=written.ids, rejected_ids=rejected_ids, **origin)
            else:
                asked, said = (Message("user", builder.tokenizer.decode(ids)),), (written.text, rejected.text)
                chosen, other = ((Message("assistant", text),) for text in said)
                yield PreferenceRow(prompt=asked, chosen=chosen, rejected=other, **origin)


FORMATS: dict[Format, tuple[type[Maker], type[Origin], type[Origin]]] = {
    "sft": (Replies, SftRow, SftTokensRow),
    "selection": (Selections, SelectionRow, SelectionRow),
    "preference": (Preferences, PreferenceRow, PreferenceTokensRow),
}
"""The class that makes the rows of each format, and their columns as text and as token ids."""


def _learner(retracer: Retracer, wanted: Wanted) -> tuple[str, str]:
    """The key of the model that is to learn from a run, and its name; raises `UsageError`."""
    if wanted.model is not None:
        return LEARNER, wanted.model
    roles = list(retracer.plan.engines)
    role = wanted.engine or (roles[0] if len(roles) == 1 else "draft")
    if role not in roles:
        said = did_you_mean(role, roles)
        raise UsageError(f"--engine {role}: {retracer.run} has no such engine; {said}, or name a model with --model")
    return role, retracer.record.model(role)


def _made_with(model: str, builder: PromptBuilder) -> dict[str, Any]:
    """The columns about the model whose tokenizer made the token ids of a row."""
    return {"model": model, "tokenizer": tokenizer_hash(builder.tokenizer)}


def _rewards(run: Path) -> dict[tuple[str, int, int], float]:
    """The reward of every candidate that was scored, by its chain, step and index."""
    return {
        (row["chain_id"], row["step_index"], row["candidate_index"]): row["reward"]
        for batch in read_batches(run, "rewards", ["chain_id", "step_index", "candidate_index", "reward"])
        for row in batch.to_pylist()
        if row["candidate_index"] is not None and row["reward"] is not None
    }
