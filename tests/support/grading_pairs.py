"""Answers and references written for this project, with the verdict that a reader gives: the lines of `grading_pairs.txt`.

A line is `ANSWER ≡ REFERENCE` where the answer is right, and `ANSWER ≢ REFERENCE` where it is wrong, under a heading `# KIND: TOPIC`;
`\\uXXXX` stands for a character that is not seen.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pipeline.grading.answers import quick_grade


class Pair(NamedTuple):
    """An answer and a reference."""

    kind: str
    topic: str
    answer: str
    reference: str
    right: bool


def read() -> list[Pair]:
    """All pairs, in the order of the file."""
    found, kind, topic = [], "", ""
    for line in (Path(__file__).parent / "grading_pairs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind, _, topic = line[2:].partition(": ")
        elif line:
            text = re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), line)
            answer, sign, reference = re.split(" ?([≡≢]) ?", text, maxsplit=1)
            found.append(Pair(kind, topic, answer, reference, sign == "≡"))
    return found


PAIRS = read()


def at_once(kind: str, answer: str, reference: str) -> bool | None:
    """Whether an answer is right, as far as that takes no algebra."""
    grade = quick_grade(kind, answer, reference)
    return grade and grade.correct
