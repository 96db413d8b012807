"""The columns of training data, one Struct for each form. `pipeline export --as` writes them, `pipeline train` reads them.

Every row says where it comes from, so that rows of several runs may be put into one file.
"""

from hashlib import sha256
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from pipeline.engine import Tokenizer
from pipeline.graph.prompts import Message

Split: TypeAlias = Literal["train", "validation"]
IGNORED = -100
"""The label of a token that nothing is learnt from, as torch, transformers and TRL have it."""
AS_IT_IS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that renders messages literally, one after the other."""


class LiteralTemplate(Struct, frozen=True):
    """The chat template with which TRL renders the messages of a row: its column `chat_template_kwargs`."""

    chat_template: str = AS_IT_IS


class Origin(Struct, frozen=True, kw_only=True):
    """Where an example comes from; the first columns of every form."""

    split: Annotated[str, Meta(pattern="^(train|validation)$")]
    """`train` or `validation`, decided by the problem's text: all examples of a problem are in one split, in every run."""
    problem_id: str
    """The problem, as the input names it."""
    chain_id: str
    """The attempt at the problem: `problem_id#sample_index`."""
    step_index: int
    """The step that the example is about, from 0; 0 if it is about the whole thought."""
    correct: bool | None
    """True if the chain's answer is correct; null: not graded."""
    run_id: str
    """The run's id in `run.json`."""
    graph: str
    """The graph of the run."""
    model: str
    """The model whose tokenizer and chat template made the prompt."""
    tokenizer: str
    """Hash of that tokenizer: models with the same one can share token ids."""
    input_sha256: str
    """Hash of the run's input."""
    problem_hash: str
    """64-bit hash of the problem's text, ignoring white space and case: the same in every run and file."""
    prompts: str | None
    """The bundled prompts file of the run; null: the run had its own prompts."""


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """A hash that is the same for tokenizers whose token ids all mean the same."""
    return sha256(repr((tokenizer.vocabulary, sorted(tokenizer.special_ids.items()))).encode()).hexdigest()[:16]


class SftRow(Origin, frozen=True, kw_only=True):
    """A prompt and its completion as messages: TRL's conversational prompt-completion form.

    TRL renders them with the model's chat template. The templates of DeepSeek-R1 and QwQ drop everything before `</think>`, which leaves no
    reasoning to train on, and every template appends an end-of-turn token; `pipeline train` does neither. For TRL's own trainers export
    token ids or, for a template that keeps thoughts, whole responses.
    """

    prompt: tuple[Message, ...]
    """The question, as the user asks it."""
    completion: tuple[Message]
    """The reply, reasoning tags included."""


class SftTokensRow(Origin, frozen=True, kw_only=True):
    """The same as token ids, exactly those of serving, which TRL's `SFTTrainer` accepts directly."""

    input_ids: tuple[int, ...]
    """Prompt and completion."""
    labels: tuple[int, ...]
    """As many entries: the ids of the completion, and -100 for each token of the prompt, which is not trained on."""


class SelectionRow(Origin, frozen=True, kw_only=True):
    """A verification that is answered with one token, and all right answers."""

    prompt: str
    """The prompt as text, for readers."""
    input_ids: tuple[int, ...]
    """The prompt's token ids, exactly those of serving; the next token is one of `option_ids`."""
    option_ids: tuple[int, ...]
    """Token of each option."""
    options: tuple[str, ...]
    """Each option: the label of a candidate, or a score."""
    right: tuple[int, ...]
    """Indices of all right options, at least one (SCoT 3.4: the label set)."""
    none: int | None
    """Index of the option that rejects all candidates; null: there is none, as among scores."""


class PreferenceRow(Origin, frozen=True, kw_only=True):
    """A rejected drafted step and the step that was written instead, as text: TRL's conversational preference form.

    Each text is one message that is rendered literally, because of the column `chat_template_kwargs`: with plain text TRL's `DPOTrainer`
    appends an end-of-sequence token to every step, and may put a second BOS token before the prompt.
    """

    prompt: tuple[Message, ...]
    """The chat and the thought before the step, as the model read it: one message."""
    chosen: tuple[Message, ...]
    """The step that was written after all candidates were rejected: one message."""
    rejected: tuple[Message, ...]
    """One of the rejected candidates: one message."""
    chat_template_kwargs: LiteralTemplate = LiteralTemplate()
    """The chat template that renders messages literally."""


class PreferenceTokensRow(Origin, frozen=True, kw_only=True):
    """The same as token ids, in the columns that the collator of TRL's `DPOTrainer` expects.

    The trainer makes these columns from text itself and has no option to skip that; use a subclass whose `_prepare_dataset` returns the
    dataset unchanged.
    """

    prompt_ids: tuple[int, ...]
    """The chat and the thought before the step."""
    chosen_ids: tuple[int, ...]
    """The step that was written after all candidates were rejected."""
    rejected_ids: tuple[int, ...]
    """One of the rejected candidates."""
