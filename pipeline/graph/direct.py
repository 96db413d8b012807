"""What the target writes without speculation: a graph enters, the stages that write in place of its loop leave. Pure.

A loop with `speculate: never` or `auto` is one of a graph whose own path without speculation is plain: nothing but guidance before
the loop, nothing but the answer after it, and in it a `generate` stage, the fallback. The role of the fallback is the target. The
`response` is the request that `target.yaml` makes, by the same name, so that it has the same id and seed; the `boundary` lets the target
finish a step that was cut when its response was interrupted.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from pipeline.errors import GraphError
from pipeline.graph.spec import RepeatSpec, Speculate, StageSpec

Stages = Mapping[str, StageSpec]
RESPONSE, BOUNDARY = "response", "boundary"
"""Names of the two stages."""


def speculation(stages: Stages) -> Speculate | None:
    """Whether the loop of a graph speculates; None where no loop of it drafts."""
    loops = [spec for spec in stages.values() if isinstance(spec, RepeatSpec) and any(each.drafts for each in spec.stages.values())]
    return next((loop.speculate for loop in loops if loop.speculate != "always"), "always") if loops else None


def direct_stages(stages: Stages, where: str) -> tuple[StageSpec, StageSpec]:
    """The specs of response and boundary of a graph whose loop may be without speculation.

    Raises `GraphError` at `where` for a graph with another form than the one that is described above.
    """
    name, loop = next((name, spec) for name, spec in stages.items() if isinstance(spec, RepeatSpec) and spec.speculate != "always")
    place, asked = f"{where}.{name}.speculate", f"`speculate: {loop.speculate}`"
    if not any(spec.drafts for spec in loop.stages.values()):
        raise GraphError(place, f"{asked} has no effect where nothing is drafted; drop it")
    before = (loop.after,) if isinstance(loop.after, str) else loop.after
    guides = [other for other in before if stages[other].purpose == "guide"]
    plain = {name, *guides[:1], *(other for other, spec in stages.items() if spec.answers and not spec.when)}
    if loop.when or stages.keys() > plain:
        odd = "this loop has a condition" if loop.when else f"this one also has `{next(other for other in stages if other not in plain)}`"
        raise GraphError(place, f"{asked} works only in graphs of the form [guidance], repeat, answer; {odd}")
    if taken := {RESPONSE, BOUNDARY} & (stages.keys() | loop.stages.keys()):
        raise GraphError(place, f"{asked} adds a stage named `{min(taken)}`; rename yours")
    if loop.until.token_budget is None:
        raise GraphError(f"{where}.{name}.until", f"{asked} needs a `token_budget`, the maximum number of tokens of the target's response")
    writer = next((spec for spec in loop.stages.values() if spec.kind == "generate"), None)
    if writer is None:
        raise GraphError(place, f"{asked} needs a `generate` stage in the loop, whose engine and temperature the target's response uses")
    own: dict[str, Any] = {"after": (), "when": None, "first_steps": 0}
    answer = next(spec for spec in stages.values() if spec.answers and not spec.when)
    said = answer.max_tokens if getattr(answer, "budget", None) == "thought" else None  # type: ignore[attr-defined]
    response = structs.replace(writer, unit="response", max_tokens=loop.until.token_budget, answer_tokens=said, **own)
    return response, structs.replace(writer, unit="step", **own)
