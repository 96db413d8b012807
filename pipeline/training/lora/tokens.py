"""Rows of training data as token ids: typed rows and a tokenizer enter, examples leave, or an error about a row that does not fit.

Prompts are built by the same `PromptBuilder` as those of serving, so that both agree to the last id. Rows that are token ids already stay
as they are, and are compared with what the tokenizer of the model makes of them.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import cache, partial

from msgspec import Struct

from pipeline.engine import Tokenizer
from pipeline.engines.model_card import local_folder
from pipeline.engines.models import resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, InputError, RequestRefused, boundary
from pipeline.graph.prompts import THINK_CLOSE, Example, Message, Prompts
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.training.examples import IGNORED, SelectionRow, SftRow, SftTokensRow
from pipeline.training.lora.files import Row
from pipeline.training.lora.published import Choice, Thought


class DraftExample(Struct, frozen=True):
    """A prompt with its completion (SCoT eq. 2)."""

    ids: "array[int]"
    labels: "array[int]"
    """The ids of the completion, and `IGNORED` for those of the prompt."""

    @property
    def length(self) -> int:
        """Tokens that the model must hold."""
        return len(self.ids)


class SelectExample(Struct, frozen=True):
    """A prompt whose next token names an option (SCoT eq. 3)."""

    ids: "array[int]"
    option_ids: tuple[int, ...]
    """The token of each option."""
    right: tuple[int, ...]
    """Indices of all right options (SCoT 3.4: the label set)."""
    none: int | None
    """Index of the option that rejects all; None where there is none."""

    @property
    def length(self) -> int:
        """Tokens that the model must hold, that of the option included."""
        return len(self.ids) + 1


TokenExample = DraftExample | SelectExample


class Encoder:
    """Makes examples of rows for one model."""

    def __init__(self, tokenizer: Tokenizer, model: str, prompts: Prompts, vocab_size: int | None = None, same: Sequence[str] = ()) -> None:
        """`model` is the name of the model, `prompts` say what is not token ids yet, `same` are names of models with the same tokenizer.

        Raises `GraphError` for a tokenizer or a chat template that cannot ask a problem.
        """
        self._tokenizer, self._model, self._prompts = tokenizer, model, prompts
        self._vocab_size, self._same = vocab_size, same
        self._published = PromptBuilder(tokenizer, prompts, model)
        self._chat = cache(partial(_chat, tokenizer, prompts, model))
        self._compared: set[str] = set()
        """Names in the column `model` whose rows have been found to fit."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; raises `InputError` for ids that are none of the model's."""
        with boundary(InputError, self._model, foreign=(RequestRefused, OverflowError)):
            return self._tokenizer.decode(ids)

    def example(self, where: str, row: Row) -> TokenExample:
        """The example of a row, which is at `where`; raises `InputError` where the two do not fit together."""
        with boundary(InputError, where, foreign=(RequestRefused, GraphError)):
            match row:
                case Thought():
                    return self._reply(where, self._published, row.problem, self._whole(row))
                case Choice():
                    return self._choice(row)
                case SftRow():
                    *before, asked = row.prompt
                    return self._reply(where, self._chat(tuple(before)), asked.content, row.completion[0].content)
                case SftTokensRow():
                    self._check_ids(where, row, row.input_ids)
                    self._check_tokenizer(where, row)
                    return DraftExample(array("I", row.input_ids), array("q", row.labels))
                case SelectionRow():
                    self._check_ids(where, row, (*row.input_ids, *row.option_ids))
                    self._check_text(where, row)
                    return SelectExample(array("I", row.input_ids), row.option_ids, row.right, row.none)

    def _whole(self, row: Thought) -> str:
        """A published thought as a reply: with the marks of the model, or, where it has none, without any."""
        marks, thought = self._prompts.thought, row.thought.removesuffix(THINK_CLOSE)
        if not self._published.thinks:
            return thought.rstrip()
        return f"{marks.open}\n{thought}{marks.close if row.closed else ''}"

    def _reply(self, where: str, builder: PromptBuilder, asked: str, reply: str) -> DraftExample:
        """A question and the whole reply to it, with the marks of its thought where the model has them.

        A reply that continues after the thought, and one of a model that marks none, ends with the end of the sequence.
        """
        prompt, marks = builder.generation(asked), builder.prompts.thought
        parts = ["", reply]
        if builder.thinks:
            if not reply.startswith(marks.open):
                what = f"the reply begins {reply[:20]!r}, but the model {self._model} begins with {marks.open}"
                raise InputError(where, f"{what}; export replies with their thoughts")
            thought, close, answer = reply.removeprefix(marks.open).partition(marks.close)
            if self._tokenizer.decode(prompt[-4:]).endswith("\n"):  # the line break belongs to the template's opening of the thought
                thought = thought.removeprefix("\n")
            parts = ["", thought, close, answer]
        ids = self._tokenizer.encode_parts(parts)
        if parts[-1]:
            ids = [*ids, *sorted(self._tokenizer.eos_ids)[:1]]
        return DraftExample(array("I", [*prompt, *ids]), array("q", [*([IGNORED] * len(prompt)), *ids]))

    def _choice(self, row: Choice) -> SelectExample:
        """A published choice, as a `choose` stage over whole thoughts asks it."""
        builder = self._published
        context, shown = builder.generation(row.problem), [self._tokenizer.encode_parts(["", thought]) for thought in row.thoughts]
        asked = builder.choose(context, shown, unit="thought", problem=row.problem, begin=len(context))
        none = builder.options("thought", len(shown), True).none
        places = [place for place in range(len(shown) + 1) if place != none]
        assert none is not None
        right = tuple(places[index] for index in row.right) or (none,)
        return SelectExample(array("I", asked.ids), asked.option_ids, right, none)

    def _check_ids(self, where: str, row: SelectionRow | SftTokensRow, ids: Iterable[int]) -> None:
        """Raise `InputError` for ids that the model does not have."""
        wrong = next((id_ for id_ in ids if id_ < 0 or (self._vocab_size is not None and id_ >= self._vocab_size)), None)
        if wrong is not None:
            size = f"{self._vocab_size:,}" if self._vocab_size is not None else "its"
            what = f"has the token id {wrong:,}, and {self._model} has {size} tokens; its prompts were made for {row.model}"
            raise InputError(where, f"{what}: export them for this model")

    def _check_text(self, where: str, row: SelectionRow) -> None:
        """Raise `InputError` where the tokenizer reads other texts in the ids than the row has, at the first row of each model."""
        if row.model in self._compared:
            return
        said = self._tokenizer.decode(row.input_ids)
        options = tuple(self._tokenizer.decode([id_]).strip() for id_ in row.option_ids)
        if said != row.prompt or options != tuple(option.strip() for option in row.options):
            what = f"its token ids were made with another tokenizer than that of {self._model} (column `model`: {row.model})"
            raise InputError(where, f"{what}; export them for this model")
        self._compared.add(row.model)

    def _check_tokenizer(self, where: str, row: SftTokensRow) -> None:
        """Raise `InputError` where the column `model` names a model with another tokenizer, at its first row."""
        if row.model in self._compared:
            return
        if row.model != self._model and row.model not in self._same:
            other = _resolved(row.model)
            if local_folder(other) is None:
                what = f"its token ids were made for {row.model}, whose tokenizer is not available to compare with that of {self._model}"
                raise InputError(where, f"{what}; export text, or, where they are the same, add same_tokenizer: [{row.model}]")
            if not same_tokenizers(HFTokenizer(other), self._tokenizer):
                what = f"its token ids were made for {row.model}, whose tokenizer is not that of {self._model}"
                raise InputError(where, f"{what}; export them for this model: `pipeline export --as sft --model {self._model}`")
        self._compared.add(row.model)


def same_tokenizers(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether each id means the same to both."""
    return one.vocabulary == other.vocabulary and one.special_ids == other.special_ids


def _resolved(model: str) -> str:
    """A name in the column `model` as a folder or hub name; one that was bundled once and is no longer stays as it is."""
    try:
        return resolve("model", model)
    except GraphError:
        return model


def _chat(tokenizer: Tokenizer, prompts: Prompts, where: str, before: Sequence[Message]) -> PromptBuilder:
    """A builder whose chats have the messages `before` the question, which it takes as it is."""
    system = before[0].content if before and before[0].role == "system" else None
    turns = before[0 if system is None else 1 :]
    examples = tuple(Example(problem=one.content, reply=two.content) for one, two in zip(turns[::2], turns[1::2], strict=True))
    return PromptBuilder(tokenizer, Prompts(system=system, problem="{{problem}}", examples=examples, thought=prompts.thought), where)
