"""The prompt builders of a run: open engines enter, a builder for each role leaves, or one sentence about a tokenizer or template."""

from collections.abc import Mapping

import anyio

from pipeline.engine import Engine
from pipeline.engines.chat_template import end_rendering
from pipeline.errors import GraphError, RequestRefused, boundary
from pipeline.reasoning.prompts import INSTRUCTION, PromptBuilder
from pipeline.session.preflight import Preflight


async def prompt_builders(checked: Preflight, engines: Mapping[str, Engine]) -> dict[str, PromptBuilder]:
    """The prompt builder of each role. Raises `GraphError` for a tokenizer or a chat template that fails."""
    instruction = INSTRUCTION if checked.plan.instruction is None else checked.plan.instruction

    def build() -> dict[str, PromptBuilder]:
        return {role: _builder(role, engine, instruction) for role, engine in engines.items()}

    try:
        # A template may compute up to its limit, and a signal is to be heard meanwhile; a virtual clock waits for no thread.
        return build() if checked.virtual_time else await anyio.to_thread.run_sync(build, abandon_on_cancel=True)
    finally:
        end_rendering()


def _builder(role: str, engine: Engine, instruction: str) -> PromptBuilder:
    where = f"engine {role!r}"
    if not hasattr(engine.tokenizer, "encode_parts"):
        raise GraphError(where, "its tokenizer has no `encode_parts`; `pipeline.engine.Tokenizer` says what it must have")
    with boundary(GraphError, where, foreign=RequestRefused):
        return PromptBuilder(engine.tokenizer, instruction, f"{where}: its chat template")
