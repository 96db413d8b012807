"""Judges that are Python functions and call no engine: a decorated function enters, a kind of stage leaves.

    from collections.abc import Sequence
    from pipeline import judge

    @judge("shortest")
    def shortest(problem: str, thought: str, candidates: Sequence[str], *, longest: int = 400) -> int | None:
        best = min(range(len(candidates)), key=lambda place: len(candidates[place]))
        return best if len(candidates[best]) <= longest else None

An entry point of the group `pipeline.stages` announces it, `shortest = "my_module:shortest"`, and a graph names it by its kind:
`verify: {kind: shortest, after: draft, longest: 300}`. Keyword-only arguments are its keys in the graph file.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, get_type_hints

import msgspec
from msgspec import structs

from pipeline.engine import Completion, Request
from pipeline.errors import ChainError, with_place
from pipeline.graph.plugins import stage_specs
from pipeline.graph.spec import StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.stages.base import StageKind

Judged = int | tuple[int | None, float] | None
"""The index of the candidate that is accepted, None where all are rejected; or that and the number which the decision is based on."""
JudgeFunction = Callable[..., Judged]


class JudgeFailed(ChainError):
    """The function of a judge raised an error, or returned what is no judgement."""


class FunctionJudgeSpec(StageSpec, frozen=True, kw_only=True):
    """The keys that every judge without an engine may have; its own are the keyword-only arguments of its function."""

    judges: ClassVar[bool] = True


class FunctionJudge:
    """A stage that asks a function which candidate to take; without candidates nothing is asked."""

    role = ""
    """It calls no engine."""

    def __init__(self, name: str, spec: StageSpec, function: JudgeFunction, scale: Scale, *, distinct: bool, in_thread: bool) -> None:
        self.name, self.spec, self._function, self._scale, self._distinct = name, spec, function, scale, distinct
        self.in_thread = in_thread
        """Whether the function may take long, so that it is called in a thread."""
        own = spec.__struct_fields__[len(FunctionJudgeSpec.__struct_fields__) :]
        self._arguments = {field: getattr(spec, field) for field in own}

    def check(self, candidates: int) -> str | None:
        """See `Stage.check`."""
        return None

    def requests(self, chain: Chain) -> list[Request]:
        """See `Stage.requests`."""
        return []

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """See `Stage.apply`; raises `JudgeFailed`."""
        distinct = chain.distinct_candidates()
        if not distinct:
            return Outcome()
        shown = distinct if self._distinct else range(chain.pending_from, len(chain.candidates))
        texts = tuple(chain.candidates[place].text for place in shown)
        thought = "".join(span.text for span in chain.thought)
        try:
            judged = self._function(chain.problem.problem, thought, texts, **self._arguments)
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


def judge(
    kind: str,
    *,
    value: str = "accepted",
    low: float | None = None,
    high: float | None = None,
    distinct: bool = True,
    in_thread: bool = False,
) -> Callable[[JudgeFunction], StageKind]:
    """Make a function a kind of stage that judges candidates, called `kind` in graph files.

    The function is called as `function(problem, thought, candidates, **keys)` with the texts of the problem, of all steps that were
    committed, and of the candidates, of which identical ones are there once unless `distinct` is false. It returns a `Judged`. `value`,
    `low` and `high` name the number that it returns, for plots. It must be a pure function of its arguments, or a resumed and a replayed
    run will differ. `in_thread`: call it in a thread, because it takes longer than a millisecond; not on simulated engines, whose time
    stands still meanwhile.

    Raises `TypeError` for a function with other arguments.
    """

    def made(function: JudgeFunction) -> StageKind:
        spec = _spec_of(kind, function)
        scale = Scale(value, low, high)

        def build(name: str, found: StageSpec, builders: Mapping[str, PromptBuilder]) -> FunctionJudge:
            return FunctionJudge(name, found, function, scale, distinct=distinct, in_thread=in_thread)

        return StageKind(spec=spec, build=build)

    return made


def _spec_of(kind: str, function: JudgeFunction) -> type[StageSpec]:
    """A spec whose keys are the keyword-only arguments of `function`."""
    hints = get_type_hints(function, include_extras=True)
    positional = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.KEYWORD_ONLY]
    if len(positional) != 3:
        raise TypeError(f"a judge takes (problem, thought, candidates), and its keys after a *; {function.__name__} does not")
    fields = [
        (each.name, hints.get(each.name, Any), *(() if each.default is each.empty else (each.default,)))
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    taken = {*FunctionJudgeSpec.__struct_fields__, "engine", "role", "kind"} & {name for name, *_ in fields}
    if taken:
        raise TypeError(
            f"a judge has no key called {', '.join(sorted(taken))} of its own: every stage has it; rename that of {function.__name__}"
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
    return stage_specs()[kind](**keys)


def _judgement(kind: str, judged: Any, candidates: int) -> tuple[int | None, float]:
    """The index and the value that a function returned; raises `JudgeFailed` for anything else."""
    place, value = judged if isinstance(judged, tuple) and len(judged) == 2 else (judged, None)
    if place is not None and (not isinstance(place, int) or isinstance(place, bool)):
        raise JudgeFailed(f"the judge {kind!r} returned {judged!r}; expected the index of a candidate, None, or (index or None, value)")
    if place is not None and not 0 <= place < candidates:
        raise JudgeFailed(f"the judge {kind!r} returned the index {place}, and there are {candidates} candidates")
    try:
        number = float(place is not None if value is None else value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise JudgeFailed(f"the judge {kind!r} returned the value {value!r}; expected a finite number")
    return place, number
