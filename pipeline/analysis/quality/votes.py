"""The majority vote over the samples of every problem: graded answers enter, the share of problems that it gets right leaves.

Answers that `canonical` makes equal are one answer. What is left is compared in pairs, which may take a worker process; so of one
problem only the `MAX_COMPARED` most frequent wrong answers are, and a rarer one is taken to differ from all others. Time is linear
in the number of samples.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pipeline.grading.answers import Canonical, canonical, is_percentage

Same = Callable[[str, str], bool]
"""A function that decides whether two answers mean the same."""
MAX_COMPARED = 32
"""How many wrong answers of one problem are compared with each other, the most frequent ones."""
Votes = tuple[int, int]
"""How many samples gave an answer, and the negative index of the first of them: of two answers the greater one wins."""


class Sample(Struct, frozen=True):
    """One graded chain."""

    correct: bool
    answer: str | None
    """Null where it gave none; then it does not count in the majority vote."""


class WrongAnswer(Struct):
    """Wrong answers of one problem that are taken to mean the same."""

    answer: str
    """The first of them."""
    form: Canonical
    places: list[int]
    """Indices of the samples that gave it."""

    @property
    def votes(self) -> Votes:
        return len(self.places), -min(self.places)


def majority(problems: Iterable[Sequence[Sample]], same: Same) -> float | None:
    """The share of problems whose most frequent answer is right; among equally frequent ones the first one counts. None without problems.

    Answers are grouped by `same`, and those that are right are one group: they all equal the reference.
    """
    votes = [_majority_right(samples, same) for samples in problems]
    return sum(votes) / len(votes) if votes else None


class Answer(Struct, frozen=True):
    """One answer to a problem, however its samples wrote it."""

    text: str
    """As the first of them wrote it."""
    votes: int
    first: int
    """Index of the first sample that gave it."""


def ballot(samples: Sequence[Sample], same: Same) -> list[Answer]:
    """The answers of one problem's samples, those with most votes first, and among equally frequent ones the one given first.

    Right samples gave one answer, and the others are compared by `same`; so the first answer here is right where `majority` says so.
    """
    places = [place for place, sample in enumerate(samples) if sample.answer is not None]
    voters = [samples[place] for place in places]
    wrong = _wrong_answers(voters)
    compared = sorted(wrong, key=lambda each: each.votes, reverse=True)[:MAX_COMPARED]
    found = [(each.votes, each.answer) for each in _joined(wrong, compared, same)]
    if right := [place for place, sample in enumerate(voters) if sample.correct]:
        found.append(((len(right), -right[0]), str(voters[right[0]].answer)))
    return [Answer(text, votes, places[-first]) for (votes, first), text in sorted(found, reverse=True)]


def _majority_right(samples: Sequence[Sample], same: Same) -> bool:
    """Whether the most frequent answer is right. Calls `same` only where it can change the outcome."""
    voters = [sample for sample in samples if sample.answer is not None]
    right = [place for place, sample in enumerate(voters) if sample.correct]
    if not right or len(right) * 2 > len(voters):
        return bool(right)
    mine = len(right), -right[0]
    wrong = _wrong_answers(voters)
    if any(each.votes > mine for each in wrong):
        return False  # other ways to write an answer can only make its group larger
    compared = sorted(wrong, key=lambda each: each.votes, reverse=True)[:MAX_COMPARED]
    if sum(len(each.places) for each in compared) < len(right):
        return True
    return all(mine > each.votes for each in _joined(wrong, compared, same))


def _wrong_answers(voters: Iterable[Sample]) -> list[WrongAnswer]:
    """The wrong answers in the order in which they were first given; one with a percent sign is another one than without it."""
    texts: dict[str, list[int]] = {}
    for place, voter in enumerate(voters):
        if not voter.correct and voter.answer is not None:
            texts.setdefault(voter.answer, []).append(place)
    found: dict[tuple[Canonical, bool], WrongAnswer] = {}
    for answer, places in texts.items():
        form = canonical(answer)
        found.setdefault((form, is_percentage(answer)), WrongAnswer(answer, form, [])).places += places
    return list(found.values())


def _joined(wrong: Iterable[WrongAnswer], compared: Sequence[WrongAnswer], same: Same | None = None) -> list[WrongAnswer]:
    """`wrong` with those joined that have one canonical form and, among `compared`, those that are the `same`."""
    chosen = {id(each) for each in compared}
    groups: list[WrongAnswer] = []
    by_form: dict[Canonical, WrongAnswer] = {}
    asked: list[WrongAnswer] = []
    for each in wrong:
        own = None
        if same is not None and id(each) in chosen:
            own = next((group for group in asked if group.form == each.form or same(each.answer, group.answer)), None)
        own = own or by_form.get(each.form)
        if own is None:
            own = WrongAnswer(each.answer, each.form, [])
            groups.append(own)
            by_form[each.form] = own
            asked += [own] if id(each) in chosen else []
        own.places += each.places
    return groups
