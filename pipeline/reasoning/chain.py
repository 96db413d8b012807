"""One chain: a problem being solved once. Committed steps, pending candidates, budget, when it ends. No I/O, no clock.

Stages read a chain and return an `Outcome`; only `Chain.apply` changes it.
"""

import hashlib
from array import array
from collections.abc import Mapping, Sequence

from msgspec import Struct

from pipeline.confidence import Confidence
from pipeline.data.problems import Problem
from pipeline.engine import Content
from pipeline.grading.stated import Form, boxed, stated_in
from pipeline.graph.prompts import DELIMITER
from pipeline.graph.spec import UntilSpec
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator

ANSWER_RESERVE = 64
"""A thought ends where fewer tokens of the context are left, so that it can still be closed and answered."""


class Span(Struct, frozen=True):
    """Text that an engine wrote: a candidate, a step, an answer."""

    role: str
    ids: tuple[int, ...]
    text: str
    closes: bool = False
    """Whether the thought ends with this text."""
    cut: bool = False
    """Whether it ended at its limit, and not where a text of its kind ends."""
    confidence: Confidence | None = None
    """How sure the engine was of it, where a gate wants to know."""


class Scale(Struct, frozen=True):
    """What the value of a verdict means, for reports and plots."""

    name: str
    """Label of a plot's axis, such as `score` or `probability of the chosen option`."""
    low: float | None = None
    """Least value that is possible; None where there is none."""
    high: float | None = None
    """Greatest value that is possible; None where there is none."""
    integers: bool = False
    """Whether only whole numbers are possible."""

    @property
    def is_share(self) -> bool:
        """True if every value is from 0 to 1, so that it can be read as how sure the verifier is."""
        return (self.low, self.high, self.integers) == (0.0, 1.0, False)


class Verdict(Struct, frozen=True, kw_only=True):
    """What a stage that judges decided about the candidates."""

    kind: str
    """The stage's word under `kind` in the graph file."""
    chosen: int | None
    """Index of the accepted candidate among those drafted; None where all are rejected."""
    label: str
    """The option that was chosen, one of `options`: a number or a digit."""
    value: float
    """The number that the verdict is based on, on its `scale`."""
    scale: Scale = Scale("value")
    options: tuple[str, ...] = ()
    """The options that could be chosen, in the order of `probs`."""
    of_candidates: bool = False
    """Whether the options are candidates: option k is the k-th distinct one, from 1, and 0 is none of them."""
    probs: tuple[float, ...] = ()
    """Probability of each option, renormalised so that they sum to 1."""
    mass: float = 1.0
    """Probability of all options together before they were renormalised."""
    threshold: float | None = None
    """Least `value` that is accepted; None where the verdict needs none."""
    distinct: int = 1
    """How many different candidates were shown."""

    @property
    def accepted(self) -> bool:
        """Whether a candidate was accepted."""
        return self.chosen is not None


class Trial(Struct, frozen=True):
    """An answer that was given before the thought is over."""

    answer: str | None
    """What it says; None where it says nothing, or was cut."""
    confidence: float
    """Geometric mean of its tokens' probabilities, 0 to 1; 0 where there is no answer, or where it was not asked for."""


class Reading(Struct, frozen=True, kw_only=True):
    """What a gate found."""

    statistic: str
    value: float | None
    """The statistic of the candidate that looks surest; None where no candidate has one, which is flagged."""
    threshold: float
    flagged: bool
    candidate: int | None
    """Index of that candidate among those drafted."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What a stage does to its chain; `Chain.apply` carries it out."""

    candidates: tuple[Span, ...] = ()
    """Candidates that join the pending ones."""
    withheld: bool = False
    """Nothing was drafted, because a judge's question about it would not fit into its context."""
    verdict: Verdict | None = None
    """A verdict on the pending candidates; the one that it accepts becomes a step."""
    reading: Reading | None = None
    """What a gate found. Where it lets a candidate pass and commits it, that is the `step`."""
    step: Span | None = None
    """A step that is committed without a verdict."""
    decision: str = ""
    """How `step` came about: `guidance`, `fallback`, `first_steps`, `written` or `unverified`."""
    answer: Span | None = None
    """What follows the thought."""
    finishes: bool = False
    """Whether the chain is over with it: thought and answer came in one response."""
    trial: Trial | None = None
    """An answer that leaves the chain as it is, but for its stop conditions."""


