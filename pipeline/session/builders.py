"""The prompt builders of a run: open engines enter, a builder for each role and for each stage with prompts of its own leaves, or one
sentence about a tokenizer or template."""

from collections.abc import Mapping

import anyio

from pipeline.engine import Engine, Tokenizer
from pipeline.engines.chat_template import end_rendering
from pipeline.errors import GraphError, RequestRefused, boundary
from pipeline.graph.plan import Plan
from pipeline.graph.prompts import Prompts
from pipeline.reasoning.prompts import PromptBuilder, builder_key, role_of
from pipeline.session.preflight import Preflight


async def prompt_builders(checked: Preflight, engines: Mapping[str, Engine]) -> dict[str, PromptBuilder]:
    """The prompt builder of each role, and of each stage that has prompts of its own, as `builder_key` names it. Raises `GraphError` for a
    tokenizer or a chat template that fails."""

    def build() -> dict[str, PromptBuilder]:
        return builders_of(checked.plan, {role: engine.tokenizer for role, engine in engines.items()})

    try:
        # A template may compute up to its limit, and a signal is to be heard meanwhile; a virtual clock waits for no thread.
        return build() if checked.virtual_time else await anyio.to_thread.run_sync(build, abandon_on_cancel=True)
    finally:
        end_rendering()


def builders_of(plan: Plan, tokenizers: Mapping[str, Tokenizer]) -> dict[str, PromptBuilder]:
    """The same from the tokenizers by role, those of its engines or some of them."""
    said = dict.fromkeys(tokenizers, plan.prompts)
    for node in plan.stages():
        if node.spec.prompts is not None and node.spec.role in tokenizers:
            said[builder_key(node.spec.role, node.name)] = node.spec.prompts
    return {key: _builder(role_of(key), tokenizers[role_of(key)], prompts) for key, prompts in said.items()}


def _builder(role: str, tokenizer: Tokenizer, prompts: Prompts) -> PromptBuilder:
    where = f"engine {role!r}"
    if not hasattr(tokenizer, "encode_parts"):
        raise GraphError(where, "its tokenizer has no `encode_parts`; `pipeline.engine.Tokenizer` says what it must have")
    with boundary(GraphError, where, foreign=RequestRefused):
        return PromptBuilder(tokenizer, prompts, f"{where}: its chat template")
