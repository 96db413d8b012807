"""Judges that are Python functions and call no engine: a function enters, a kind of stage leaves.

A graph names a judge by its kind: `verify: {kind: shortest, after: draft}`. It is known in the process that has made it; for the command
line an entry point of the group `pipeline.stages` announces it, `shortest = "my_module:shortest"`.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engine import Completion
from pipeline.errors import ChainError, UsageError, with_place
from pipeline.graph.plugins import register
from pipeline.graph.spec import FunctionJudgeSpec, StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.stages.base import CallFreeStage, StageKind

Judged = int | tuple[int | None, float] | None
"""The index of the accepted candidate, or None to reject all; or that and the number which the decision is based on."""
JudgeFunction = Callable[[Problem, Sequence[str]], Judged]


class JudgeFailed(ChainError):
    """The function of a judge raised an error, or returned an invalid verdict."""


class FunctionJudgeKind(StageKind, frozen=True, kw_only=True):
    """The kind of stage that a function is, which can still be called."""

    name: str
    function: JudgeFunction

    def __call__(self, problem: Problem, candidates: Sequence[str]) -> Judged:
        return self.function(problem, candidates)


class FunctionJudge(CallFreeStage, Struct):
    """A stage that asks a function which candidate to accept; without candidates nothing is asked."""

    name: str
    spec: StageSpec
    function: JudgeFunction
    scale: Scale
    in_thread: bool

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """Raises `JudgeFailed`."""
        kind, distinct, pending = self.spec.kind, chain.distinct_candidates(), chain.candidates[chain.pending_from :]
        if not distinct:
            return Outcome()
        try:
            judged = self.function(chain.problem, tuple(candidate.text for candidate in pending))
        except Exception as error:
            raise JudgeFailed(f"the judge {kind!r} raised {type(error).__name__}: {with_place(error)}") from error
        place, value = _judgement(kind, judged, len(pending))
        own = None if place is None else (pending[place].role, pending[place].ids)
        chosen = next((each for each in distinct if (chain.candidates[each].role, chain.candidates[each].ids) == own), None)
        verdict = Verdict(
            kind=kind,
            chosen=chosen,
            label="0" if chosen is None else str(distinct.index(chosen) + 1),
            value=value,
            scale=self.scale,
            options=tuple(map(str, range(1, len(distinct) + 1))),
            of_candidates=True,
            distinct=len(distinct),
        )
        return Outcome(verdict=verdict)


def judge(
    function: JudgeFunction,
    *,
    name: str = "",
    value: str = "accepted",
    low: float | None = None,
    high: float | None = None,
    in_thread: bool = False,
) -> FunctionJudgeKind:
    """Make a function a kind of stage that judges candidates, and register it in this process. `name` is its kind in graph files, else the
    name of the function.

    It is called as `function(problem, candidates)` with a `pipeline.Problem` and the texts of the candidates; `functools.partial` sets what
    else it takes. It returns a `Judged`; `value`, `low` and `high` name the number in it, for plots. It must be a pure function, or a
    resumed and a replayed run will differ. `in_thread`: call it in a thread, because it takes longer than a millisecond; not on simulated
    engines, whose clock does not advance meanwhile.

    Raises `UsageError` for another object, for a function without a name, and for the name of a built-in kind.
    """
    kind = name or getattr(function, "__name__", "")
    try:
        inspect.signature(function).bind("problem", "candidates")
    except (TypeError, ValueError) as error:
        raise UsageError(f"judge {kind or function!r}: expected a function of (problem, candidates): {error}") from None
    if not kind:
        raise UsageError(f"judge {function!r}: it has no name; give it one, as in pipeline.judge(..., name='shortest')")

    def build(stage: str, spec: StageSpec, *others: object) -> FunctionJudge:
        return FunctionJudge(stage, spec, function, Scale(value, low, high), in_thread)

    found = FunctionJudgeKind(name=kind, spec=FunctionJudgeSpec, build=build, function=function)
    register(found)
    return found


def _judgement(kind: str, judged: Any, candidates: int) -> tuple[int | None, float]:
    """The index and the value that a function returned; raises `JudgeFailed` for anything else."""
    try:
        place, value = judged if isinstance(judged, tuple) else (judged, judged is not None)
        number = float(value)
        valid = (place is None or (type(place) is int and 0 <= place < candidates)) and math.isfinite(number)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        expected = f"the index of one of {candidates} candidates or None, or a pair of that and a finite number"
        raise JudgeFailed(f"the judge {kind!r} returned {judged!r}; expected {expected}")
    return place, number
