"""Preference data: each drafted step that was rejected, next to the step that was written instead. Retraced chains enter, rows leave."""

from collections.abc import Iterator
from typing import Any

from pipeline.errors import UsageError
from pipeline.graph.prompts import Message
from pipeline.training.examples import PreferenceRow, PreferenceTokensRow
from pipeline.training.retrace import RetracedChain, RetracedStep, Retracer


def check_fallback(retracer: Retracer) -> None:
    """Raise `UsageError` for a run in which no draft could be rejected."""
    specs = [node.spec for node in retracer.plan.stages()]
    if not any(spec.drafts for spec in specs) or not any(spec.judges and spec.may_reject for spec in specs):
        what = f"{retracer.run}: its graph, {retracer.record.graph}, drafts nothing that could be rejected"
        raise UsageError(f"--as preference: {what}; export a run of graphs/scot.yaml, graphs/speccot.yaml or graphs/specreason.yaml")


def preference_rows(
    retracer: Retracer, chain: RetracedChain, origin: dict[str, Any], *, tokens: bool
) -> Iterator[PreferenceRow | PreferenceTokensRow]:
    """A row for each different rejected candidate of each step that was written after a rejection, as text or as token ids."""
    for step in chain.steps:
        if step.step.decision == "fallback":
            yield from _step_rows(retracer, chain, step, origin, tokens)


def _step_rows(
    retracer: Retracer, chain: RetracedChain, step: RetracedStep, origin: dict[str, Any], tokens: bool
) -> Iterator[PreferenceRow | PreferenceTokensRow]:
    role, written = step.step.span.role, step.step.span
    prompt = next(asked for asked in reversed(step.asked) if asked.label.purpose == "write")
    common = {**origin, "step_index": step.step.index, "model": prompt.label.model}
    rejected = {candidate.text: candidate for candidate in step.step.candidates if candidate.text != written.text}
    text = "" if tokens else retracer.builders[role].tokenizer.decode(prompt.request.prompt_ids)
    asked, chosen = (Message("user", text),), (Message("assistant", written.text),)
    for candidate in rejected.values():
        if tokens:
            yield PreferenceTokensRow(
                prompt_ids=tuple(prompt.request.prompt_ids),
                chosen_ids=written.ids,
                rejected_ids=tuple(chain.chain.translate(candidate, role)),
                **common,
            )
        else:
            yield PreferenceRow(prompt=asked, chosen=chosen, rejected=(Message("assistant", candidate.text),), **common)
