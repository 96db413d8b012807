"""Arithmetic word problems with their reasoning, seeded: the data of the bundled models.

Arithmetic is a look-up here: integers 0 to 99 are single tokens, totals stay within 0..30, so that a model of a
million parameters can learn it. `python tools/make_arith.py` writes datasets/arith/{validation,test}.parquet; training
problems are drawn on the fly and are disjoint from both by their text.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

NAMES = "Lily Tom Anna Ben Mia Sam Eva Max Zoe Leo Ida Paul Nora Finn Rosa Hugo Clara Emil Greta Otto".split()
ITEMS = "pens apples books coins cards shells stamps marbles eggs plums cups keys hats rings bells nuts figs seeds".split()
GAINS = "buys finds wins picks gets earns borrows collects".split()
LOSSES = "sells loses drops eats breaks lends trades hides".split()
MOST = 30
"""Largest total; the smallest is 0."""
SPLIT_SEEDS = {"validation": 1, "test": 2}
SPLIT_SIZE = 500


@dataclass(frozen=True)
class Problem:
    """A question, its reasoning as steps (each without its delimiter), and its answer."""

    text: str
    steps: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Event:
    """What happens to the total: `packs` times `size` items come or go; one pack is told without the word."""

    verb: str
    sign: int
    packs: int
    size: int

    @property
    def told(self) -> str:
        return f"{self.verb} {self.size}" if self.packs == 1 else f"{self.verb} {self.packs} packs of {self.size}"

    def steps(self, name: str, total: int) -> list[str]:
        sign, amount = "+" if self.sign > 0 else "-", self.packs * self.size
        result = f"{total} {sign} {amount} = {total + self.sign * amount}."
        if self.packs == 1:
            return [f"{name} {self.told}, so {result}"]
        return [f"{name} {self.told}, so {self.packs} * {self.size} = {amount}.", f"Then {result}"]


def problem(rng: random.Random) -> Problem:
    """One problem of 2 or 3 events, each verb at most once."""
    name, item, total = rng.choice(NAMES), rng.choice(ITEMS), rng.randint(2, 20)
    verbs = rng.sample([(verb, 1) for verb in GAINS] + [(verb, -1) for verb in LOSSES], rng.randint(2, 3))
    told, steps = [f"{name} has {total} {item}."], []
    for verb, sign in verbs:
        event = _event(rng, verb, sign, total)
        if event is None:
            continue
        told.append(f"{name} {event.told}.")
        steps += event.steps(name, total)
        total += event.sign * event.packs * event.size
    if len(told) < 3:
        return problem(rng)
    return Problem(" ".join([*told, f"How many {item} has {name} now?"]), tuple(steps), total)


def _event(rng: random.Random, verb: str, sign: int, total: int) -> Event | None:
    """An event that keeps the total within bounds, or None when the draw does not."""
    packs = rng.choice([1, 1, 1, 1, 2, 3, 4, 5])
    size = rng.randint(1, 9) if packs == 1 else rng.randint(2, 5)
    return Event(verb, sign, packs, size) if 0 <= total + sign * packs * size <= MOST else None


def split(name: str) -> list[Problem]:
    """The problems of `validation` or `test`; no text occurs twice, and none in both."""
    taken = {each.text for each in split("validation")} if name == "test" else set()
    rng, problems = random.Random(SPLIT_SEEDS[name]), list[Problem]()
    while len(problems) < SPLIT_SIZE:
        new = problem(rng)
        if new.text not in taken:
            taken.add(new.text)
            problems.append(new)
    return problems


def training(seed: int) -> Iterator[Problem]:
    """Problems without end, none of which is in `validation` or `test`."""
    held_out = {each.text for name in SPLIT_SEEDS for each in split(name)}
    rng = random.Random(f"train {seed}")
    while True:
        new = problem(rng)
        if new.text not in held_out:
            yield new


def main() -> None:
    """Write the held-out problems as Parquet: problem_id, problem, answer, steps, source."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in SPLIT_SEEDS:
        rows = [
            {"problem_id": f"arith-{name}-{i:03}", "problem": each.text, "answer": str(each.answer), "steps": list(each.steps)}
            for i, each in enumerate(split(name))
        ]
        table = pa.Table.from_pylist([row | {"source": "tools/make_arith.py"} for row in rows])
        pq.write_table(table, f"datasets/arith/{name}.parquet", compression="zstd")


if __name__ == "__main__":
    main()
