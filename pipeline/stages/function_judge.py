"""Judges that are Python functions and call no engine: a decorated function enters, a kind of stage leaves.

    from collections.abc import Sequence
    import pipeline

    @pipeline.judge
    def shortest(problem: str, thought: str, candidates: Sequence[str], *, longest: int = 400) -> int | None:
        best = min(range(len(candidates)), key=lambda place: len(candidates[place]))
        return best if len(candidates[best]) <= longest else None

A graph names it by its kind: `verify: {kind: shortest, after: draft, longest: 300}`. Keyword-only arguments are its keys in the graph
file. It is known in the process that has decorated it; for the command line an entry point of the group `pipeline.stages` announces it,
`shortest = "my_module:shortest"`.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, get_type_hints, overload

import msgspec
from msgspec import structs

from pipeline.data.problems import Problem
from pipeline.engine import Completion, Request
from pipeline.errors import ChainError, UsageError, with_place
from pipeline.graph.plugins import register, stage_specs
from pipeline.graph.spec import StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.stages.base import StageKind

Judged = int | tuple[int | None, float] | None
"""The index of the accepted candidate, or None to reject all; or that and the number which the decision is based on."""
JudgeFunction = Callable[..., Judged]


class JudgeFailed(ChainError):
    """The function of a judge raised an error, or returned an invalid verdict."""


class FunctionJudgeSpec(StageSpec, frozen=True, kw_only=True):
    """The keys that every judge without an engine may have; its own are the keyword-only arguments of its function."""

    judges: ClassVar[bool] = True


class FunctionJudgeKind(StageKind, frozen=True, kw_only=True):
    """The kind of stage that a function is."""

    function: JudgeFunction

    def __call__(self, *arguments: Any, **keys: Any) -> Judged:
        """The function's verdict."""
        return self.function(*arguments, **keys)


class FunctionJudge:
    """A stage that asks a function which candidate to accept; without candidates nothing is asked."""

    role = ""
    """It calls no engine."""

    def __init__(self, name: str, spec: StageSpec, function: JudgeFunction, scale: Scale, *, distinct: bool, in_thread: bool) -> None:
        self.name, self.spec, self._function, self._scale, self._distinct = name, spec, function, scale, distinct
        self.in_thread = in_thread
        """Whether the function may take long, so that it is called in a thread."""
        self._whole = _takes_problem(function)
        """Whether the function asks for the `Problem`, and not for its text alone."""
        own = spec.__struct_fields__[len(FunctionJudgeSpec.__struct_fields__) :]
        self._arguments = {field: getattr(spec, field) for field in own}

    def check(self, candidates: int) -> str | None:
        return None

    def requests(self, chain: Chain) -> list[Request]:
        return []

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """Raises `JudgeFailed`."""
        distinct = chain.distinct_candidates()
        if not distinct:
            return Outcome()
        shown = distinct if self._distinct else range(chain.pending_from, len(chain.candidates))
        texts = tuple(chain.candidates[place].text for place in shown)
        thought = "".join(span.text for span in chain.thought)
        try:
            judged = self._function(chain.problem if self._whole else chain.problem.problem, thought, texts, **self._arguments)
        except Exception as error:
            raise JudgeFailed(f"the judge {self.spec.kind!r} raised {type(error).__name__}: {with_place(error)}") from error
        place, value = _judgement(self.spec.kind, judged, len(texts))
        chosen = None if place is None else _first_like(chain, shown[place], distinct)
        verdict = Verdict(
            kind=self.spec.kind,
            chosen=chosen,
            label="0" if chosen is None else str(distinct.index(chosen) + 1),
            value=value,
            scale=self._scale,
            options=tuple(map(str, range(1, len(distinct) + 1))),
            of_candidates=True,
            distinct=len(distinct),
        )
        return Outcome(verdict=verdict)


def _first_like(chain: Chain, place: int, distinct: Sequence[int]) -> int:
    """Which of the `distinct` candidates the one at `place` is."""
    chosen = chain.candidates[place]
    return next(each for each in distinct if (chain.candidates[each].role, chain.candidates[each].ids) == (chosen.role, chosen.ids))


