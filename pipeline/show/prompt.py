"""The prompt that a stage gives its engine for one problem: a plan and texts enter, text and token ids leave. No engine starts."""

from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct

from pipeline.data.problems import Problem
from pipeline.engine import Backend, Tokenizer
from pipeline.errors import BadRow, GraphError, InputError, UsageError, did_you_mean
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_backend
from pipeline.reasoning.chain import Chain, Outcome, Span
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from pipeline.stages.build import build_stages, builders_of

NO_LIMIT = 1 << 31


class ShownPrompt(Struct, frozen=True, kw_only=True):
    """What an engine gets, with the answer that is asked of it."""

    stage: str
    role: str
    text: str
    """The text of `ids`, special tokens included."""
    ids: list[int]
    options: dict[str, int]
    """Token id of each option of a verdict, by its text; empty where text is generated."""
    stop: list[str]
    """Texts of the stop strings and stop tokens."""
    max_tokens: int


def shown_prompt(
    plan: Plan, where: str, stage: str, problem: Problem, *, thought: Sequence[str] = (), candidates: Sequence[str] = ()
) -> ShownPrompt:
    """The first request of `stage` for a `problem` whose chain has committed the steps `thought` and, where the stage judges, has these
    `candidates`, instead of which there are placeholders where there are none.

    Raises `UsageError` for a stage that is not there or asks nothing, or an engine whose tokenizer cannot be had.
    """
    nodes = {node.name: node for node in plan.stages()}
    if stage not in nodes:
        raise UsageError(f"graph {plan.name} has no stage `{stage}`; {did_you_mean(stage, nodes)}")
    node = nodes[stage]
    role = str(node.spec.role)
    tokenizer = _tokenizer(plan, role)
    builders = builders_of(plan, {role: tokenizer})
    limits = {role: NO_LIMIT}
    chain = Chain(problem, 0, 0, 0, builders, TokenTranslator({role: tokenizer}, plan.prompts.thought), limits)
    for text in thought:
        chain.apply(stage, Outcome(step=_span(builders[role], role, text), decision="written"))
    if node.spec.judges:
        said = candidates or [f"(candidate {number})\n\n" for number in range(1, 1 + len(plan.drafters))]
        chain.apply(stage, Outcome(candidates=tuple(_span(builders[role], role, text) for text in said)))
    requests = build_stages(plan, builders, where, only=node.name)[node.name].requests(chain)
    if not requests:
        raise UsageError(f"stage `{stage}` would make no request: the reasoning is open or out of tokens, or `max_tokens` is 0")
    first = requests[0]
    return ShownPrompt(
        stage=stage,
        role=role,
        text=tokenizer.decode(list(first.prompt_ids)),
        ids=list(first.prompt_ids),
        options={tokenizer.decode([id_]): id_ for id_ in first.option_ids},
        stop=[*first.stop, *(tokenizer.decode([id_]) for id_ in first.stop_ids)],
        max_tokens=first.max_tokens,
    )


def problem_in(name: str, problems: Iterator[Problem | BadRow], row: int) -> Problem:
    """The problem in a row, from 1, of the input called `name`; raises `InputError`."""
    item = next(islice(problems, row - 1, None), None)
    if item is None:
        raise InputError(name, f"has no row {row}")
    if isinstance(item, BadRow):
        raise InputError(name, f"row {row}: {item.what}")
    return item


def _tokenizer(plan: Plan, role: str) -> Tokenizer:
    spec = plan.engines[role]
    backend: Backend = engine_backend(spec.backend)
    if backend.tokenizer is None:
        raise GraphError(f"engine {role!r}", f"the tokenizer of backend `{spec.backend}` is only available once the engine is open")
    return backend.tokenizer(role, spec)


def _span(builder: PromptBuilder, role: str, text: str) -> Span:
    """A text that an engine might have written; the mark at its end closes the thought."""
    mark = builder.prompts.thought.close
    closes = builder.thinks and text.endswith(mark)
    parts = ["", text.removesuffix(mark), mark] if closes else ["", text]
    return Span(role, tuple(builder.tokenizer.encode_parts(parts)), text, closes)
