"""How a verdict came about: where the answer was found, what was compared, which rule decided; and what nobody can be asked about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.session.explain import Explanation, explanations
from pipeline.session.regrade import regrade
from pipeline.store.events import ChainRow, StepRow
from pipeline.store.run_store import RunStore
from tests.support.commands import pipeline

Blank = Callable[..., Any]
BOLD = "bold in the last line"
ROWS = [  # name, answer's text, recorded answer, reference, kind, recorded verdict
    ("phrase", "The answer is **42**.", "42", "42.0", "math", True),
    ("whole", " 2 602 ", "2 602", "2602", "math", True),
    ("thought", None, "7", "8", "math", False),
    ("old", "So it is **73**.", "So it is **73**.", "73", "math", False),
    ("percent", r"\boxed{50\%}", r"50\%", "0.5", "math", True),
    ("letter", "Final Answer: **C**", "C", "D", "letter", False),
    ("number", "about 12 eggs", "about 12 eggs", "12", "numeric", True),
    ("form", r"\boxed{x=1, y=\sqrt{8}}", r"x=1, y=\sqrt{8}", r"x=1, y=2\sqrt{2}", "math", True),
    ("units", r"\boxed{5\text{ cm}}", r"5\text{ cm}", r"5\text{ m}", "math", False),
    ("none", None, None, "5", "math", False),
    ("open", "9", "9", None, "math", None),
    ("failed", None, None, "5", "math", None),
]


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> Path:
    store = RunStore(tmp_path / "a-run")
    for number, (name, text, answer, reference, kind, correct) in enumerate(ROWS):
        about = {
            "chain_id": f"{name}#0",
            "problem_id": name,
            "input_row": number,
            "stop_reason": "error" if name == "failed" else "answer_boxed",
        }
        fields = {"answer_text": text, "answer": answer, "reference_answer": reference, "grader": kind, "correct": correct}
        store.append("chains", [blank(ChainRow, **about, **fields)])
        store.append("steps", [blank(StepRow, chain_id=f"{name}#0", step_text=r"so \boxed{7}" if name == "thought" else "hm")])
    store.close()
    return tmp_path / "a-run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "verdict", "found", "compared", "rule"),
    [
        ("phrase", True, "what follows `answer is`", ("42", "42"), "equal numbers"),
        ("whole", True, "the whole answer", ("2602", "2602"), "equal numbers"),
        ("thought", False, "the last box of the thought", ("7", "8"), "different numbers"),
        ("old", True, f"as recorded; now '73' would be used, {BOLD}; of it '73', {BOLD}", ("73", "73"), "the same text"),
        ("percent", True, "the last box", ("1/2", "1/2"), "equal numbers, one of them a percentage"),
        ("letter", False, "what follows `Answer:`", ("C", "D"), "different letters"),
        ("number", True, "the whole answer", ("12", "12"), "equal numbers"),
        ("form", True, "the last box", (r"x=1, y=\sqrt{8}", r"x=1, y=2\sqrt{2}"), "2 parts in any order"),
        ("units", False, "the last box", (r"5\unit{cm}", r"5\unit{m}"), "different units, cm and m"),
    ],
)  # fmt: skip
def test_how_a_verdict_came_about(run: Path, row: str, verdict: bool, found: str, compared: tuple[str, str], rule: str) -> None:
    [each] = explanations(run, row)
    assert (each.chain_id, each.verdict, each.answer_is) == (f"{row}#0", verdict, found)
    assert (each.normal_answer, each.normal_reference) == compared
    assert each.rule.startswith(rule)


def test_what_cannot_be_compared_has_a_reason(run: Path) -> None:
    found = {name: explanations(run, name)[0] for name in ("none", "open", "failed")}
    assert {name: (each.verdict, each.rule) for name, each in found.items()} == {
        "none": (False, "there is no answer"),
        "open": (None, "the problem has no reference answer"),
        "failed": (None, "the chain did not finish: error"),
    }


@pytest.mark.slow
def test_it_says_what_grading_again_would_write(run: Path) -> None:
    explained = {name: explanations(run, name)[0].verdict for name, *_ in ROWS}
    regrade(run)
    assert {name: explanations(run, name)[0].recorded for name, *_ in ROWS} == explained


@pytest.mark.slow
def test_the_command(run: Path) -> None:
    done = pipeline("grade", run, "--explain", "phrase")
    assert done.stdout.splitlines() == [
        "phrase#0: right",
        "  answer's text           The answer is **42**.",
        "  answer                  42  (what follows `answer is`)",
        "  reference               42.0",
        "  kind                    math",
        "  answer, compared as     42",
        "  reference, compared as  42",
        "  decided by              equal numbers",
    ]
    assert pipeline("grade", run, "--explain", "old").stdout.startswith("old#0: right, recorded as wrong\n")
    assert Explanation.__name__ not in pipeline("grade", "--explain", "old", run, "--json").stdout
    for arguments, says in [
        ((run, "--explain", "old", "--dry-run"), "--dry-run has no effect with --explain"),
        ((run, "--explain", "old", "--workers", "2"), "--workers has no effect with --explain"),
    ]:
        refused = pipeline("grade", *arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert says in refused.stderr
