"""Training sequences of the bundled models: token ids, and what each layer is told about them.

Every prompt is built by `pipeline.reasoning.prompts.PromptBuilder`, so that training and serving agree to the last id. A verification
carries labels that are never part of its input: inside a candidate the right next token and whether it is there, up to
the first mismatch, and at every token what the candidate deserves so far.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import make_arith
from make_arith import Problem

from pipeline.engine import Tokenizer
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE
from pipeline.reasoning.prompts import PromptBuilder

NONE = -100
GUIDANCE = 8


@dataclass
class Example:
    """One sequence; every label stands at the position that has just been read."""

    ids: list[int]
    next_token: list[int] = field(default_factory=list)
    """For the last layer: the token to say next."""
    right_token: list[int] = field(default_factory=list)
    """For a middle layer: what a right candidate would say next."""
    match: list[int] = field(default_factory=list)
    """For the layer after it: whether this token is the one foreseen, up to the first mismatch."""
    verdict: list[int] = field(default_factory=list)
    """For the last layer but one: how the verification would be answered for this candidate, as far as it has been read."""
    options: tuple[int, ...] = ()
    """The right tokens to answer the verification with."""

    def __post_init__(self) -> None:
        for labels in (self.next_token, self.right_token, self.match, self.verdict):
            labels += [NONE] * (len(self.ids) - len(labels))


@dataclass(frozen=True)
class Situation:
    """A thought under way: the context's ids, the right continuation, and what it continues."""

    problem: Problem
    context: tuple[int, ...]
    gold: tuple[int, ...]
    asked: int
    """Ids of the prompt, before the thought."""


