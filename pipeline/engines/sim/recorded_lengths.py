"""Reads the lengths of simulated texts: the folder of a recorded run enters, a `SimLengthsSpec` leaves.

The thoughts count that were finished, and not cut or ended as repetitive. A step is the text between blank lines, whichever calls
wrote it: the tokens of a call with several steps are divided by characters.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from pipeline.engines.sim.lengths import MAX_LENGTHS, SimLengthsSpec
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import GraphError, InputError, UsageError, boundary
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

THOUGHTS = """
    SELECT list(step_text ORDER BY step_index), list(len(step_token_ids) ORDER BY step_index)
    FROM steps SEMI JOIN (FROM chains WHERE stop_reason IN ('thought_closed', 'answer_boxed')) USING (chain_id)
    GROUP BY chain_id
"""
"""The texts and tokens of the steps of each finished thought."""
KEPT = 512
"""Maximum number of samples kept of a run; more are sorted and averaged in this many groups, which keeps the mean."""


def with_lengths(role: str, spec: SimSpec) -> SimSpec:
    """`spec` with the lengths of the run that its `text.lengths` names; raises `GraphError` where that holds none."""
    run = spec.text.lengths
    if not isinstance(run, str):
        return spec
    with boundary(GraphError, f"engine {role!r}: text.lengths", foreign=UsageError):
        return structs.replace(spec, text=structs.replace(spec.text, lengths=read_lengths(Path(run))))


def read_lengths(run: Path) -> SimLengthsSpec:
    """The lengths of the finished thoughts of a run; raises `InputError` where there are none."""
    RunFile.read(run)
    with Query(run) as db:
        steps = [lengths for texts, tokens in db.stream(THOUGHTS) if (lengths := list(_steps(zip(texts, tokens, strict=True))))]
    if not steps:
        raise InputError(str(run), "has no chain that finished its thought, so there are no lengths to use")
    counts, tokens = [len(each) for each in steps], [length for each in steps for length in each]
    return SimLengthsSpec(steps=_samples(counts, MAX_LENGTHS["steps"]), step_tokens=_samples(tokens, MAX_LENGTHS["step_tokens"]))


def _steps(parts: Iterable[tuple[str, int]]) -> Iterator[float]:
    """Tokens of each step of a thought, whose committed texts with their tokens are `parts`."""
    tokens, blank = 0.0, True
    for text, count in parts:
        thought, closed, _ = text.partition(THINK_CLOSE)
        each = count / max(len(text), 1)
        *ended, open_ = thought.split(DELIMITER)
        for step in ended:
            tokens, blank = tokens + each * len(step + DELIMITER), blank and not step.strip()
            if not blank:
                yield tokens
                tokens, blank = 0.0, True
        tokens, blank = tokens + each * len(open_ + closed), blank and not open_.strip()
        if closed:
            break
    if not blank:
        yield tokens


def _samples(values: Sequence[float], most: float) -> tuple[float, ...]:
    """`values` in order, within 1 and `most`; at most `KEPT` of them."""
    ordered = sorted(min(max(value, 1), most) for value in values)
    if len(ordered) <= KEPT:
        return tuple(ordered)
    ends = [len(ordered) * number // KEPT for number in range(KEPT + 1)]
    return tuple(round(sum(ordered[start:end]) / (end - start), 3) for start, end in pairwise(ends))
