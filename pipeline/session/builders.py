"""The prompt builders of a run: open engines enter, a builder for each role and for each stage with prompts of its own leaves, or one
sentence about a tokenizer or template."""

from collections.abc import Mapping

import anyio

from pipeline.engine import Engine
from pipeline.engines.chat_template import end_rendering
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.session.preflight import Preflight
from pipeline.stages.build import builders_of


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
