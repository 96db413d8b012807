"""The steps of a run folder, each with all that a reward model must know: the table `steps` and the problems enter, one `StepToScore` for
each leaves, chain by chain. Nothing is written."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.errors import InputError
from pipeline.graph.plan import Plan
from pipeline.reasoning.reward_prompts import Thought
from pipeline.store.kept_problems import Problems
from pipeline.store.query import Query

PLACE = ("problem_id", "chain_id", "sample_index", "step_index", "decision")
"""What a reward row repeats of its step's."""
STEPS = f"""
    SELECT {", ".join(PLACE)}, source_engine, chosen_candidate, step_text, candidate_texts
    FROM steps ORDER BY chain_id, step_index
"""


class StepText(Struct, frozen=True):
    """One text of a step: a candidate, or the committed text where it is no candidate."""

    text: str
    candidate_index: int | None
    """Index among the step's candidates; None where the text is none of them."""
    selected: bool
    """True if it was committed."""
    source_engine: str
    """The role that wrote it."""


class StepToScore(Struct, frozen=True, kw_only=True):
    """One committed step and what was drafted for it."""

    place: dict[str, Any]
    """The fields `PLACE` of its row."""
    problem: str
    before: tuple[str, ...]
    """The steps of the thought that precede this one."""
    texts: tuple[StepText, ...]
    """Its candidates, and the committed text where it is none of them."""
    steps: dict[str, list[str]]
    """By text: the steps that it is made of, the first one with the beginning that the thought holds already."""


def problem_texts(query: Query, plan: Plan, problems: Problems) -> dict[str, str]:
    """The text of each problem that has steps, by its id; raises `InputError` for one that is not among `problems`."""
    needed = set(query.columns("SELECT DISTINCT problem_id FROM steps")["problem_id"])
    found = {item.problem_id: item.told(plan.prompts) for item in problems if isinstance(item, Problem) and item.problem_id in needed}
    if missing := sorted(needed - found.keys()):
        raise InputError(str(problems.name), f"holds no problem {missing[0]!r}, of which this run has steps")
    return found


def steps_to_score(query: Query, plan: Plan, problems: Mapping[str, str], thought_end: str = "") -> Iterator[StepToScore]:
    """All steps of a run, chain by chain; `problems` has the text of each problem by its id."""
    rows = (row for batch in query.batches(STEPS, 1024) for row in batch.to_pylist())
    for _, of_chain in groupby(rows, key=lambda row: row["chain_id"]):
        thought = Thought(thought_end, plan.prompts)
        for row in of_chain:
            texts = _texts_of(row, plan.drafters)
            yield StepToScore(
                place={name: row[name] for name in PLACE},
                problem=problems[row["problem_id"]],
                before=tuple(thought.steps),
                texts=texts,
                steps={text: thought.steps_of(text) for text in dict.fromkeys(each.text for each in texts)},
            )
            thought.commit(row["step_text"])


def _texts_of(row: Mapping[str, Any], roles: Sequence[str]) -> tuple[StepText, ...]:
    """The candidates of a step, and its committed text where it is none of them; `roles` drafted the candidates."""
    texts, chosen, writer = row["candidate_texts"], row["chosen_candidate"], row["source_engine"]
    each = roles if len(roles) == len(texts) else [roles[0] if roles else writer] * len(texts)
    said = [StepText(text, i, i == chosen, writer if i == chosen else each[i]) for i, text in enumerate(texts)]
    return (*said, *([StepText(row["step_text"], None, True, writer)] if chosen is None else []))