class Step(Struct, frozen=True, kw_only=True):
    """A committed step, with the candidates and the verdict that led to it."""

    index: int
    """Number of the step: guidance is 0, the step that follows is 1."""
    stage: str
    """Name of the stage that committed it."""
    span: Span
    decision: str
    """How it came about: `accepted`, or one of the words in `Outcome.decision`."""
    candidates: tuple[Span, ...] = ()
    verdict: Verdict | None = None
    verify_stage: str | None = None
    """Name of the stage that gave the verdict; None without one."""
    readings: Mapping[str, Reading] = {}
    """What the gates of its round found, by the name of the stage, in order."""
    chosen: int | None = None
    """Index of the candidate that it is; None where it is none of them."""


def chain_id(problem_id: str, sample_index: int) -> str:
    """The name of a chain: one for every problem and sample."""
    return f"{problem_id}#{sample_index}"


class Ending:
    """Whether a thought is over, and why: what the stop conditions of a loop ask about. `steps` are those after the guidance."""

    __slots__ = ("_agreeing", "_last", "_repeats", "_trial", "_tried_at", "closed", "overflowed", "reason")

    def __init__(self) -> None:
        self.closed = False
        """Whether a step closed the thought."""
        self.overflowed = False
        """Whether a prompt did not fit into the context of its engine."""
        self.reason: str | None = None
        """The stop condition that ended the loop."""
        self._last, self._repeats = "", 0
        self._trial = Trial(None, -1.0)
        """The last one; before it, one that is less sure than any threshold."""
        self._agreeing = self._tried_at = 0
        """How many trials in a row gave the same answer, and after how many steps the last was made."""

    def overflow(self) -> None:
        """Take note that a prompt did not fit into the context of its engine."""
        self.overflowed = True

    def end(self, reason: str) -> None:
        """The loop has ended for this `reason`."""
        self.reason = reason

    def commit(self, span: Span) -> None:
        """Take note of the text of a step."""
        self.closed = self.closed or span.closes
        said = span.text.strip()
        self._last, self._repeats = said, self._repeats + 1 if said == self._last else 1

    def tried(self, trial: Trial, steps: int) -> None:
        """Record an answer that was given after `steps` steps."""
        self._agreeing = 0 if trial.answer is None else self._agreeing + 1 if trial.answer == self._trial.answer else 1
        self._trial, self._tried_at = trial, steps

    def tries(self, until: UntilSpec, steps: int) -> bool:
        """Whether the answer is to be asked for now, before the next step."""
        return until.tries and steps - self._tried_at >= until.every

    @property
    def answer_stands(self) -> bool:
        """Whether the thought ended because a trial answer was sure or stable."""
        return self.reason in ("answer_confident", "answer_stable")

    def condition(self, until: UntilSpec, thought: Sequence[Span], steps: int, tokens: int, spent: bool) -> str | None:
        """The first condition of `until` that holds of a `thought` with this many `steps` and `tokens`; `spent`: no token may follow."""
        tail = "".join(span.text for span in thought[-2:])
        holds = {
            # An engine that ended its turn and then has nothing to say would go on saying nothing.
            "thought_closed": self.closed and (until.thought_closed or not thought[-1].ids),
            "max_tokens": spent,
            "answer_boxed": until.answer_boxed and (bool(boxed(tail)) or "Answer:" in tail or "ANSWER:" in tail),
            "answer_confident": until.answer_confident is not None and self._trial.confidence >= until.answer_confident,
            "answer_stable": until.answer_stable is not None and self._agreeing >= until.answer_stable,
            "repeated": until.repeated and self._repeats >= until.repeated and steps > until.repeated,
            "token_budget": until.token_budget and tokens >= until.token_budget,
            "max_steps": until.max_steps and steps >= until.max_steps,
        }
        return next((name for name, held in holds.items() if held), None)


