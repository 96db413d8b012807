"""Training sequences of the pairs `wordy` and `rambling`: token ids, and what each layer is told about them.

As `tiny_examples`, whose `Example` they are: prompts by the package's own `PromptBuilder`, labels that are never part of the input. What
differs is that a step may be said in several ways, all of them right, and that a step is scored by how much of it is right.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import make_wordy
from make_wordy import Problem
from tiny_examples import NONE, Example

from pipeline.engine import Tokenizer
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.reward_prompts import RewardPromptBuilder, Thought

GUIDANCE = 8
GUIDED = 0.4
"""Share of the draft's thoughts that begin with the target's first tokens, as in SpecCoT."""
MOST = 10
"""Candidates that a choice is trained with at most."""
SHARES = {"target": {"wordy": 1.0}, "draft": {"terse": 0.7, "sloppy": 0.3}, "rambling": {"rambling": 1.0}}
"""How often each model reasons in which way."""
HEARD = {"target": ("terse", "sloppy", "wordy"), "draft": ("terse", "sloppy", "wordy"), "rambling": ("wordy", "rambling")}
"""In which ways the steps are said that each model thinks on from."""
LIMITS = {"target": make_wordy.LIMITS, "draft": make_wordy.LIMITS, "rambling": make_wordy.RAMBLING_LIMITS}


@dataclass(frozen=True)
class Situation:
    """A thought under way: the context's ids, every right continuation, and which event it is about."""

    problem: Problem
    context: tuple[int, ...]
    ways: tuple[tuple[int, ...], ...]
    """The right continuations; one where the step is under way already, or the thought is to be closed."""
    place: int
    """Which event comes next, from 0; the number of events where the thought is to be closed."""
    begun: str
    """What the step has of its text already."""
    said: tuple[int, ...]
    """Labels of the context: what the target says after each of its ids, where that can be foreseen."""

    @property
    def gold(self) -> tuple[int, ...]:
        """The first of the right continuations."""
        return self.ways[0]


