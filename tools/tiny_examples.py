"""Training sequences of the bundled models: token ids, and what each layer is told about them.

Every prompt is built by `pipeline.prompts.Dialect`, so that training and serving agree to the last id. A verification
carries labels that are never part of its input: inside a candidate the right next token, up to the first mismatch, and
at every token whether the candidate is right so far.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import make_arith
from make_arith import Problem

from pipeline.engines.base import Tokenizer
from pipeline.prompts import DELIMITER, THINK_CLOSE, Dialect

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
    right_so_far: list[int] = field(default_factory=list)
    """For later layers: 1 while the candidate is right, 0 from its first mismatch on."""
    options: tuple[int, ...] = ()
    """The right tokens to answer the verification with."""

    def __post_init__(self) -> None:
        for labels in (self.next_token, self.right_token, self.right_so_far):
            labels += [NONE] * (len(self.ids) - len(labels))


@dataclass(frozen=True)
class Situation:
    """A thought under way: the context's ids, the right continuation, and what it continues."""

    problem: Problem
    context: tuple[int, ...]
    gold: tuple[int, ...]


class Examples:
    """Draws training sequences for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.dialect, self._encode = Dialect(tokenizer), tokenizer.encode
        self.rng = random.Random(seed)
        self.problems: Iterator[Problem] = make_arith.training(seed)
        self._end = next(iter(tokenizer.eos_ids))
        self._close = tokenizer.encode(THINK_CLOSE)

    def steps(self, problem: Problem) -> list[list[int]]:
        """Ids of each step with its delimiter, then of the closed thought."""
        return [*(self._encode(step + DELIMITER) for step in problem.steps), self._close]

    def reasoning(self, problem: Problem) -> Example:
        """The whole response; sometimes the thought is cut short, as when a budget runs out."""
        prompt, steps = self.dialect.generation(problem.text), self.steps(problem)
        answer = problem.answer
        if self.rng.random() < 0.08 and len(problem.steps) > 1:
            steps = [*steps[: self.rng.randint(1, len(problem.steps) - 1)], self._close]
            answer = int(problem.steps[len(steps) - 2].rstrip(".").split()[-1])
        said = [token for step in steps for token in step] + self._encode(f"{DELIMITER}\\boxed{{{answer}}}") + [self._end]
        cut = len(said) if answer == problem.answer else len(said) - sum(map(len, steps[:-1]))
        return Example([*prompt, *said], [NONE] * (len(prompt) - 1 + len(said) - cut) + said[len(said) - cut :])

    def situation(self, problem: Problem | None = None) -> Situation:
        """A random step of a problem, the first one often under way, as after guidance."""
        problem = problem or next(self.problems)
        steps = self.steps(problem)
        at = self.rng.randrange(len(steps))
        context = [*self.dialect.generation(problem.text), *(token for step in steps[:at] for token in step)]
        gold = steps[at]
        if at == 0 and self.rng.random() < 0.8:
            said = [token for step in steps for token in step]
            cut = GUIDANCE if self.rng.random() < 0.6 else self.rng.randint(1, 16)
            gold = next_step(said[cut:], steps)
            context += said[:cut]
        return Situation(problem, tuple(context), tuple(gold))

    def score(self, situation: Situation, candidate: Sequence[int]) -> Example:
        """A SpecReason verification: the candidate in its place, then a digit."""
        prompt = self.dialect.score(situation.context, candidate)
        example = Example(prompt.ids)
        right = self._judge(example, len(situation.context), situation.gold, candidate, natural=True)
        example.options = (prompt.option_ids[9 if right else 0],)
        return example

    def choose(self, situation: Situation, candidates: Sequence[Sequence[int]]) -> Example:
        """A SpecCoT verification: all candidates, then the number of a right one, or 0."""
        prompt = self.dialect.choose(situation.context, candidates)
        example, right = Example(prompt.ids), []
        at = len(situation.context) + self._intro
        for number, candidate in enumerate(candidates, 1):
            at += 1  # its label
            if self._judge(example, at, situation.gold, candidate, natural=False):
                right.append(prompt.option_ids[number])
            at += len(candidate) + (candidate[-1:] != tuple(self.dialect.delimiter_ids))
        example.options = tuple(right) or (prompt.option_ids[0],)
        return example

    @property
    def _intro(self) -> int:
        """Ids between a context and the first candidate's label: turn marks and introduction."""
        return len(self.dialect.choose([], []).ids) - len(self.dialect._choose_tail)

    def _judge(self, example: Example, start: int, gold: Sequence[int], candidate: Sequence[int], *, natural: bool) -> bool:
        """Write the labels of one candidate whose first token is at `start`."""
        right = True
        for i, token in enumerate(candidate):
            if right and i < len(gold):
                example.right_token[start + i - 1] = gold[i]
                if natural:
                    example.next_token[start + i - 1] = gold[i]
            right = right and i < len(gold) and token == gold[i]
            example.right_so_far[start + i] = int(right)
        return right and len(candidate) == len(gold)

    def corrupt(self, situation: Situation) -> tuple[int, ...]:
        """A wrong candidate: another number, verb or step in place of the right one."""
        gold = list(situation.gold)
        numbers = [i for i, token in enumerate(gold) if self._number(token) is not None]
        kind = self.rng.random()
        if numbers and kind < 0.7:
            self._change_number(gold, self.rng.choice([numbers[-1], numbers[-1], *numbers]))
        else:
            steps = self.steps(situation.problem) + self.steps(next(self.problems))[:1]
            gold = list(self.rng.choice(steps))
            if self.rng.random() < 0.3 and (inside := [i for i, t in enumerate(gold) if self._number(t) is not None]):
                self._change_number(gold, self.rng.choice(inside))
        return tuple(gold)

    def _change_number(self, ids: list[int], at: int) -> None:
        """Another number at `at`, mostly a near one; sometimes what follows from it is changed along."""
        value = self._number(ids[at]) or 0
        offset = self.rng.choice([-1, 1, -2, 2, -2, 2, -3, 3, -4, 4, 5, -5, 10, -10])
        ids[at] = self._encode(f" {min(99, max(0, value + offset))}")[0]
        last = max((i for i, token in enumerate(ids) if self._number(token) is not None), default=at)
        if last != at and self.rng.random() < 0.6:
            result = (self._number(ids[last]) or 0) + offset
            ids[last] = self._encode(f" {min(99, max(0, result))}")[0]

    def _number(self, token: int) -> int | None:
        if not hasattr(self, "_numbers"):
            self._numbers = {self._encode(f" {i}")[0]: i for i in range(100)}
        return self._numbers.get(token)


def next_step(rest: Sequence[int], steps: Sequence[Sequence[int]]) -> list[int]:
    """The rest of the step that `rest` stands in, the delimiter or the closing mark included."""
    delimiter, close = steps[0][-1], steps[-1][-1]
    for i, token in enumerate(rest):
        if token in (delimiter, close):
            return list(rest[: i + 1])
    return list(rest)
