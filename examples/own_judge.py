"""A judge and a grader that are Python functions, with the bundled models.

python examples/own_judge.py
"""

import operator
import re
from collections.abc import Sequence

import pipeline

PROBLEMS = [
    {"problem": "Nora has 13 figs. Nora sells 6. Nora buys 4 packs of 5. How many figs has Nora now?", "answer": "27 figs"},
    {"problem": "Paul has 16 seeds. Paul collects 5. Paul lends 2 packs of 5. How many seeds has Paul now?", "answer": "11 seeds"},
]
LOSSES = ("loses", "sells", "drops", "eats", "breaks", "lends", "trades", "hides")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
GRAPH = {
    "name": "checked",
    "stages": {
        "reason": {
            "kind": "repeat",
            "until": {"thought_closed": True, "max_steps": 12},
            "stages": {
                "draft": {"kind": "draft", "engine": "draft", "candidates": 5, "max_tokens": 32},
                "verify": {"kind": "sums", "after": "draft"},
                "fallback": {
                    "kind": "generate",
                    "engine": "target",
                    "unit": "step",
                    "when": "verify.rejected",
                    "after": "verify",
                    "max_tokens": 32,
                },
            },
        },
        "answer": {"kind": "answer", "engine": "target", "after": "reason"},
    },
}


@pipeline.judge
def sums(problem: pipeline.Problem, candidates: Sequence[str]) -> int | None:
    """The first step whose sums are true and go the way that its verb says; none where there is no such step."""
    return next((place for place, step in enumerate(candidates) if is_right(step)), None)


def is_right(step: str) -> bool:
    found = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", step)
    wrong_way = "+" if any(verb in step for verb in LOSSES) else "-"
    return all(SIGNS[sign](int(a), int(b)) == int(c) and sign != wrong_way for a, sign, b, c in found)


@pipeline.grader
def same_number(answer: str, reference: str) -> bool:
    """Whether both begin with the same number, whatever the unit."""
    return re.findall(r"\d+", answer)[:1] == re.findall(r"\d+", reference)[:1]


if __name__ == "__main__":
    result = pipeline.solve(GRAPH, PROBLEMS, engines="tiny", judges=[sums], graders=[same_number])
    for chain in result:
        print(
            chain.problem_id, chain.answer, "right" if chain.correct else "wrong", f"{chain.accepted_steps} of {chain.steps} steps drafted"
        )
    print(f"{result.accuracy:.0%} right")
