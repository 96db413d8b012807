"""What the stages of a plan need of their engines (`StageSpec.needs`), held against what these cannot do: the same names under `cannot`, in
an engine's spec, as far as that tells, and among its facts, once it is open. Pure.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pipeline.errors import GraphError
from pipeline.graph.plan import Plan

_LACKS = {
    "continues": (
        "cannot continue a partial reply, which stage `{stage}` needs",
        "use a server with /v1/completions, or a graph of whole thoughts, such as `scot`",
    ),
    "options": (
        "returns no log probabilities, which stage `{stage}` needs for its verdict",
        "use a server that returns them, or a judge without an engine, such as `vote`",
    ),
    "probabilities": (
        "names one option and no probabilities, which the threshold of stage `{stage}` needs",
        "set it to 0, or use a server with /v1/completions",
    ),
    "scoring": (
        "returns no log probabilities of prompt tokens, which stage `{stage}` needs",
        "use an engine that returns them (torch, a vLLM server, vllm: on a GPU under its model runner V1 with "
        "`max_num_batched_tokens: 2048` or less), or judge with `choose` or `score`",
    ),
    "logprobs": (
        "returns no log probabilities of what it writes, which stage `{stage}` needs",
        "use an engine that returns them (torch, vllm, most servers with /v1/completions, a replay of a run that had them), or leave out "
        "what needs them",
    ),
    "seeds": (
        "does not support seeds: stage `{stage}` samples a different text in every run",
        "use an engine that does if runs must be reproducible",
    ),
}
_BEARABLE = ("seeds",)
"""Needs without which a run does its work, but not as well: a note."""


class Unmet(NamedTuple):
    """A need of a stage that the engine of its role does not meet."""

    role: str
    need: str
    error: GraphError

    @property
    def fatal(self) -> bool:
        """False: the run does its work without, but not as well."""
        return self.need not in _BEARABLE


def unmet_needs(plan: Plan, cannot: Mapping[str, Collection[str]]) -> Iterator[Unmet]:
    """Every need of `plan` that is among what its engine `cannot` do, by role; of stages with the same need the first one is named."""
    told: set[tuple[str, str]] = set()
    for role, stage, need, value in _needs(plan):
        if need in cannot.get(role, ()) and (role, need) not in told:
            told.add((role, need))
            what, remedy = _LACKS.get(need) or _unhonoured(need, value)
            yield Unmet(role, need, GraphError(f"engine {role!r}", f"{what.format(stage=stage)}; {remedy}"))


def check_needs(plan: Plan, cannot: Mapping[str, Collection[str]]) -> None:
    """Raise the `GraphError` of the first need without which `plan` cannot do its work."""
    for unmet in unmet_needs(plan, cannot):
        if unmet.fatal:
            raise unmet.error


def _needs(plan: Plan) -> Iterator[tuple[str, str, str, object]]:
    """Each need as role, stage, its name and its value."""
    for node in plan.stages():
        if node.spec.role is not None:
            yield from ((node.spec.role, node.name, need, value) for need, value in node.spec.needs.items())
    roles = {node.name: str(node.spec.role) for node in plan.stages()}
    yield from ((roles[draft], gate, "logprobs", True) for draft, gate in plan.measured.items())


def _unhonoured(need: str, value: object) -> tuple[str, str]:
    """What is said of a parameter of sampling, and of the need of a stage of another package."""
    sets = "" if value is True else f" sets to {value}"
    return f"does not support `{need}`, which stage `{{stage}}`{sets or ' needs'}", "leave that out or use another engine"