class Chain:
    """A problem, its sample, and all that was committed so far.

    `contexts` holds for each role the token ids of its generation prompt and the thought: the state of the chain. Ids take four bytes
    each, as there are millions of them.
    """

    def __init__(
        self,
        problem: Problem,
        sample_index: int,
        order: int,
        seed: int,
        builders: Mapping[str, PromptBuilder],
        translator: TokenTranslator,
        limits: Mapping[str, int],
    ) -> None:
        """`seed`: that of the run; the problem may have its own."""
        self.problem, self.sample_index, self.order = problem, sample_index, order
        asked = problem.problem, problem.options, problem.history
        self.sampling = problem.settings.sampling
        """Sampling fields of requests that override the stage's."""
        self.content = Content(problem.problem)
        """What all its prompts are about."""
        self.chain_id = chain_id(problem.problem_id, sample_index)
        self.contexts = {role: array("I", builder.generation(*asked)) for role, builder in builders.items()}
        self.begins = {role: len(context) for role, context in self.contexts.items()}
        """Where the thought begins in each context."""
        self._delimiters = next((builder.prompts.delimiters for builder in builders.values()), (DELIMITER,))
        self.thought: list[Span] = []
        """The text of every committed step, guidance included; what was not chosen is not kept."""
        self.next_index = 1
        """Index of the step that comes next; guidance, where a chain has it, is step 0."""
        self.candidates: tuple[Span, ...] = ()
        self.pending_from = 0
        """Index of the first candidate that is to be judged; those before it were rejected when others joined them."""
        self.verdicts: dict[str, Verdict] = {}
        self.readings: dict[str, Reading] = {}
        """What the gates found in this round."""
        self.answer: Span | None = None
        self.budget: int | None = None
        self.thought_tokens = 0
        self.ending = Ending()
        self.finished = False
        self.withheld = False
        """Whether candidates of this round were not drafted, because a judge could not be shown them."""
        self._translator, self._limits = translator, limits
        own = problem.settings.seed
        self._seed_prefix = f"{seed}\0{problem.problem_id}\0{sample_index}\0" if own is None else f"{own}\0\0{sample_index}\0"

    def seed(self, stage: str) -> int:
        """63 random bits of (run seed, problem, sample, steps so far, stage): no neighbour changes them."""
        text = f"{self._seed_prefix}{len(self.thought)}\0{stage}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

    def left_of_response(self, max_tokens: int) -> int:
        """The lesser of `max_tokens` and what the problem's own limit leaves for the rest of the thought and the answer, at least 0."""
        most = self.problem.settings.max_tokens
        return max_tokens if most is None else max(0, min(max_tokens, most - self.thought_tokens))

    @property
    def is_spent(self) -> bool:
        """Whether the problem's own limit leaves no token, for a step or for the answer."""
        return not self.left_of_response(1)

    def room(self, max_tokens: int, role: str) -> int:
        """The least of `max_tokens`, what is left of the problem's own limit and of the thought's token budget, and what all contexts have
        room for next to an answer; at least 1. `role`: whose context is written on; another one may take more tokens for the same text, as
        it did so far."""
        found = self.left_of_response(max_tokens)
        if self.budget is not None:
            found = min(found, self.budget - self.thought_tokens)
        for other, ids in self.contexts.items():
            found = min(found, self.written(self._limits[other] - len(ids) - ANSWER_RESERVE, role, other))
        return max(1, found)

    def written(self, tokens: int, role: str, other: str) -> int:
        """How many tokens of the context of `role` are no more than `tokens` of another one, by what the thought takes in both so far."""
        own, grown = len(self.contexts[role]) - self.begins[role], len(self.contexts[other]) - self.begins[other]
        return tokens * own // grown if grown > own > 0 else tokens

    @property
    def rests_of_delimiters(self) -> tuple[str, ...]:
        """What would complete a delimiter in which the last step was cut; empty where none was."""
        tail = "".join(span.text for span in self.thought[-2:])
        if tail.endswith(self._delimiters):
            return ()
        return tuple(text[size:] for text in self._delimiters for size in range(1, len(text)) if tail.endswith(text[:size]))

    def left(self, role: str, tokens: int) -> int:
        """How many tokens the context of the engine `role` has room for in addition to `tokens`; below 0: not even these fit."""
        return self._limits[role] - tokens

    @property
    def mean_step(self) -> int:
        """Tokens of a step of the thought so far, at least 1."""
        return max(1, self.thought_tokens // max(1, len(self.thought)))

    def distinct_candidates(self) -> list[int]:
        """Indices of the pending candidates in the order in which they were drafted; of identical ones only the first.

        Where some of these close the thought and some do not, it is the first of the majority, and of those that do not where both are
        as many: a thought that continues may be closed at the next step.
        """
        identical: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for i, candidate in enumerate(self.candidates[self.pending_from :], self.pending_from):
            identical.setdefault((candidate.role, candidate.ids), []).append(i)
        return [same[0] if len(same) == 1 else self._majority(same) for same in identical.values()]

    def _majority(self, same: Sequence[int]) -> int:
        closes = sum(self.candidates[i].closes for i in same) * 2 > len(same)
        return next(i for i in same if self.candidates[i].closes == closes)

    def translate(self, span: Span, role: str) -> Sequence[int]:
        """The token ids of `span` in the vocabulary of the engine `role`."""
        return self._translator.translate(span.role, role, span.ids, span.text)

    def enter(self, until: UntilSpec) -> None:
        """Begin a loop, whose steps must keep to its token budget."""
        self.budget = until.token_budget

    def leave(self, reason: str) -> None:
        """End the loop for `reason`, the name of a stop condition."""
        self.ending.end(reason)
        self.budget = None

    @property
    def steps(self) -> int:
        """How many steps follow the guidance."""
        return self.next_index - 1

    def exit(self, until: UntilSpec) -> str | None:
        """The name of the stop condition that holds, or None while the thought continues."""
        if held := self.ending.condition(until, self.thought, self.steps, self.thought_tokens, self.is_spent):
            return held
        # Drafts were withheld and nobody wrote a step instead: the next round would be the same.
        return "context_length" if self.ending.overflowed or self.withheld or self._is_full(ANSWER_RESERVE) else None

    def apply(self, stage: str, outcome: Outcome) -> Step | None:
        """Carry out the `outcome` of the stage called `stage`; returns the step that this committed, None where it did not."""
        if outcome.candidates:
            if self.verdicts:  # all of which rejected: else there is a step, and no candidate
                self.pending_from = len(self.candidates)
            self.candidates += outcome.candidates
        if outcome.answer is not None:
            self.answer = outcome.answer
        if outcome.trial is not None:
            self.ending.tried(outcome.trial, self.steps)
        self.finished = outcome.finishes
        self.withheld = self.withheld or outcome.withheld
        if outcome.reading is not None:
            self.readings[stage] = outcome.reading
        if outcome.verdict is not None:
            self.verdicts[stage] = outcome.verdict
            if (chosen := outcome.verdict.chosen) is not None:
                return self._commit(stage, self.candidates[chosen], "accepted", stage, chosen)
        if outcome.step is not None:
            judged = self.candidates and outcome.decision != "unverified"
            judge = next(reversed(self.verdicts), None) if judged else None
            chosen = None if outcome.reading is None else outcome.reading.candidate
            return self._commit(stage, outcome.step, outcome.decision, judge, chosen)
        return None

    def begin_round(self) -> None:
        """Begin one pass of a loop's body: drop candidates and verdicts that led to no step."""
        self.candidates, self.verdicts, self.readings, self.pending_from = (), {}, {}, 0
        self.withheld = False

    def default_stop_reason(self) -> str:
        """The stop reason of a thought that was written without a loop."""
        if self.ending.closed:
            return "thought_closed"
        return "context_length" if self.ending.overflowed or self._is_full(0) else "max_tokens"

    @property
    def thought_text(self) -> str:
        """All that was committed."""
        return "".join(span.text for span in self.thought)

    def stated_answer(self, form: Form | None = None) -> str | None:
        """What the chain gives as its answer, looked for as a thing of this `form`; None where it gives none."""
        return stated_in(self.answer.text if self.answer else "", self.thought_text, form)

    def _is_full(self, reserve: int) -> bool:
        """Whether fewer than `reserve` tokens, or none, are left of the context of any role."""
        return any(len(ids) + reserve >= self._limits[role] for role, ids in self.contexts.items())

    def _commit(self, stage: str, span: Span, decision: str, judge: str | None, chosen: int | None) -> Step:
        step = Step(
            index=0 if decision == "guidance" and not self.thought else self.next_index,
            stage=stage,
            span=span,
            decision=decision,
            candidates=self.candidates,
            verdict=self.verdicts[judge] if judge is not None else None,
            verify_stage=judge,
            readings=dict(self.readings) if self.readings else {},
            chosen=chosen,
        )
        for role, context in self.contexts.items():
            context.extend(self.translate(span, role))
        self.thought.append(span)
        self.next_index = step.index + 1
        self.thought_tokens += len(span.ids)
        self.ending.commit(span)
        self.candidates, self.pending_from = (), 0
        self.withheld = False
        return step
