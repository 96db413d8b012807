"""What the chains of a run wrote, as text to learn from (SCoT 3.3: the target's thoughts, for the draft)."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.data.problems import Problem
from pipeline.export.solved import solved
from pipeline.grading.stated import CLOSE
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE, THINK_OPEN, Message
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.training.examples import Found

CLOSING = re.compile(rf"(?:{CLOSE.pattern})$")
"""The closing tag at the end of a thought, whichever the model has."""
WHOLE = ("thought_closed", "answer_boxed", "answer_confident", "answer_stable")
"""The stop reasons of thoughts that were not cut."""


def replies(run: Path, left_out: Counter[str], *, with_answer: bool) -> Iterator[Found]:
    """Each chain whose text is whole, with the columns `prompt` and `completion` of an `SftRow`.

    What was cut would teach a model never to end: it is counted in `left_out` by the reason, as a clause. with_answer: the completion has
    the answer, too. Raises `InputError` where the run cannot be read.
    """
    record = RunFile.read(run)
    prompts = record.plan.prompts
    with Query(run) as db:
        for problem, _, chains in solved(run, record, db):
            for chain in chains:
                if not isinstance(problem, Problem) or chain.stop_reason in ("error", "cancelled"):
                    left_out["chains that failed or were not finished"] += 1
                elif chain.stop_reason not in WHOLE or (with_answer and chain.answer_cut is not False):
                    left_out["chains whose text was cut"] += 1
                else:
                    asked = (*prompts.before(problem.history), Message("user", prompts.asked(problem.problem, problem.options)))
                    thought = CLOSING.sub("", (chain.thought or "").removesuffix(prompts.thought.close))
                    said = Message("assistant", _said(thought, (chain.answer_text or "") if with_answer else ""))
                    yield problem, chain.chain_id, chain.correct, {"prompt": asked, "completion": (said,)}


def _said(thought: str, answer: str) -> str:
    """The whole reply."""
    between = "" if answer[:1].isspace() or not answer else DELIMITER
    return f"{THINK_OPEN}\n{thought}{THINK_CLOSE}{between}{answer}"
