"""Word problems of two to four events with four ways of reasoning about them, seeded: the data of the bundled pairs `wordy` and `rambling`.

One step of a thought deals with one event. The target's way is long: it restates the event, computes, and often has second thoughts
(`Wait`, `Hmm`, `But maybe`) that check what it has; some of these talk it out of a right total. The draft's way is terse, and sometimes
sloppy: it leaves a product out. So a thought of the target has about three times the tokens of the draft's, and the target has something
to gain from a step that it does not write itself. The draft of `rambling` is the opposite, a small model that thinks at length: it has
most second thoughts in every step, so that its thoughts have almost twice the tokens of the target's.
`python tools/make_wordy.py` writes datasets/wordy/{validation,test}.parquet; training problems are drawn on the fly and are disjoint from
both by their text.
"""

import random
import re
from dataclasses import dataclass, replace

from make_arith import GAINS, ITEMS, LOSSES, NAMES, Limits, ProblemSets

MOST = 40
"""Largest total; the smallest is 0."""
SPLIT_SEEDS = {"validation": 11, "test": 12}
SECOND_THOUGHTS = 0.7
"""Share of the target's steps that have second thoughts."""
WRONG_TURNS = 0.35
"""Share of the doubts `Hmm, is it N?` that end with a wrong total. Whoever learns this says it less often at a temperature below 1."""
NEAR = (-2, -1, 1, 2)
"""How far a total that is doubted or wrong is from the right one."""
LEADS = ("Next", "Then", "After that")
WORDS = (
    "First Next Then After that That is had so So Wait Hmm But maybe Actually let me check it was No Yes Right I read wrong right".split()
)
"""Words of the steps that `make_arith` does not have."""
EQUATION = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")
LIMITS = Limits(steps=10, step=72, answer=48, response=320)
RAMBLING_LIMITS = Limits(steps=10, step=128, answer=48, response=560)
RIGHT = 7
"""From this score on a step is right, however it is worded."""


@dataclass(frozen=True)
class Event:
    """What happens to the total: `packs` times `size` items come or go; one pack is told without the word."""

    verb: str
    sign: str
    packs: int
    size: int
    before: int
    after: int

    @property
    def amount(self) -> int:
        """How many items come or go."""
        return self.packs * self.size

    @property
    def told(self) -> str:
        """The event as the problem tells it."""
        return f"{self.verb} {self.size}" if self.packs == 1 else f"{self.verb} {self.packs} packs of {self.size}"

    @property
    def sum(self) -> str:
        """The equation of the total."""
        return f"{self.before} {self.sign} {self.amount} = {self.after}."

    @property
    def product(self) -> str:
        """The equation of the amount, empty for one pack."""
        return "" if self.packs == 1 else f"{self.packs} * {self.size} = {self.amount}."


@dataclass(frozen=True)
class Problem:
    """A question, its events in order, and its answer."""

    text: str
    name: str
    item: str
    events: tuple[Event, ...]
    answer: int

    @property
    def steps(self) -> list[str]:
        """The events in the draft's way."""
        return [terse(event) for event in self.events]


def terse(event: Event) -> str:
    """The draft's way: the event and its equations."""
    return f"{event.told}: {event.product} {event.sum}".replace(":  ", ": ")


def sloppy(event: Event) -> str:
    """The draft's other way: without the product."""
    return f"{event.told}: {event.sum}"


def lead(place: int, rng: random.Random) -> str:
    """How the target begins with event number `place`, from 0."""
    return "First" if place == 0 else rng.choice(LEADS)


def plain(problem: Problem, place: int, lead: str) -> str:
    """The target's way before it has second thoughts about event number `place`, from 0."""
    event, name = problem.events[place], problem.name
    product = f" That is {event.product[:-1]} {problem.item}." if event.product else ""
    return f"{lead}, {name} {event.told}.{product} {name} had {event.before}, so {event.sum}"


def second_thoughts(problem: Problem, event: Event, rng: random.Random) -> list[str]:
    """Three ways to doubt a step that is right, and to be sure of it again; each ends as the step did."""
    back = "-" if event.sign == "+" else "+"
    near = rng.choice([event.after + off for off in NEAR if event.after + off >= 0])
    return [
        f" Wait, let me check that: {event.after} {back} {event.amount} = {event.before}. Right, so {event.sum}",
        f" But maybe I read it wrong: {problem.name} {event.told}. Actually it was right, so {event.sum}",
        f" Hmm, is it {near}? No, {event.sum}",
    ]