class WordyExamples:
    """Draws training sequences for one tokenizer and one of the models."""

    def __init__(self, tokenizer: Tokenizer, seed: int, writer: str) -> None:
        """`writer`: whose way of reasoning is learnt, `target`, `draft` or `rambling`: the draft of that pair."""
        self.builder, self._encode, self._decode = PromptBuilder(tokenizer), tokenizer.encode, tokenizer.decode
        self.rng, self.limits = random.Random(seed), LIMITS[writer]
        self.problems: Iterator[Problem] = make_wordy.training(seed)
        self._ways, self._heard, self._writer = SHARES[writer], HEARD[writer], writer
        self._end = next(iter(tokenizer.eos_ids))
        self._close = tuple(tokenizer.encode(THINK_CLOSE))
        self._asks = tokenizer.encode("?")[0]
        self.digits = self.builder.score([], []).option_ids
        self._intro = self.builder.choose([], [self._encode(DELIMITER)]).ids.index(tokenizer.encode("[1] ")[0])
        self._numbers = {tokenizer.encode(f" {i}")[0]: i for i in range(100)}

    def reasoning(self, problem: Problem) -> Example:
        """The whole response in the writer's way, behind steps in any way or the target's first tokens, which are not learnt."""
        rng, count = self.rng, len(problem.events)
        given = rng.choice([0, 0, *range(1, count + 1)])
        said = [self._said(problem, place, self._any()) for place in range(given)]
        thought, own = problem, list[str]()
        for place in range(given, count):
            step = self._said(thought, place, self._own())
            wrong = make_wordy.misled(thought, place, step, rng) if rng.random() < make_wordy.WRONG_TURNS else None
            thought, step = wrong or (thought, step)
            own.append(step)
        prompt, guidance = self.builder.generation(problem.text), 0
        if self._writer == "draft" and not given and rng.random() < GUIDED:
            own[0], guidance = make_wordy.plain(problem, 0, "First"), GUIDANCE
        last = (said + own)[-1]
        before, labels = self._context(prompt, said)
        thinking = [token for text in own for token in self._encode(text + DELIMITER)]
        rest = [*thinking, *self._close, *self._encode(f"{DELIMITER}{make_wordy.answer(thought, last)}"), self._end]
        labels += [NONE if i < guidance else token for i, token in enumerate(rest)]
        return Example([*before, *rest], labels, [*labels, NONE])

    def _context(self, prompt: Sequence[int], said: Sequence[str]) -> tuple[list[int], list[int]]:
        """A prompt with the steps `said` so far, and what is to be learnt after each id but the last: a draft learns nothing of them."""
        steps = [self._encode(text + DELIMITER) for text in said]
        learnt = [token if self._is_learnt(step, i) else NONE for step in steps for i, token in enumerate(step)]
        return [*prompt, *(token for step in steps for token in step)], [NONE] * (len(prompt) - 1) + learnt

    def _is_learnt(self, step: Sequence[int], at: int) -> bool:
        """Whether token `at` of a given step is learnt: not the first, as in whose way it is cannot be foreseen, and not how a doubt ends,
        as these never mislead."""
        return self._writer == "target" and at > 0 and step[at - 1] != self._asks

    def situation(self, problem: Problem | None = None) -> Situation:
        """A random step of a problem behind steps in any way, the first one often under way, as after guidance."""
        problem, rng = problem or next(self.problems), self.rng
        place = rng.randrange(len(problem.events) + 1)
        said = [self._said(problem, at, self._any()) for at in range(place)]
        context, labels = self._context(self.builder.generation(problem.text), said)
        if place == len(problem.events):
            return Situation(problem, tuple(context), (self._close,), place, "", (*labels, self._close[0]))
        ways = {way: said for way, said in make_wordy.ways(problem, place, rng).items() if way in self._heard}
        if place == 0 and rng.random() < 0.6:
            whole = self._encode(make_wordy.plain(problem, 0, "First") + DELIMITER)
            begun, rest = whole[:GUIDANCE], [whole[GUIDANCE:]]
            event, text = problem.events[0], self._decode(begun)
            if text.endswith(event.told):  # a terse step may continue from there
                rest += [self._encode(way(event).removeprefix(event.told) + DELIMITER) for way in (make_wordy.terse, make_wordy.sloppy)]
            return Situation(problem, (*context, *begun), tuple(map(tuple, rest)), place, text, (*labels, *whole[: GUIDANCE + 1]))
        steps = [tuple(self._encode(text + DELIMITER)) for text in ways.values()]
        own = self._encode(ways["wordy"])[0]
        return Situation(problem, tuple(context), tuple(dict.fromkeys(steps)), place, "", (*labels, own))

    def score_of(self, situation: Situation, candidate: Sequence[int]) -> int:
        """How much of a candidate is right, 0 to 9."""
        if situation.place == len(situation.problem.events):
            return 9 if tuple(candidate) == self._close else 0
        text = self._decode(candidate)
        if not text.endswith(DELIMITER):
            return 0
        return make_wordy.score(situation.problem.events[situation.place], situation.begun + text)

    def is_right(self, situation: Situation, candidate: Sequence[int]) -> bool:
        """Whether a candidate may be accepted."""
        return self.score_of(situation, candidate) >= make_wordy.RIGHT

    def right_candidate(self, situation: Situation) -> tuple[int, ...]:
        """A right continuation, mostly in a way of the draft; the target's is the last of them, behind guidance the first."""
        ways = situation.ways
        return self.rng.choices(ways, [1] * len(ways) if situation.begun else [4] * (len(ways) - 1) + [1])[0]

    def score(self, situation: Situation, candidate: Sequence[int]) -> Example:
        """A SpecReason verification: the candidate in its place, then how much of it is right."""
        prompt = self.builder.score(situation.context, candidate)
        example = self._asked(prompt.ids, situation)
        found = self.digits[self.score_of(situation, candidate)]
        start = len(situation.context)
        self._label(example, start, situation, candidate, (self.digits[9], found))
        self._learn(example, start, candidate)
        example.options = (found,)
        return example

    def choose(self, situation: Situation, candidates: Sequence[Sequence[int]]) -> Example:
        """A SpecCoT verification: all candidates, then the number of a right one, or 0."""
        prompt = self.builder.choose(situation.context, candidates)
        example, right = self._asked(prompt.ids, situation), []
        at = len(situation.context) + self._intro
        for number, candidate in zip(prompt.option_ids[1:], candidates, strict=True):
            at += 1  # its label
            is_right = self.is_right(situation, candidate)
            self._label(example, at, situation, candidate, (number, number if is_right else prompt.option_ids[0]))
            right += [number] if is_right else []
            at += len(candidate) + (tuple(candidate[-1:]) != tuple(self._encode(DELIMITER)))
        example.options = tuple(right) or (prompt.option_ids[0],)
        return example

    def judged(self, situation: Situation, candidate: Sequence[int], asks: RewardPromptBuilder) -> Example:
        """What a reward model is asked about a candidate, and the token to answer with; the steps before it are right."""
        good, bad = asks.option_ids
        asked, thought = len(self.builder.generation(situation.problem.text)), Thought(THINK_CLOSE)
        thought.commit(self._decode(situation.context[asked:]))
        ids = asks.ids(situation.problem.text, [*thought.steps, *thought.steps_of(self._decode(candidate))])
        right, start = self.is_right(situation, candidate), len(situation.context)
        if tuple(ids[: start + len(candidate)]) != (*situation.context, *candidate):  # a wrong one whose text has other tokens
            return Example(ids, options=(good if right else bad,))
        example, delimiter = self._asked(ids, situation), self._encode(DELIMITER)[0]
        self._label(example, start, situation, candidate, (good, good if right else bad))
        self._learn(example, start, candidate)
        for i, token in enumerate(situation.context):
            if token == delimiter:
                example.next_token[i] = good
        example.options = (good if right else bad,)
        return example

    def _asked(self, ids: Sequence[int], situation: Situation) -> Example:
        """An example whose thought so far, and the token after it, are labelled as in plain reasoning."""
        return Example(list(ids), list(situation.said), list(situation.said))

    def corrupt(self, situation: Situation) -> tuple[int, ...]:
        """A wrong candidate: another number, verb or event in place of the right one."""
        rng, problem = self.rng, situation.problem
        step = list(self.right_candidate(situation))
        numbers = [i for i, token in enumerate(step) if token in self._numbers]
        if numbers and rng.random() < 0.75:
            self._change_number(step, rng.choice([numbers[-1], numbers[-1], *numbers]))
            return tuple(step)
        other = rng.choice([each for each in range(len(problem.events) + 1) if each != situation.place])
        if other == len(problem.events):
            return self._close
        return tuple(self._encode(self._said(problem, other, self._drafted()) + DELIMITER))

    def _own(self) -> str:
        return self.rng.choices(list(self._ways), list(self._ways.values()))[0]

    def _any(self) -> str:
        return self.rng.choice(self._heard)

    def _drafted(self) -> str:
        """The way of a candidate: mostly one of the draft's."""
        return self.rng.choices(["wordy", "terse", "sloppy"], [1, 4, 4])[0]

    def _said(self, problem: Problem, place: int, way: str) -> str:
        return make_wordy.ways(problem, place, self.rng)[way]

    def _label(self, example: Example, start: int, situation: Situation, candidate: Sequence[int], verdicts: tuple[int, int]) -> None:
        """Write the labels of a candidate whose first token is at `start`: what a right one says next, whether this one says it, what it
        deserves so far: the first of `verdicts`, as a right one, up to the first difference, then its own."""
        gold = max(situation.ways, key=lambda way: _common(way, candidate))
        same = _common(gold, candidate)
        for i, token in enumerate(candidate):
            if i <= same and i < len(gold):
                if i:  # which way it takes nobody can foresee
                    example.right_token[start + i - 1] = gold[i]
                example.match[start + i] = self.digits[9 if token == gold[i] else 0]
            example.verdict[start + i] = verdicts[i >= min(same, len(candidate) - 1)]

    def _learn(self, example: Example, start: int, candidate: Sequence[int]) -> None:
        """Let the last layer say, too, what a right candidate at `start` says next, as it stands where the step would."""
        for i in range(1, len(candidate)):
            if self._is_learnt(candidate, i):
                example.next_token[start + i - 1] = example.right_token[start + i - 1]

    def _change_number(self, ids: list[int], at: int) -> None:
        """Another number at `at`, mostly a near one; sometimes what follows from it is changed along."""
        offset = self.rng.choice([-1, 1, -2, 2, -2, 2, -3, 3, -4, 4, 5, -5, 10, -10])
        for place in {
            at,
            *(i for i in range(at + 1, len(ids)) if ids[i] == ids[at] or (ids[i] in self._numbers and self.rng.random() < 0.3)),
        }:
            value = self._numbers.get(ids[place], 0)
            ids[place] = self._encode(f" {min(99, max(0, value + offset))}")[0]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