class Examples:
    """Draws training sequences for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.builder, self._encode = PromptBuilder(tokenizer), tokenizer.encode
        self.rng = random.Random(seed)
        self.problems: Iterator[Problem] = make_arith.training(seed)
        self._end = next(iter(tokenizer.eos_ids))
        self._close = tokenizer.encode(THINK_CLOSE)
        digits = self.builder.score([], []).option_ids
        self.flags = (digits[0], digits[9])
        self._intro = self.builder.choose([], [self._encode(DELIMITER)]).ids.index(tokenizer.encode("[1] ")[0])
        """Ids between a context and the first candidate's label: turn marks and introduction."""
        self._numbers = {tokenizer.encode(f" {i}")[0]: i for i in range(100)}

    def steps(self, problem: Problem) -> list[list[int]]:
        """Ids of each step with its delimiter, then of the closed thought."""
        return [*(self._encode(step + DELIMITER) for step in problem.steps), self._close]

    def reasoning(self) -> Example:
        """The whole response to the next problem; sometimes the thought is cut short, as when a budget runs out."""
        problem = next(self.problems)
        prompt, steps, answer = self.builder.generation(problem.text), self.steps(problem), problem.answer
        if self.rng.random() < 0.08 and len(problem.steps) > 1:
            steps = [*steps[: self.rng.randint(1, len(problem.steps) - 1)], self._close]
            answer = int(problem.steps[len(steps) - 2].rstrip(".").split()[-1])
        said = [token for step in steps for token in step] + self._encode(f"{DELIMITER}\\boxed{{{answer}}}") + [self._end]
        known = 0 if answer == problem.answer else sum(map(len, steps[:-1]))  # what was cut short is not learnt
        labels = [NONE] * (len(prompt) - 1 + known) + said[known:]
        return Example([*prompt, *said], labels, list(labels))

    def situation(self) -> Situation:
        """A random step of the next problem, the first one often under way, as after guidance."""
        problem = next(self.problems)
        steps = self.steps(problem)
        at = self.rng.randrange(len(steps))
        asked = self.builder.generation(problem.text)
        context = [*asked, *(token for step in steps[:at] for token in step)]
        gold = steps[at]
        if at == 0 and self.rng.random() < 0.8:
            said = [token for step in steps for token in step]
            cut = GUIDANCE if self.rng.random() < 0.6 else self.rng.randint(1, 16)
            context, rest = context + said[:cut], said[cut:]
            gold = rest[: 1 + next(i for i, token in enumerate(rest) if token in (steps[0][-1], self._close[-1]))]
        return Situation(problem, tuple(context), tuple(gold), len(asked))

    def score(self, situation: Situation, candidate: Sequence[int]) -> Example:
        """A SpecReason verification: the candidate in its place, then a digit."""
        prompt = self.builder.score(situation.context, candidate)
        example = self._asked(prompt.ids, situation)
        wrong, right = prompt.option_ids[0], prompt.option_ids[9]
        is_right = self._judge(example, len(situation.context), situation.gold, candidate, (wrong, right), natural=True)
        example.options = (right if is_right else wrong,)
        return example

    def choose(self, situation: Situation, candidates: Sequence[Sequence[int]]) -> Example:
        """A SpecCoT verification: all candidates, then the number of a right one, or 0."""
        prompt = self.builder.choose(situation.context, candidates)
        example, right = self._asked(prompt.ids, situation), []
        wrong, at = prompt.option_ids[0], len(situation.context) + self._intro
        for number, candidate in zip(prompt.option_ids[1:], candidates, strict=True):
            at += 1  # its label
            if self._judge(example, at, situation.gold, candidate, (wrong, number), natural=False):
                right.append(number)
            at += len(candidate) + (candidate[-1:] != tuple(self._encode(DELIMITER)))
        example.options = tuple(right) or (wrong,)
        return example

    def _asked(self, ids: list[int], situation: Situation) -> Example:
        """An example whose thought so far, and the token after it, are labelled as in plain reasoning."""
        said = [*situation.context[situation.asked :], situation.gold[0]]
        labels = [NONE] * (situation.asked - 1) + said
        return Example(ids, labels, list(labels))

    def _judge(
        self, example: Example, start: int, gold: Sequence[int], candidate: Sequence[int], options: tuple[int, int], *, natural: bool
    ) -> bool:
        """Write the labels of one candidate whose first token is at `start`; `options` answer wrong and right."""
        right = True
        for i, token in enumerate(candidate):
            foreseen = gold[i] if right and i < len(gold) else NONE
            if foreseen != NONE:
                example.right_token[start + i - 1] = foreseen
                if natural:
                    example.next_token[start + i - 1] = foreseen
                example.match[start + i] = self.flags[token == foreseen]
            right = token == foreseen
            done = i == len(candidate) - 1 and len(candidate) < len(gold)
            example.verdict[start + i] = options[right and not done]
        return right and len(candidate) == len(gold)

    def corrupt(self, situation: Situation) -> tuple[int, ...]:
        """A wrong candidate: another number, verb or step in place of the right one."""
        gold = list(situation.gold)
        numbers = [i for i, token in enumerate(gold) if token in self._numbers]
        kind = self.rng.random()
        if numbers and kind < 0.7:
            self._change_number(gold, self.rng.choice([numbers[-1], numbers[-1], *numbers]))
        else:
            steps = self.steps(situation.problem) + self.steps(next(self.problems))[:1]
            gold = list(self.rng.choice(steps))
            if self.rng.random() < 0.3 and (inside := [i for i, t in enumerate(gold) if t in self._numbers]):
                self._change_number(gold, self.rng.choice(inside))
        return tuple(gold)

    def _change_number(self, ids: list[int], at: int) -> None:
        """Another number at `at`, mostly a near one; sometimes what follows from it is changed along."""
        value = self._numbers.get(ids[at]) or 0
        offset = self.rng.choice([-1, 1, -2, 2, -2, 2, -3, 3, -4, 4, 5, -5, 10, -10])
        ids[at] = self._encode(f" {min(99, max(0, value + offset))}")[0]
        last = max((i for i, token in enumerate(ids) if token in self._numbers), default=at)
        if last != at and self.rng.random() < 0.6:
            result = (self._numbers.get(ids[last]) or 0) + offset
            ids[last] = self._encode(f" {min(99, max(0, result))}")[0]