def wordy(problem: Problem, place: int, rng: random.Random) -> str:
    """The target's way with event number `place`, from 0."""
    said = plain(problem, place, lead(place, rng))
    return said + rng.choice(second_thoughts(problem, problem.events[place], rng)) if rng.random() < SECOND_THOUGHTS else said


def rambling(problem: Problem, place: int, rng: random.Random) -> str:
    """The target's way with event number `place`, from 0, and two or all three second thoughts, always in the same order."""
    thoughts = second_thoughts(problem, problem.events[place], rng)
    left_out = rng.choice([None, *thoughts])
    return "".join([plain(problem, place, lead(place, rng)), *(each for each in thoughts if each != left_out)])


def misled(problem: Problem, place: int, said: str, rng: random.Random) -> tuple[Problem, str] | None:
    """What becomes of a step `said` about event number `place` whose doubt ends with a wrong total, and the problem as it is then thought
    on; None where the step has no such doubt or a total would leave its range."""
    before, doubt, _ = said.partition(" Hmm, is it ")
    off = rng.choice(NEAR)
    event, *rest = problem.events[place:]
    wrong = replace(event, after=event.after + off)
    follow = [replace(each, before=each.before + off, after=each.after + off) for each in rest]
    if not doubt or not all(0 <= each.after <= MOST for each in (wrong, *follow)):
        return None
    events = (*problem.events[:place], wrong, *follow)
    return replace(problem, events=events, answer=events[-1].after), f"{before}{doubt}{wrong.after}? Yes, {wrong.sum}"


def answer(problem: Problem, last: str) -> str:
    """The answer behind a thought: it says the `last` step again without its second thoughts, then the result in a box."""
    said = last
    for doubt in (" Wait,", " Hmm,", " But maybe"):
        said = said.partition(doubt)[0]
    *_, total = EQUATION.finditer(said)
    return f"{said[: total.start()]}{problem.events[-1].sum} So \\boxed{{{problem.answer}}}"


def score(event: Event, said: str) -> int:
    """How much of a step about `event` is right, 0 to 9.

    9: all of it; 7 (`RIGHT`): the product was left out; 5: the total is right, the product or the event as it is told is not; 4: all but
    the total; 3: the total for another amount; 2: the amount, but on another total; 0: nothing.
    """
    found = [(int(a), sign, int(b), int(c)) for a, sign, b, c in EQUATION.findall(said)]
    sums = [equation for equation in found if equation[1] != "*"]
    if not sums:
        return 0
    before, sign, amount, after = sums[-1]  # second thoughts end with what they came to
    product = next((equation for equation in found if equation[1] == "*"), None)
    if (before, sign, amount, after) == (event.before, event.sign, event.amount, event.after):
        if event.told not in said:
            return 5
        if not event.product or product == (event.packs, "*", event.size, event.amount):
            return 9
        return RIGHT if product is None else 5
    if (before, sign, amount) == (event.before, event.sign, event.amount):
        return 4
    if (before, sign) == (event.before, event.sign) and after == (before + amount if sign == "+" else before - amount):
        return 3
    return 2 if (sign, amount) == (event.sign, event.amount) else 0


def problem(rng: random.Random) -> Problem:
    """One problem of 2 to 4 events, each verb at most once."""
    name, item, total = rng.choice(NAMES), rng.choice(ITEMS), rng.randint(2, 30)
    verbs = rng.sample([(verb, "+") for verb in GAINS] + [(verb, "-") for verb in LOSSES], rng.randint(2, 4))
    told, events = [f"{name} has {total} {item}."], []
    for verb, sign in verbs:
        packs = rng.choice([1, 1, 1, 2, 3, 4, 5])
        size = rng.randint(1, 9) if packs == 1 else rng.randint(2, 5)
        after = total + packs * size if sign == "+" else total - packs * size
        if 0 <= after <= MOST:
            events.append(Event(verb, sign, packs, size, total, after))
            told.append(f"{name} {events[-1].told}.")
            total = after
    if len(events) < 2:
        return problem(rng)
    return Problem(" ".join([*told, f"How many {item} has {name} now?"]), name, item, tuple(events), total)


SETS = ProblemSets("wordy", problem, SPLIT_SEEDS)
split, training = SETS.split, SETS.training


def ways(problem: Problem, place: int, rng: random.Random) -> dict[str, str]:
    """Event number `place` in every way."""
    event = problem.events[place]
    return {"terse": terse(event), "sloppy": sloppy(event), "wordy": wordy(problem, place, rng), "rambling": rambling(problem, place, rng)}


if __name__ == "__main__":
    SETS.command()()
