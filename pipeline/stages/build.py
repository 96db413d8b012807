"""The stages of a plan, ready to run: a plan, engines and their tokenizers enter, prompt builders and a `Stage` for each node leave."""

from collections.abc import Mapping

from pipeline.engine import Engine, Fact, Tokenizer
from pipeline.errors import GraphError, RequestRefused, boundary
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import stage_kinds
from pipeline.graph.prompts import Prompts
from pipeline.graph.spec import PLAIN_SAMPLING, SamplingSpec, StageSpec
from pipeline.reasoning.prompts import PromptBuilder, builder_key, role_of
from pipeline.stages.base import Stage


def build_stages(plan: Plan, builders: Mapping[str, PromptBuilder], where: str, only: str | None = None) -> dict[str, Stage]:
    """The stages of `plan` by name, or `only` that of one name; `builders` are those of all roles, and of stages with prompts of their own.

    Raises `GraphError` at `where` for a stage that its engine's tokenizer does not suit, such as a verdict that has an option
    which is not a single token.
    """
    most = sum(node.spec.drafted for node in plan.stages())
    built: dict[str, Stage] = {}
    for node in plan.stages():
        if only is not None and node.name != only:
            continue
        stage: Stage = stage_kinds()[node.spec.kind].build(node.name, node.spec, builders)
        if (flaw := stage.check(most)) is not None:
            raise GraphError(f"{where}: stage {node.name}", flaw)
        built[node.name] = stage
    return built


def builders_of(plan: Plan, tokenizers: Mapping[str, Tokenizer]) -> dict[str, PromptBuilder]:
    """A prompt builder for each role of `tokenizers`, and for each of its stages that has prompts of its own, as `builder_key` names it.

    Raises `GraphError` for a tokenizer or a chat template that fails.
    """
    said = dict.fromkeys(tokenizers, plan.prompts)
    for node in plan.stages():
        role = node.spec.role
        if node.spec.prompts is not None and role is not None and role in tokenizers:
            said[builder_key(role, node.name)] = node.spec.prompts
    return {key: _builder(role_of(key), tokenizers[role_of(key)], prompts) for key, prompts in said.items()}


def check_engines(plan: Plan, engines: Mapping[str, Engine]) -> None:
    """Raise `GraphError` for a stage that asks its engine for what that does not do."""
    for node in plan.stages():
        if node.spec.role is not None:
            facts = engines[node.spec.role].facts
            if (flaw := _continuing_flaw(node.spec, facts) or _sampling_flaw(node.spec, facts)) is not None:
                raise GraphError(f"engine {node.spec.role!r}", flaw.format(stage=node.name))


def _continuing_flaw(spec: StageSpec, facts: Mapping[str, Fact]) -> str | None:
    """What is wrong where a stage writes on in a thought and its engine cannot."""
    if not spec.continues or facts.get("continues") is not False:
        return None
    return (
        "has chat completions alone, and the stage `{stage}` writes on in a thought that was begun; "
        "take a server with the completions endpoint, or a graph of whole thoughts, such as scot"
    )


def _sampling_flaw(spec: StageSpec, facts: Mapping[str, Fact]) -> str | None:
    """What is wrong where a stage samples in a way that its engine does not honour."""
    if not isinstance(spec, SamplingSpec) or (honoured := facts.get("sampling")) is None:
        return None
    for name, value in spec.sampling.items():
        if name != "temperature" and value != PLAIN_SAMPLING[name] and name not in tuple(honoured):  # type: ignore[arg-type]
            return f"does not honour `{name}`, which the stage `{{stage}}` sets to {value}; leave that out or take another engine"
    return None


def _builder(role: str, tokenizer: Tokenizer, prompts: Prompts) -> PromptBuilder:
    where = f"engine {role!r}"
    if not hasattr(tokenizer, "encode_parts"):
        raise GraphError(where, "its tokenizer has no `encode_parts`; `pipeline.engine.Tokenizer` says what it must have")
    with boundary(GraphError, where, foreign=RequestRefused):
        return PromptBuilder(tokenizer, prompts, f"{where}: its chat template")
