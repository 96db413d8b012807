"""The stages of a plan, ready to run: a plan, engines and their tokenizers enter, prompt builders and a `Stage` for each node leave."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from msgspec import structs

from pipeline.engine import Engine, Tokenizer
from pipeline.errors import GraphError, RequestRefused, boundary
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import stage_kinds
from pipeline.graph.prompts import Marks, Prompts
from pipeline.graph.spec import SamplingSpec
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.stages.base import ShowingStage, Stage, StagePlace
from pipeline.stages.reward import RewardJudgeSpec


def build_stages(
    plan: Plan, builders: Mapping[str, PromptBuilder], where: str, *, cannot: Mapping[str, Container[str]] = {}, only: str | None = None
) -> dict[str, Stage]:
    """The stages of `plan` by name, or the `only` one of this name; `builders`: of all roles; `cannot`: what the engine of each role
    cannot do.

    Raises `GraphError` at `where` for a stage that its engine's tokenizer does not suit, such as a verdict that has an option
    which is not a single token.
    """
    nodes = [node for node in plan.stages() if only in (None, node.name)]
    most = sum(node.spec.drafted for node in plan.stages())
    sampling = [(str(node.spec.role), node.spec.sampling) for node in plan.stages() if isinstance(node.spec, SamplingSpec)]
    unsupported = {name: role for role, fields in reversed(sampling) for name in fields if name in cannot.get(role, ())}
    drafts = {gate: draft for draft, gate in plan.measured.items()}
    built: dict[str, Stage] = {}
    for node in sorted(nodes, key=lambda node: node.spec.drafts):  # judges first: drafts must fit into their questions
        held = node.condition
        place = StagePlace(
            judges=tuple(judge for each in plan.repeated if isinstance(judge := built.get(each.name), ShowingStage)),
            measured=node.name in plan.measured,
            # So that the step begins with the tokens that the gate looked at.
            seeded_as=drafts.get(held.stage) if held is not None and held.word == "passed" else None,
            unsupported=unsupported,
        )
        stage: Stage = stage_kinds()[node.spec.kind].build(node.name, node.spec, builders, place)
        if (flaw := stage.check(most)) is not None:
            raise GraphError(f"{where}: stage {node.name}", flaw)
        built[node.name] = stage
    return {node.name: built[node.name] for node in nodes}


def builders_of(plan: Plan, tokenizers: Mapping[str, Tokenizer]) -> dict[str, PromptBuilder]:
    """A prompt builder for each role of `tokenizers`; raises `GraphError` for a tokenizer or a chat template that fails."""
    rewards = {node.spec.role for node in plan.stages() if isinstance(node.spec, RewardJudgeSpec)}
    made = {role: _reward_builder if role in rewards else _builder for role in tokenizers}
    return {role: made[role](role, tokenizer, plan.prompts) for role, tokenizer in tokenizers.items()}


def cannot_of(engine: Engine) -> frozenset[str]:
    """What an open engine cannot do of all that stages may need; see the fact `cannot`."""
    stated: Any = engine.facts.get("cannot", ())
    return frozenset(stated)


def flaw_in_contract(contract: type, thing: object) -> str | None:
    """What `thing`, written by others, lacks of `contract` (`Engine` or `Tokenizer`), in one clause; None where it has all of it."""
    members = [*contract.__annotations__, *(name for name in vars(contract) if not name.startswith("_"))]
    lacking = [name for name in members if not hasattr(thing, name)]
    if lacking:
        missing = ", ".join(f"`{name}`" for name in lacking)
        return f"has no {missing} (a {type(thing).__name__}); `pipeline.engine.{contract.__name__}` describes what it needs"
    return None


class _Untemplated:
    """A tokenizer without its chat template: a chat is its texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        return "".join(message["content"] for message in messages)


def _reward_builder(role: str, tokenizer: Tokenizer, prompts: Prompts) -> PromptBuilder:
    """A builder for a reward model, whose own prompts a stage builds; it counts how long the thought is for it. Such a model may have no
    chat template and no reasoning tags."""
    said = structs.replace(prompts, thought=Marks(), system=None)
    try:
        return _builder(role, tokenizer, said)
    except GraphError:
        return _builder(role, _Untemplated(tokenizer), said)


def _builder(role: str, tokenizer: Tokenizer, prompts: Prompts) -> PromptBuilder:
    where = f"engine {role!r}"
    if (flaw := flaw_in_contract(Tokenizer, tokenizer)) is not None:
        raise GraphError(where, f"its tokenizer {flaw}")
    with boundary(GraphError, where, foreign=RequestRefused):
        return PromptBuilder(tokenizer, prompts, f"{where}: its chat template")
