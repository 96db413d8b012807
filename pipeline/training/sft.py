"""Supervised fine-tuning data: what the chains of a run wrote, for a model to learn to write (SCoT 3.3: the target's thoughts, for the
draft). Retraced chains enter, rows of messages or of token ids leave."""

from typing import Any, Literal, TypeAlias

from pipeline.graph.prompts import DELIMITER, Message
from pipeline.reasoning.chain import Chain
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.training.examples import IGNORED, SftRow, SftTokensRow
from pipeline.training.retrace import RetracedChain

Completion: TypeAlias = Literal["thought", "response"]
"""`thought`: up to the mark that closes it (SCoT 3.3); `response`: with the answer, to the end of the sequence."""
WHOLE = ("thought_closed", "answer_boxed")
"""The stop reasons of thoughts that were not cut."""


class Replies:
    """What a model is to say, in the vocabulary of one builder."""

    def __init__(self, key: str, builder: PromptBuilder, completion: Completion) -> None:
        """`key`: under which the builder is in a chain's contexts. `completion` is `response` where the model marks no thoughts."""
        self._key, self._builder = key, builder
        self._with_answer = completion == "response" or not builder.thinks

    def is_whole(self, chain: RetracedChain) -> bool:
        """Whether the thought of a chain, and the answer where it is wanted, came to its own end: what was cut would teach a model never
        to end."""
        return chain.stop_reason in WHOLE and (chain.ended or not self._with_answer)

    def messages(self, chain: RetracedChain, origin: dict[str, Any]) -> SftRow:
        """The chat of a chain as messages; the reply has both marks of the thought, as chat templates take it."""
        prompts, problem = self._builder.prompts, chain.chain.problem
        asked = Message("user", prompts.asked(problem.problem, problem.options))
        return SftRow(
            prompt=(*prompts.before(problem.history), asked),
            completion=(Message("assistant", self._said(chain.chain)),),
            step_index=0,
            **origin,
        )

    def tokens(self, chain: RetracedChain, origin: dict[str, Any]) -> SftTokensRow:
        """The same as token ids: the prompt of serving, and the thought as it follows it in the context of a chain."""
        builder, begin, context = self._builder, chain.chain.begins[self._key], chain.chain.contexts[self._key]
        reply = list(context[begin:])
        if builder.think_close_id is not None and reply[-1:] != [builder.think_close_id]:
            reply += builder.close_thought_ids if self._with_answer else [builder.think_close_id]
        if self._with_answer and chain.chain.answer is not None:
            reply += [*chain.chain.translate(chain.chain.answer, self._key), *sorted(builder.tokenizer.eos_ids)[:1]]
        return SftTokensRow(input_ids=(*context[:begin], *reply), labels=(*[IGNORED] * begin, *reply), step_index=0, **origin)

    def _said(self, chain: Chain) -> str:
        """The whole reply as text."""
        marks, thought = self._builder.prompts.thought, "".join(span.text for span in chain.thought)
        answer = chain.answer.text if self._with_answer and chain.answer is not None else ""
        if not self._builder.thinks:
            return answer
        begun = f"{marks.open}\n{thought.removesuffix(marks.close)}{marks.close}"
        return f"{begun}{answer}" if answer[:1].isspace() or not answer else f"{begun}{DELIMITER}{answer}"