@overload
def judge(kind: JudgeFunction) -> FunctionJudgeKind: ...
@overload
def judge(
    kind: str,
    *,
    value: str = "accepted",
    low: float | None = None,
    high: float | None = None,
    distinct: bool = True,
    in_thread: bool = False,
) -> Callable[[JudgeFunction], FunctionJudgeKind]: ...
def judge(
    kind: str | JudgeFunction,
    *,
    value: str = "accepted",
    low: float | None = None,
    high: float | None = None,
    distinct: bool = True,
    in_thread: bool = False,
) -> FunctionJudgeKind | Callable[[JudgeFunction], FunctionJudgeKind]:
    """Make a function a kind of stage that judges candidates, named `kind` in graph files, or after the function if `kind` is left out. It
    is registered in this process from then on.

    The function is called as `function(problem, thought, candidates, **keys)` with the texts of the problem, of all steps that were
    committed, and of the candidates, of which identical ones are there once unless `distinct` is false. If its first argument is annotated
    with `pipeline.Problem` it gets that, with `options`, `history` and the reference `answer`. It returns a `Judged`. `value`, `low` and
    `high` name the number that it returns, for plots. It must be a pure function of its arguments, or a resumed and a replayed run will
    differ. `in_thread`: call it in a thread, because it takes longer than a millisecond; not on simulated engines, whose clock does not
    advance meanwhile.

    Raises `TypeError` for a function with other arguments, `UsageError` where a built-in kind has that name.
    """
    if not isinstance(kind, str):
        return judge(kind.__name__)(kind)

    def made(function: JudgeFunction) -> FunctionJudgeKind:
        found = kind_of(function, kind, Scale(value, low, high), distinct=distinct, in_thread=in_thread)
        register(found)
        return found

    return made


def kind_of(function: JudgeFunction, kind: str, scale: Scale, *, distinct: bool = True, in_thread: bool = False) -> FunctionJudgeKind:
    """What `judge` makes, not registered."""

    def build(name: str, spec: StageSpec, builders: Mapping[str, PromptBuilder]) -> FunctionJudge:
        return FunctionJudge(name, spec, function, scale, distinct=distinct, in_thread=in_thread)

    return FunctionJudgeKind(spec=_spec_of(kind, function), build=build, function=function)


def as_judge(given: JudgeFunction | StageKind) -> StageKind:
    """A kind of stage as it is, a plain function as the judge of that name; raises `UsageError` for what is neither."""
    if isinstance(given, StageKind):
        return given
    if not hasattr(given, "__name__"):
        raise UsageError(f"judges: expected functions, got a `{type(given).__name__}`")
    return judge(given)


def _takes_problem(function: JudgeFunction) -> bool:
    """Whether the first argument of `function` is annotated with `Problem`."""
    first = next(iter(inspect.signature(function).parameters))
    return get_type_hints(function).get(first) is Problem


def _spec_of(kind: str, function: JudgeFunction) -> type[StageSpec]:
    """A spec whose keys are the keyword-only arguments of `function`."""
    hints = get_type_hints(function, include_extras=True)
    positional = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.KEYWORD_ONLY]
    if len(positional) != 3:
        raise TypeError(f"a judge accepts (problem, thought, candidates), and its keys after a *; {function.__name__} does not")
    fields = [
        (each.name, hints.get(each.name, Any), *(() if each.default is each.empty else (each.default,)))
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    taken = {*FunctionJudgeSpec.__struct_fields__, "engine", "role", "kind"} & {name for name, *_ in fields}
    if taken:
        raise TypeError(
            f"a judge cannot have a key named {', '.join(sorted(taken))}: every stage has it; rename that of {function.__name__}"
        )
    made: type[StageSpec] = msgspec.defstruct(
        f"{kind.title().replace('_', '').replace('-', '')}Spec",
        fields,
        bases=(FunctionJudgeSpec,),
        tag=kind,
        frozen=True,
        kw_only=True,
        module=function.__module__,
        namespace={"__doc__": inspect.getdoc(function), "__reduce__": lambda spec: (_received, (kind, structs.asdict(spec)))},
    )  # type: ignore[assignment]
    return made


def _received(kind: str, keys: Mapping[str, Any]) -> StageSpec:
    """The spec of a judge that came from another process, where its class was made anew: the class has no name to be pickled by."""
    if kind not in (known := stage_specs()):
        raise UsageError(f"the judge {kind!r} is not known in this process; register it as an entry point of the group pipeline.stages")
    return known[kind](**keys)


def _judgement(kind: str, judged: Any, candidates: int) -> tuple[int | None, float]:
    """The index and the value that a function returned; raises `JudgeFailed` for anything else."""
    place, value = judged if isinstance(judged, tuple) and len(judged) == 2 else (judged, None)
    if place is not None and (not isinstance(place, int) or isinstance(place, bool)):
        raise JudgeFailed(f"the judge {kind!r} returned {judged!r}; expected the index of a candidate, None, or (index or None, value)")
    if place is not None and not 0 <= place < candidates:
        raise JudgeFailed(f"the judge {kind!r} returned the index {place}, but there are {candidates} candidates")
    try:
        number = float(place is not None if value is None else value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise JudgeFailed(f"the judge {kind!r} returned the value {value!r}; expected a finite number")
    return place, number
